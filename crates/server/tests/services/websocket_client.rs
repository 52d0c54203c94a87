//! A client of the WebSocket session, and of plain HTTP, on sockets of its own.

use std::net::SocketAddr;

use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::harness::PATIENCE;

pub const ACQUIRE: u64 = 1;
pub const RELEASE: u64 = 2;
pub const RENEW: u64 = 3;

pub struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    pub async fn connect(address: SocketAddr) -> Socket {
        Socket::connect_at(address, "/v1/session").await
    }

    pub async fn connect_at(address: SocketAddr, path: &str) -> Socket {
        let (stream, head) = ask_for_session_at(address, path, "").await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // For the key that is sent, as RFC 6455 computes it.
        assert!(head.to_ascii_lowercase().contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        Socket(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    }

    pub async fn send(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// As a client does that knows the plain protocol and nothing more.
    pub async fn say(&mut self, command: u64, key: &str, client: &str, ttl: u64) {
        let request = json!({"commandType": command, "key": key, "clientId": client, "ttl": ttl});
        self.send(Message::text(request.to_string())).await;
    }

    pub async fn ask(&mut self, command: u64, key: &str, client: &str, ttl: u64, request_id: &str) {
        let request =
            json!({"commandType": command, "key": key, "clientId": client, "ttl": ttl, "requestId": request_id});
        self.send(Message::text(request.to_string())).await;
    }

    pub async fn next(&mut self) -> Message {
        timeout(PATIENCE, self.0.next()).await.expect("in time").expect("still open").unwrap()
    }

    pub async fn hear(&mut self) -> Value {
        match self.next().await {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The token, if this is a grant and nothing else.
    #[track_caller]
    pub fn granted(&mut self, key: &str) -> impl Future<Output = i64> + use<'_> {
        let key = key.to_owned();
        async move {
            let told = self.hear().await;
            let token = told["fencingToken"]["value"].as_i64().unwrap();
            let expected = json!({"success": true, "fencingToken": {"key": key, "value": token}});
            assert_eq!(told, expected);
            assert!(token > 0);
            token
        }
    }

    /// What a request was refused with.
    pub async fn refused(&mut self) -> String {
        let told = self.hear().await;
        assert_eq!(told["success"], false, "{told}");
        told["error"].as_str().unwrap().to_owned()
    }

    /// The code and the reason with which the server ends it.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Message::Close(frame) = self.next().await {
                let frame = frame.unwrap();
                return (frame.code.into(), frame.reason.to_string());
            }
        }
    }

    /// Says goodbye and waits for the answer.
    pub async fn close(mut self) {
        self.0.close(None).await.unwrap();
        while let Ok(Some(Ok(_))) = timeout(PATIENCE, self.0.next()).await {}
    }

    /// Bytes that no WebSocket client would send.
    pub async fn write_raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }
}

/// Sends the request that begins a WebSocket, with more headers, and gives the head of the answer.
pub async fn ask_for_session(address: SocketAddr, headers: &str) -> (TcpStream, String) {
    ask_for_session_at(address, "/v1/session", headers).await
}

async fn ask_for_session_at(address: SocketAddr, path: &str, headers: &str) -> (TcpStream, String) {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    ask_http(address, &request).await
}

/// The whole answer to a GET with more headers.
pub async fn get_http(address: SocketAddr, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    let (mut stream, mut answer) = ask_http(address, &request).await;
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
    answer
}

/// The head is read and not a byte more. It is empty if the server hung up.
pub async fn ask_http(address: SocketAddr, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that hung up already says so when its answer is read.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match timeout(PATIENCE, stream.read(&mut byte)).await.expect("in time") {
            Ok(1) => head.push(byte[0]),
            _ => return (stream, String::new()),
        }
    }
    (stream, String::from_utf8(head).unwrap())
}
