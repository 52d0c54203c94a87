//! Finds out why a server cannot be reached, because "transport error" helps nobody.
//!
//! A failed connect carries the system's error somewhere in its chain of sources. A connection
//! that opens and then breaks before the first answer may have met a server that wants TLS or does
//! not speak HTTP/2; a probe on a connection of its own tells them apart.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const TLS_ALERT: u8 = 0x15;
const TLS_HANDSHAKE: u8 = 0x16;
/// The shortest ClientHello: whoever speaks TLS answers it, if only to refuse it.
#[rustfmt::skip]
const TLS_HELLO: &[u8] = &[
    TLS_HANDSHAKE, 3, 1, 0, 45, // record
    1, 0, 0, 41, // client hello
    3, 3, // TLS 1.2
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // random
    0, // no session
    0, 2, 0xc0, 0x2f, // one cipher suite
    1, 0, // no compression
];

/// Why an endpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    Refused,
    /// The name of the host is unknown; with the resolver's words.
    Unresolved(String),
    Unroutable(String),
    ConnectTimeout,
    /// It answers with TLS.
    Tls,
    /// Something answers, but it is no gRPC server; with what it said first.
    NotHttp2(String),
    Closed,
    /// It takes connections and says nothing.
    Silent,
    /// It belongs to another cluster than the one that named it.
    OtherCluster,
    Other(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Refused => write!(formatter, "connection refused, nothing listens there"),
            Cause::Unresolved(detail) => write!(formatter, "the host name cannot be resolved ({detail})"),
            Cause::Unroutable(detail) => write!(formatter, "there is no way to that host ({detail})"),
            Cause::ConnectTimeout => {
                write!(formatter, "no answer to the connection attempt (a firewall, or the host is down)")
            }
            Cause::Tls => write!(formatter, "it wants TLS, and this client was told to use plaintext"),
            Cause::NotHttp2(said) => write!(formatter, "what listens there is no gRPC server (it said {said:?})"),
            Cause::Closed => write!(formatter, "the server closed the connection"),
            Cause::Silent => {
                write!(formatter, "connected but silent: it hangs, is stopped, or the network drops packets")
            }
            Cause::OtherCluster => write!(formatter, "it belongs to another cluster than the one that named it"),
            Cause::Other(detail) => write!(formatter, "{detail}"),
        }
    }
}

/// Whether a call that failed was certainly not carried out, because it never reached the server or was turned away
/// before anybody looked at it.
pub fn is_unsent(status: &Status) -> bool {
    let mut source = StdError::source(status);
    while let Some(error) = source {
        // The connection was gone before the call was given to it.
        if error.is::<tonic::ConnectError>()
            || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
        {
            return true;
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            // A server that says goodbye names the last call that it will look at; those behind it fail so.
            let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (error.is_go_away() || is_refused);
        }
        source = error.source();
    }
    false
}

/// Whether a status comes from a connection that broke, not from the server.
pub fn is_transport(status: &Status) -> bool {
    StdError::source(status).is_some()
}

/// What the innermost error of a broken connection says.
pub fn innermost(status: &Status) -> Cause {
    match StdError::source(status) {
        Some(error) => cause_of(error),
        None => Cause::Other(status.message().to_owned()),
    }
}

pub fn cause_of(error: &(dyn StdError + 'static)) -> Cause {
    let (mut current, mut last, mut unresolved) = (Some(error), error, false);
    while let Some(error) = current {
        unresolved |= error.to_string().contains("dns error");
        if let Some(io) = error.downcast_ref::<io::Error>() {
            match io.kind() {
                io::ErrorKind::ConnectionRefused => return Cause::Refused,
                io::ErrorKind::TimedOut => return Cause::ConnectTimeout,
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                    return Cause::Unroutable(io.to_string());
                }
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                    return Cause::Closed;
                }
                _ => {}
            }
        }
        last = error;
        current = error.source();
    }
    match unresolved {
        true => Cause::Unresolved(last.to_string()),
        false => Cause::Other(last.to_string()),
    }
}

/// Asks again on a bare connection what it is that answers there; None if it looks like HTTP/2.
pub async fn probe(address: &str, patience: Duration) -> Option<Cause> {
    let asked = async {
        match first_words(address, HTTP2_PREFACE).await?.as_slice() {
            // Some TLS servers say nothing to what is no TLS: speak their language.
            [] => match first_words(address, TLS_HELLO).await?.as_slice() {
                [TLS_ALERT | TLS_HANDSHAKE, 3, ..] => Ok(Some(Cause::Tls)),
                _ => Ok(Some(Cause::Closed)),
            },
            [TLS_ALERT, 3, ..] => Ok(Some(Cause::Tls)),
            // An HTTP/2 server opens with a SETTINGS frame.
            [_, _, _, 4, ..] => Ok(None),
            words => {
                let line = String::from_utf8_lossy(words).lines().next().unwrap_or_default().to_owned();
                io::Result::Ok(Some(Cause::NotHttp2(line)))
            }
        }
    };
    tokio::time::timeout(patience, asked).await.ok()?.ok()?
}

async fn first_words(address: &str, greeting: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(greeting).await?;
    let mut words = vec![0; 64];
    // A reset is an end, too: the server did not like our greeting.
    let length = stream.read(&mut words).await.unwrap_or(0);
    words.truncate(length);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A server that answers each connection's greeting with the next of these words.
    async fn probe_server_saying(answers: &'static [&'static [u8]]) -> Option<Cause> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for words in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 256]).await.unwrap();
                stream.write_all(words).await.unwrap();
            }
        });
        probe(&address, Duration::from_secs(5)).await
    }

    #[tokio::test]
    async fn tls_http1_and_http2_are_told_apart() {
        const ALERT: &[u8] = b"\x15\x03\x01\0\x02\x02\x46";
        assert_eq!(probe_server_saying(&[ALERT]).await, Some(Cause::Tls));
        assert_eq!(probe_server_saying(&[b"", ALERT]).await, Some(Cause::Tls));
        assert_eq!(probe_server_saying(&[b"", b""]).await, Some(Cause::Closed));
        let http1 = Cause::NotHttp2("HTTP/1.1 400 Bad Request".to_owned());
        assert_eq!(probe_server_saying(&[b"HTTP/1.1 400 Bad Request\r\n\r\n"]).await, Some(http1));
        assert_eq!(probe_server_saying(&[b"\0\0\0\x04\0\0\0\0\0"]).await, None);
    }
}
