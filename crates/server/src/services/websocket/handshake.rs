//! From HTTP to WebSocket: what RFC 6455 asks of the request, and the answer that switches over.

use axum::body::Body as HttpBody;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{Request, Response, StatusCode, Version};
use sha1::{Digest, Sha1};

use crate::http::plain_text;

/// Fixed by the RFC, so that nothing but a WebSocket server gives this answer.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VERSION: &str = "13";

/// Why a request does not become a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("A WebSocket begins with HTTP/1.1.")]
    HttpVersion,
    #[error("This is a WebSocket: connect to ws://…/v1/session with a WebSocket client.")]
    NotAsked,
    #[error("Only version 13 of WebSocket is spoken here.")]
    Version,
    #[error("Sec-WebSocket-Key is missing or not 16 bytes in base64.")]
    Key,
}

impl Unfit {
    pub fn response(self) -> Response<HttpBody> {
        let status = match self {
            Unfit::HttpVersion | Unfit::Key => StatusCode::BAD_REQUEST,
            Unfit::NotAsked | Unfit::Version => StatusCode::UPGRADE_REQUIRED,
        };
        let mut response = plain_text(status, format!("{self}\n"));
        if status == StatusCode::UPGRADE_REQUIRED {
            let headers = response.headers_mut();
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
        }
        response
    }
}

/// The answer with which the connection becomes a WebSocket.
pub fn switch<B>(request: &Request<B>) -> Result<Response<HttpBody>, Unfit> {
    let headers = request.headers();
    if request.version() != Version::HTTP_11 {
        return Err(Unfit::HttpVersion);
    }
    if !is_asked(headers) {
        return Err(Unfit::NotAsked);
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        return Err(Unfit::Version);
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|key| is_sound(key)).ok_or(Unfit::Key)?;
    let accept = HeaderValue::from_str(&accept(key.as_bytes())).map_err(|_| Unfit::Key)?;
    let mut response = Response::new(HttpBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Whether a request asks to become a WebSocket.
pub fn is_asked(headers: &HeaderMap) -> bool {
    names(headers, &UPGRADE, "websocket") && names(headers, &CONNECTION, "upgrade")
}

/// Whether one of the words of a header, which may be there several times, is this one.
fn names(headers: &HeaderMap, header: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

fn is_sound(key: &HeaderValue) -> bool {
    STANDARD.decode(key.as_bytes()).is_ok_and(|bytes| bytes.len() == 16)
}

fn accept(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut Request<()>)) -> Request<()> {
        let mut request = Request::builder()
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(())
            .unwrap();
        change(&mut request);
        request
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn a_sound_request_is_accepted_as_the_standard_says() {
        let response = switch(&request(|_| {})).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn what_is_missing_is_named() {
        let unfit = |change: fn(&mut Request<()>)| switch(&request(change)).unwrap_err();
        let set = |request: &mut Request<()>, name, value| {
            request.headers_mut().insert::<HeaderName>(name, HeaderValue::from_static(value));
        };
        assert_eq!(unfit(|request| drop(request.headers_mut().remove(UPGRADE))), Unfit::NotAsked);
        assert_eq!(unfit(|request| drop(request.headers_mut().remove(CONNECTION))), Unfit::NotAsked);
        assert_eq!(unfit(|request| *request.version_mut() = Version::HTTP_2), Unfit::HttpVersion);
        let old = request(|request| set(request, SEC_WEBSOCKET_VERSION, "8"));
        assert_eq!(switch(&old).unwrap_err(), Unfit::Version);
        let short = request(|request| set(request, SEC_WEBSOCKET_KEY, "AAAA"));
        assert_eq!(switch(&short).unwrap_err(), Unfit::Key);
        assert_eq!(Unfit::Version.response().headers()[SEC_WEBSOCKET_VERSION], VERSION);
    }
}
