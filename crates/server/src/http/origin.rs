//! Which web pages may call this member from a browser.
//!
//! A browser lets any page send a POST anywhere, also to a lock service on its user's own machine,
//! and says in `Origin` where the page came from. Scripts and command-line clients send no `Origin`
//! and are never concerned. Pages from this machine and pages that this member serves itself are
//! welcome; others have to be named in `web-origins`. A page counts as served by this member only
//! if it was reached by an address or by the advertised name: a name that somebody else's DNS points
//! at us proves nothing.

use std::net::IpAddr;

use axum::body::Body as HttpBody;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST, HeaderValue, ORIGIN,
    VARY,
};
use http::{HeaderMap, Method, Response, StatusCode};

use super::plain_text;
use crate::config::Config;

pub(super) struct Origins {
    any: bool,
    named: Vec<String>,
    advertised_host: String,
}

pub(super) enum Verdict {
    /// Not from a page, or from one of our own.
    Serve,
    /// Serve it, and let the page at this origin read the answer.
    Share(HeaderValue),
    /// Answered already: a question beforehand, or a page that may not.
    Answer(Response<HttpBody>),
}

impl Origins {
    pub(super) fn new(config: &Config) -> Origins {
        Origins {
            any: config.web_origins.iter().any(|origin| origin == "*"),
            named: config.web_origins.clone(),
            advertised_host: host_of(&config.client_address()).to_owned(),
        }
    }

    pub(super) fn judge(&self, method: &Method, headers: &HeaderMap) -> Verdict {
        let Some(origin) = headers.get(ORIGIN) else { return Verdict::Serve };
        if !self.welcome(origin, headers.get(HOST)) {
            return Verdict::Answer(plain_text(
                StatusCode::FORBIDDEN,
                "This member does not answer scripts of that web page. To allow it, add its origin\n\
                 (https://host:port) to the setting web-origins.\n",
            ));
        }
        if method == Method::OPTIONS {
            return Verdict::Answer(share(Response::new(HttpBody::empty()), origin.clone()));
        }
        Verdict::Share(origin.clone())
    }

    fn welcome(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.any || self.named.iter().any(|named| named.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some(authority) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else {
            return false;
        };
        let origin_host = host_of(authority);
        let address: Option<IpAddr> = origin_host.parse().ok();
        if origin_host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        let served_here = host.is_some_and(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
        served_here && (address.is_some() || origin_host.eq_ignore_ascii_case(&self.advertised_host))
    }
}

/// Lets the page at `origin` read a response.
pub(super) fn share(mut response: Response<HttpBody>, origin: HeaderValue) -> Response<HttpBody> {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("accept, content-type, authorization"));
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}

/// Without the port, and without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(host, _)| host);
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(config: &Config, method: Method, origin: Option<&str>, host: &str) -> Result<Option<String>, StatusCode> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        match Origins::new(config).judge(&method, &headers) {
            Verdict::Serve => Ok(None),
            Verdict::Share(origin) => Ok(Some(origin.to_str().unwrap().to_owned())),
            Verdict::Answer(response) => Err(response.status()),
        }
    }

    #[test]
    fn clients_that_are_no_browsers_are_not_concerned() {
        assert_eq!(judge(&Config::default(), Method::POST, None, "anything.example"), Ok(None));
    }

    #[test]
    fn a_strange_page_is_refused_even_if_its_name_points_here() {
        let config = Config::default();
        let refused = Err(StatusCode::FORBIDDEN);
        for (origin, host) in [
            ("https://evil.example", "127.0.0.1:2379"),
            ("http://evil.example:2379", "evil.example:2379"),
            ("http://localhost.evil.example", "127.0.0.1:2379"),
            ("http://10.0.0.7", "127.0.0.1:2379"),
            ("null", "127.0.0.1:2379"),
        ] {
            assert_eq!(judge(&config, Method::POST, Some(origin), host), refused, "{origin}");
            assert_eq!(judge(&config, Method::OPTIONS, Some(origin), host), refused, "{origin}");
        }
    }

    #[test]
    fn pages_from_here_and_named_ones_are_welcome() {
        let config = Config {
            web_origins: vec!["https://page.example".to_owned()],
            advertise: Some("locks.example:2379".to_owned()),
            ..Config::default()
        };
        for (origin, host) in [
            ("http://localhost:3000", "127.0.0.1:2379"),
            ("http://[::1]:3000", "127.0.0.1:2379"),
            ("http://10.0.0.7:2379", "10.0.0.7:2379"),
            ("http://locks.example:2379", "locks.example:2379"),
            ("https://page.example", "10.0.0.7:2379"),
        ] {
            assert_eq!(judge(&config, Method::POST, Some(origin), host), Ok(Some(origin.to_owned())));
        }
        assert_eq!(judge(&config, Method::OPTIONS, Some("https://page.example"), "x"), Err(StatusCode::OK));
        let anybody = Config { web_origins: vec!["*".to_owned()], ..Config::default() };
        assert!(judge(&anybody, Method::POST, Some("https://evil.example"), "x").is_ok());
    }
}
