//! A PostgreSQL or a Redis of a test's own: Debian's binaries, a temporary directory, a socket in it, gone when dropped.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Nothing of a test may wait longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the databases are left out on purpose. Said loudly, because a test that checks nothing looks like success.
pub fn left_out() -> bool {
    let left_out = std::env::var_os("TENURE_WITHOUT_DATABASES").is_some_and(|value| value == "1");
    if left_out {
        let test = thread::current().name().unwrap_or_default().to_owned();
        // Not with eprintln: that is shown only if the test fails.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test} checked NOTHING, because TENURE_WITHOUT_DATABASES=1");
    }
    left_out
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program, as somebody whom PostgreSQL does not refuse.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]).arg(program);
    command
}

/// A directory that the unprivileged user may use too.
fn directory() -> TempDir {
    let home = tempfile::Builder::new().prefix("tenure-").tempdir().unwrap();
    if is_root() {
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let status = Command::new("chown").arg("nobody:nogroup").arg(home.path()).status().unwrap();
        assert!(status.success());
    }
    home
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub struct Postgres {
    child: Child,
    home: TempDir,
    programs: PathBuf,
}

impl Postgres {
    pub fn start() -> Postgres {
        let versions = fs::read_dir("/usr/lib/postgresql").map(|versions| versions.flatten().collect::<Vec<_>>());
        let newest = versions.unwrap_or_default().into_iter().map(|version| version.path().join("bin")).max();
        let programs = newest.filter(|programs| programs.join("postgres").exists());
        let programs = programs.expect("PostgreSQL is not installed: run crates/fence/tests/databases");
        let home = directory();
        let data = home.path().join("data");
        let made = unprivileged(&programs.join("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=tenure", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .current_dir(home.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let child = Postgres::spawn(&programs, home.path());
        let postgres = Postgres { child, home, programs };
        postgres.wait();
        postgres
    }

    fn spawn(programs: &Path, home: &Path) -> Child {
        let log = fs::File::create(home.join("log")).unwrap();
        unprivileged(&programs.join("postgres"))
            .arg("-D")
            .arg(home.join("data"))
            .args(["-c", "listen_addresses=", "-c", "max_connections=40", "-k"])
            .arg(home)
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn wait(&self) {
        let log = || fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        wait_until(&format!("PostgreSQL starts:\n{}", log()), || self.is_ready());
    }

    fn is_ready(&self) -> bool {
        let mut command = Command::new(self.programs.join("pg_isready"));
        command.args(["-q", "-U", "tenure", "-h"]).arg(self.home.path()).status().unwrap().success()
    }

    /// Ends it without a chance to write anything, and starts it again.
    pub fn crash(&mut self) {
        // Its postmaster's death is noticed by its children, which end by themselves.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The pid file is that of a dead process; the shared memory goes with the last child.
        let programs = self.programs.clone();
        wait_until("PostgreSQL starts again", || {
            self.child = Postgres::spawn(&programs, self.home.path());
            let mut ended = None;
            wait_until("PostgreSQL decides", || {
                ended = self.child.try_wait().unwrap();
                ended.is_some() || self.is_ready()
            });
            ended.is_none()
        });
    }

    pub fn connect(&self) -> Psql {
        let mut child = Command::new(self.programs.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-F", ",", "-U", "tenure", "-d", "postgres", "-h"])
            .arg(self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Psql { child, input, output }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The signal for a fast shutdown: its children end with it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// One connection, through psql.
pub struct Psql {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Psql {
    /// Runs a statement and gives its rows; an error is shown and gives none.
    pub fn run(&mut self, statement: &str) -> Vec<String> {
        self.begin(statement);
        self.end()
    }

    /// Sends a statement and does not wait for it.
    pub fn begin(&mut self, statement: &str) {
        writeln!(self.input, "{statement};\n\\echo ---").unwrap();
        self.input.flush().unwrap();
    }

    /// The rows of the statement that was sent.
    pub fn end(&mut self) -> Vec<String> {
        let mut rows = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "psql ended");
            match line.trim_end() {
                "---" => return rows,
                row => rows.push(row.to_owned()),
            }
        }
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct RedisServer {
    child: Child,
    home: TempDir,
    settings: Vec<String>,
}

impl RedisServer {
    pub fn start(settings: &[&str]) -> RedisServer {
        let home = directory();
        let settings: Vec<String> = settings.iter().map(|setting| setting.to_string()).collect();
        let child = RedisServer::spawn(home.path(), &settings);
        let server = RedisServer { child, home, settings };
        server.wait();
        server
    }

    fn spawn(home: &Path, settings: &[String]) -> Child {
        // Only a socket: no port that another test could have.
        unprivileged(Path::new("redis-server"))
            .args(["--port", "0", "--unixsocket"])
            .arg(home.join("redis.sock"))
            .args(["--unixsocketperm", "777", "--daemonize", "no", "--dir"])
            .arg(home)
            .args(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("Redis is not installed: run crates/fence/tests/databases")
    }

    fn wait(&self) {
        wait_until("Redis starts", || {
            let Ok(stream) = UnixStream::connect(self.home.path().join("redis.sock")) else { return false };
            Resp(BufReader::new(stream)).command(&[b"PING"]) == Value::Text(b"PONG".to_vec())
        });
    }

    pub fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let _ = fs::remove_file(self.home.path().join("redis.sock"));
        self.child = RedisServer::spawn(self.home.path(), &self.settings);
        self.wait();
    }

    pub fn connect(&self) -> Resp {
        Resp(BufReader::new(UnixStream::connect(self.home.path().join("redis.sock")).unwrap()))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Redis' protocol, as far as the tests need it.
pub struct Resp(BufReader<UnixStream>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Vec<u8>),
    Error(String),
    Number(i64),
    List(Vec<Value>),
    Nothing,
}

impl Resp {
    pub fn command(&mut self, arguments: &[&[u8]]) -> Value {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Value::Text(rest.as_bytes().to_vec()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Number(rest.parse().unwrap()),
            "$" if rest == "-1" => Value::Nothing,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Value::Text(bytes)
            }
            "*" if rest == "-1" => Value::Nothing,
            "*" => Value::List((0..rest.parse::<usize>().unwrap()).map(|_| self.reply()).collect()),
            _ => panic!("{line}"),
        }
    }
}
