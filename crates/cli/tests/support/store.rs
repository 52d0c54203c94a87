//! A real `tenure datastore` for a test, and its protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{PATIENCE, tenure};

pub struct Store {
    child: Child,
    pub address: String,
    log: thread::JoinHandle<String>,
}

impl Store {
    /// Starts one on a port of the system's choice, and reads from its log which one that is.
    pub fn start(directory: &Path, flags: &[&str]) -> Store {
        let mut child = tenure()
            .args(["datastore", "--listen", "127.0.0.1:0", "--data-dir", directory.to_str().unwrap()])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("the store did not start:\n{said}"));
            said.push_str(&format!("{line}\n"));
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{said}"));
            if line["message"] == "ready" {
                break line["address"].as_str().unwrap().to_owned();
            }
        };
        let log = thread::spawn(move || lines.fold(said, |said, line| said + &line + "\n"));
        Store { child, address, log }
    }

    #[track_caller]
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        request(&self.address, method, path, body).expect("the store answers")
    }

    #[track_caller]
    pub fn write(&self, key: &str, token: u64, data: &str) -> (u16, Value) {
        write(&self.address, "c", key, token, data).expect("the store answers")
    }

    /// With the token of the write that left it.
    #[track_caller]
    pub fn data(&self, key: &str) -> (u64, String) {
        let (status, body) = self.request("GET", &format!("/read?key={key}"), b"");
        assert_eq!(status, 200, "{body}");
        (body["token"].as_u64().unwrap(), body["data"].as_str().unwrap().to_owned())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code and what it has logged, after a signal that ends it.
    pub fn end_by(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let code = self.child.wait().unwrap().code();
        let log = std::mem::replace(&mut self.log, thread::spawn(String::new));
        (code, log.join().unwrap())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For a process that knows of the store only where it is. None if it is gone.
pub fn write(address: &str, client: &str, key: &str, token: impl Into<Value>, data: &str) -> Option<(u16, Value)> {
    let token: Value = token.into();
    let body = json!({"clientID": client, "fencingToken": {"key": key, "value": token}, "data": data});
    request(address, "POST", "/write", body.to_string().as_bytes())
}

/// Status and body; None if it is gone.
fn request(address: &str, method: &str, path: &str, body: &[u8]) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    // A request that is too long is answered before it is read to its end.
    let _ = stream.write_all(body);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8(response).ok()?;
    let status = response.split(' ').nth(1)?.parse().ok()?;
    let body = response.split_once("\r\n\r\n")?.1;
    Some((status, serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {response}"))))
}

/// A key for cluster and store, as a file.
pub fn signing_key(directory: &Path) -> String {
    let key = directory.join("signing.key");
    std::fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    key.to_str().unwrap().to_owned()
}
