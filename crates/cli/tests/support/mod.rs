//! A real server process for a test: its own port, its own directory, gone when dropped.
#![allow(dead_code)]

pub mod cluster;
pub mod place;
pub mod proxy;
pub mod state;
pub mod store;

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

use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::{Channel, Endpoint};

pub struct Server {
    child: Child,
    pub address: String,
    directory: PathBuf,
    flags: Vec<String>,
    release: Release,
    stderr: Arc<Mutex<String>>,
}

/// What a member runs: the binary under test, or another one, and flags that belong to it.
#[derive(Debug, Clone, Default)]
pub struct Release {
    pub program: Option<PathBuf>,
    pub flags: Vec<String>,
}

/// Nothing of a test may wait longer than this.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Linux gives outgoing connections 32768 and up.
const PORTS: Range<u16> = 20_000..32_000;

pub fn tenure() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_tenure")))
}

/// Without settings of the environment that the tests run in.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TENURE_")) {
        command.env_remove(name);
    }
    command
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An address that belongs to this test process until it ends.
pub fn own_address() -> String {
    format!("127.0.0.1:{}", own_ports(1))
}

/// The first of so many ports in a row that belong to this test process until it ends. A port that the kernel
/// picked would be free again at once, for another test's server or for any outgoing connection; these stand
/// below the ports of outgoing connections, and a name in the abstract namespace keeps other test processes away.
pub fn own_ports(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static CLAIMS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let claim = |port: u16| {
        let name = SocketAddr::from_abstract_name(format!("tenure-test-port-{port}")).unwrap();
        let claim = UnixDatagram::bind_addr(&name).ok()?;
        CLAIMS.lock().unwrap().push(claim);
        TcpListener::bind(("127.0.0.1", port)).ok()
    };
    for _ in 0..PORTS.len() {
        let turn = NEXT.fetch_add(count.into(), Ordering::Relaxed);
        let offset = std::process::id().wrapping_mul(97).wrapping_add(turn) % PORTS.len() as u32;
        let first = PORTS.start + offset as u16;
        if first + count <= PORTS.end && (first..first + count).all(|port| claim(port).is_some()) {
            return first;
        }
    }
    panic!("no free port");
}

/// A zombie does nothing any more.
pub fn is_dead(id: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{id}/status")) {
        Ok(status) => status.lines().any(|line| line.starts_with("State:") && line.contains(['Z', 'X'])),
        Err(_) => true,
    }
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
        self.start_again();
    }

    /// Ends it in order and starts it again.
    pub fn restart_in_order(&mut self) {
        assert_eq!(self.terminate(), Some(0), "it did not end in order:\n{}", self.stderr());
        self.start_again();
    }

    pub fn start_again(&mut self) {
        self.spawn_again();
        assert!(self.is_ready(), "the server did not start again:\n{}", self.stderr());
    }

    fn spawn_again(&mut self) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        *self = Server::spawn_release(&self.release, &self.directory, self.address.clone(), &flags);
    }

    /// Ends it in order, if it runs, and goes on with another release on the same directory.
    pub fn replace(&mut self, release: &Release) {
        if self.child.try_wait().unwrap().is_none() {
            assert_eq!(self.terminate(), Some(0), "it did not end in order:\n{}", self.stderr());
        }
        self.release = release.clone();
        self.start_again();
    }

    /// Starts another release on the same directory, which is expected to end by itself; gives its exit code.
    pub fn try_replace(&mut self, release: &Release) -> Option<i32> {
        self.release = release.clone();
        self.spawn_again();
        self.wait()
    }

    /// Starts a member and does not wait for anything.
    pub fn spawn(directory: &Path, address: String, flags: &[&str]) -> Server {
        Server::spawn_release(&Release::default(), directory, address, flags)
    }

    pub fn spawn_release(release: &Release, directory: &Path, address: String, flags: &[&str]) -> Server {
        let peer = own_address();
        let mut all = [&["--listen", &address], flags].concat();
        if !flags.contains(&"--peer-listen") {
            all.extend(["--peer-listen", &peer]);
        }
        let mut server = Server::spawn_command(release, directory, address.clone(), &all);
        // What is not given again is the same again.
        server.flags = flags.iter().map(|flag| flag.to_string()).collect();
        server
    }

    /// It is expected at this address, though nothing but the flags says so.
    pub fn spawn_as_told(directory: &Path, address: String, flags: &[&str]) -> Server {
        Server::spawn_command(&Release::default(), directory, address, flags)
    }

    fn spawn_command(release: &Release, directory: &Path, address: String, flags: &[&str]) -> Server {
        let mut command = release.program.as_ref().map_or_else(tenure, |program| clean(Command::new(program)));
        command.arg("serve").args(["--data-dir", directory.to_str().unwrap()]).args(flags).args(&release.flags);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (pipe, said) = (child.stderr.take().unwrap(), stderr.clone());
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                said.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        Server { child, address, directory: directory.to_path_buf(), flags, release: release.clone(), stderr }
    }

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

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
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
        self.signal(Signal::TERM);
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
