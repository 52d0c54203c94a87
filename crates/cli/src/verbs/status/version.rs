//! The version of Tenure that a member runs: its Status names the version of etcd whose API it serves.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No answer is nearly as long.
const MOST_BYTES: u64 = 4096;

/// What `GET /version` of the client port says; `None` if it does not say it.
pub async fn of(endpoint: &str) -> Option<String> {
    let mut stream = TcpStream::connect(endpoint).await.ok()?;
    let request = format!("GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut response).await.ok()?;
    parse(std::str::from_utf8(&response).ok()?)
}

fn parse(response: &str) -> Option<String> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return None;
    }
    let document: Value = serde_json::from_str(body.trim()).ok()?;
    Some(document["tenure"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tenure_says_its_version() {
        let ours =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"etcdserver\":\"3.5\",\"tenure\":\"0.1.0\"}";
        assert_eq!(parse(ours).as_deref(), Some("0.1.0"));
        assert_eq!(parse("HTTP/1.1 200 OK\r\n\r\n{\"etcdserver\":\"3.5.21\"}"), None);
        assert_eq!(parse("HTTP/1.1 404 Not Found\r\n\r\n{\"tenure\":\"0.1.0\"}"), None);
        assert_eq!(parse("nonsense"), None);
    }
}
