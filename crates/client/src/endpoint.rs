//! Reads lists of endpoints, and says in which order they are tried.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use tonic::transport::Uri;

use crate::error::Error;

/// One address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// As people write it: `host:port`.
    pub text: String,
    pub uri: Uri,
}

impl Address {
    /// Known by its number; None for names.
    pub fn ip(&self) -> Option<IpAddr> {
        self.uri.host()?.trim_matches(['[', ']']).parse().ok()
    }
}

/// In which order a client tries the endpoints that it was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndpointOrder {
    /// Each client draws an order of its own, so that clients with the same list spread over the members.
    #[default]
    Shuffled,
    /// The order that this seed gives, the same each time.
    Seeded(u64),
    /// The first one first. The others are used only while the first one is of no use.
    AsGiven,
}

impl EndpointOrder {
    /// A rank for each of `count` endpoints. The lowest is tried first.
    pub(crate) fn ranks(self, count: usize) -> Vec<u64> {
        let mut ranks: Vec<u64> = (0..count as u64).collect();
        let mut state = match self {
            EndpointOrder::AsGiven => return ranks,
            EndpointOrder::Seeded(seed) => seed,
            // The standard library seeds its hash tables from the system's randomness.
            EndpointOrder::Shuffled => RandomState::new().build_hasher().finish(),
        };
        for index in (1..count).rev() {
            let other = next_random(&mut state) % (index as u64 + 1);
            ranks.swap(index, other as usize);
        }
        ranks
    }
}

/// splitmix64: a counter whose bits are mixed.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Reads `A,B,C`; blanks around commas do not matter, repetitions are dropped.
pub fn parse_list(list: &str) -> Result<Vec<Address>, Error> {
    let mut addresses: Vec<Address> = Vec::new();
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let address = parse(text)?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(refused(list, "no endpoint is given")),
        false => Ok(addresses),
    }
}

pub fn parse(text: &str) -> Result<Address, Error> {
    let bare = match text.split_once("://") {
        Some(("http", bare)) => bare.trim_end_matches('/'),
        Some(("https", _)) => return Err(refused(text, "this version of Tenure does not speak TLS yet")),
        Some((scheme, _)) => return Err(refused(text, &format!("the scheme {scheme}:// is unknown"))),
        None => text,
    };
    let uri: Uri = format!("http://{bare}").parse().map_err(|error| refused(text, &format!("{error}")))?;
    match (uri.host(), uri.port_u16(), uri.path()) {
        (Some(host), Some(_), "/") if !host.is_empty() => Ok(Address { text: bare.to_owned(), uri }),
        (_, None, _) => Err(refused(text, &missing_port(bare))),
        _ => Err(refused(text, "this is not an address")),
    }
}

/// An address without a port that can be: there is none, or its number is too large.
fn missing_port(bare: &str) -> String {
    let port = bare.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty());
    match port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(port) => format!("the port {port} is not between 1 and 65535"),
        None => "the port is missing".to_owned(),
    }
}

fn refused(endpoint: &str, reason: &str) -> Error {
    Error::Endpoint { endpoint: endpoint.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_with_and_without_scheme() {
        let list = parse_list("127.0.0.1:2379, http://[::1]:2380/,node-3.example:1,127.0.0.1:2379").unwrap();
        let texts: Vec<&str> = list.iter().map(|address| address.text.as_str()).collect();
        assert_eq!(texts, ["127.0.0.1:2379", "[::1]:2380", "node-3.example:1"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (list, reason) in [
            ("", "no endpoint"),
            (" , ", "no endpoint"),
            ("localhost", "port is missing"),
            ("localhost:", "port is missing"),
            ("localhost:99999", "the port 99999 is not between 1 and 65535"),
            ("https://localhost:1", "TLS"),
            ("ftp://localhost:1", "ftp://"),
            ("localhost:1/path", "not an address"),
            ("a b:1", "invalid"),
        ] {
            let error = parse_list(list).unwrap_err().to_string();
            assert!(error.contains(reason), "{list}: {error}");
        }
    }
}
