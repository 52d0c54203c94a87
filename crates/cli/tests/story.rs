//! The story that locks with leases are told by: A holds the lock and is stopped for longer than its
//! lease, B gets the lock and writes, A goes on. Three processes and a fenced data store, all real.

mod support;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::Server;
use tenure_client::{Client, Durations};

const PATIENCE: Duration = Duration::from_secs(60);
const LOCK: &str = "story";
const SERVER: &str = "TENURE_TEST_STORY_SERVER";
const STORE: &str = "TENURE_TEST_STORY_STORE";

/// Process A: takes the lock, then does as it is told on its input. `write ROW` asks the guard first,
/// `force ROW` does not. Nothing happens here unless the story has started it.
#[tokio::test]
async fn the_other_process_of_the_story() {
    let (Ok(server), Ok(store)) = (std::env::var(SERVER), std::env::var(STORE)) else { return };
    let client = Client::connect(&server).await.unwrap();
    let guard = client.lock(LOCK).holder("A").ttl(1.seconds()).acquire().await.unwrap();
    println!("\nacquired {}", guard.token());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (verb, row) = line.split_once(' ').unwrap();
        match guard.check() {
            Err(lost) if verb == "write" => println!("\nlost {}", lost.cause),
            _ => println!("\nanswered {}", write(&store, "A", guard.token(), row).0),
        }
    }
}

struct ProcessA {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ProcessA {
    fn start(server: &Server, store: &Store) -> ProcessA {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process_of_the_story", "--nocapture"])
            .env(SERVER, &server.address)
            .env(STORE, &store.address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        ProcessA { input: child.stdin.take().unwrap(), child, lines }
    }

    /// The rest of its next line, which has to begin so.
    #[track_caller]
    fn hear(&mut self, expected: &str) -> String {
        loop {
            let line = self.lines.next().expect("it says something").unwrap();
            // The test harness says something, too.
            if ["acquired ", "answered ", "lost "].iter().any(|word| line.starts_with(word)) {
                return line.strip_prefix(expected).unwrap_or_else(|| panic!("{line}")).to_owned();
            }
        }
    }

    fn tell(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for ProcessA {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Store {
    child: Child,
    address: String,
}

impl Store {
    fn start(directory: &Path) -> Store {
        let mut child = support::tenure()
            .args(["datastore", "--listen", "127.0.0.1:0", "--data-dir", directory.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = loop {
            let line: Value = serde_json::from_str(&lines.next().expect("it starts")).unwrap();
            if line["message"] == "ready" {
                break line["address"].as_str().unwrap().to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Store { child, address }
    }

    fn row(&self) -> String {
        request(&self.address, "GET", &format!("/read?key={LOCK}"), "").1["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(store: &str, client: &str, token: i64, row: &str) -> (u16, Value) {
    let body = json!({"clientID": client, "fencingToken": {"key": LOCK, "value": token}, "data": row});
    request(store, "POST", "/write", &body.to_string())
}

fn request(store: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(store).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap())
}

/// The story up to where A is about to go on: it is stopped, and B has the lock and has written.
async fn until_b_has_written(directory: &Path) -> (Server, Store, ProcessA, tenure_client::LockGuard) {
    let server = Server::start_in(&directory.join("data"));
    let store = Store::start(&directory.join("store"));
    let mut first = ProcessA::start(&server, &store);
    let token: i64 = first.hear("acquired ").parse().unwrap();
    first.tell("write 1 by A");
    assert_eq!(first.hear("answered "), "200");
    assert_eq!(store.row(), "1 by A");
    first.signal(Signal::STOP);

    let client = Client::connect(&server.address).await.unwrap();
    let waiting = client.lock(LOCK).holder("B").acquire();
    let second = tokio::time::timeout(PATIENCE, waiting).await.expect("A's lease ends").unwrap();
    assert!(second.token() > token);
    second.check().unwrap();
    assert_eq!(write(&store.address, "B", second.token(), "2 by B").0, 200);
    (server, store, first, second)
}

#[tokio::test]
async fn a_process_that_was_stopped_learns_of_the_loss_before_it_can_write() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, store, mut first, second) = until_b_has_written(directory.path()).await;
    // What it is to do next is there before it goes on.
    first.tell("write 3 by A");
    first.signal(Signal::CONT);
    let cause = first.hear("lost ");
    assert!(["stopped", "confirmed", "expired"].iter().any(|word| cause.contains(word)), "{cause}");
    first.tell("write 4 by A");
    first.hear("lost ");
    assert_eq!(store.row(), "2 by B");
    second.check().unwrap();
    second.release().await.unwrap();
}

#[tokio::test]
async fn the_forced_write_of_a_stale_holder_is_refused_by_the_data_store() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, store, mut first, second) = until_b_has_written(directory.path()).await;
    first.tell("force 3 by A");
    first.signal(Signal::CONT);
    assert_eq!(first.hear("answered "), "409");
    assert_eq!(store.row(), "2 by B");
    assert_eq!(write(&store.address, "B", second.token(), "4 by B").0, 200, "the holder goes on");
    second.release().await.unwrap();
}
