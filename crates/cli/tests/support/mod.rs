//! A real server process for a test: its own port, its own directory, gone when dropped.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};

pub struct Server {
    child: Child,
    pub address: String,
    directory: PathBuf,
    flags: Vec<String>,
    stderr: Arc<Mutex<String>>,
}

/// Nothing of a test may wait longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Linux gives outgoing connections 32768 and up.
const PORTS: Range<u16> = 20_000..32_000;

pub fn tenure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TENURE_")) {
        command.env_remove(name);
    }
    command
}

/// An address that belongs to this test process until it ends. A port that the kernel picked would be free
/// again at once, for another test's server or for any outgoing connection; these stand below the ports of
/// outgoing connections, and a name in the abstract namespace keeps other test processes away.
pub fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static CLAIMS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    for _ in 0..PORTS.len() {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = std::process::id().wrapping_mul(97).wrapping_add(turn) % PORTS.len() as u32;
        let port = PORTS.start + offset as u16;
        let claim = SocketAddr::from_abstract_name(format!("tenure-test-port-{port}")).unwrap();
        let Ok(claim) = UnixDatagram::bind_addr(&claim) else { continue };
        CLAIMS.lock().unwrap().push(claim);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
    panic!("no free port");
}

impl Server {
    /// Starts a member on this directory and waits until it serves.
    pub fn start_in(directory: &Path) -> Server {
        Server::start_with(directory, &[])
    }

    pub fn start_with(directory: &Path, flags: &[&str]) -> Server {
        let mut server = Server::spawn(directory, own_address(), flags);
        assert!(server.is_ready(), "the server did not start:\n{}", server.stderr());
        server
    }

    /// Kills it and starts it again, at the same address and on the same directory.
    pub fn restart(&mut self) {
        self.kill();
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let mut server = Server::spawn(&self.directory, self.address.clone(), &flags);
        assert!(server.is_ready(), "the server did not start again:\n{}", server.stderr());
        *self = server;
    }

    /// Starts a member and does not wait for anything.
    pub fn spawn(directory: &Path, address: String, flags: &[&str]) -> Server {
        Server::spawn_member(directory, address, &own_address(), flags)
    }

    /// The same, with this address for other members.
    pub fn spawn_member(directory: &Path, address: String, peer_address: &str, flags: &[&str]) -> Server {
        let mut child = tenure()
            .arg("serve")
            .args(["--data-dir", directory.to_str().unwrap()])
            .args(["--listen", &address, "--peer-listen", peer_address])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (pipe, said) = (child.stderr.take().unwrap(), stderr.clone());
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                said.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        Server { child, address, directory: directory.to_path_buf(), flags, stderr }
    }

    /// Waits until it serves; false if it ended instead.
    pub fn is_ready(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.child.try_wait().unwrap().is_some() {
                thread::sleep(Duration::from_millis(50));
                return false;
            }
            if self.get("/readyz").is_some_and(|response| response.starts_with("HTTP/1.1 200")) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The whole response of an HTTP GET, or None if nobody answers.
    pub fn get(&self, path: &str) -> Option<String> {
        use std::io::Write;
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        Some(response)
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.expect("the server takes connections")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; gives its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.wait()
    }

    /// Waits for it to end by itself; gives its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                thread::sleep(Duration::from_millis(50));
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
