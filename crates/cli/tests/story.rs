//! The story that locks with leases are told by: A holds the lock and is stopped for longer than its
//! lease, B gets the lock and writes, A goes on. Three processes and a fenced data store, all real.

mod shell;
mod support;

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use shell::Running;
use support::store::{self, Store};
use support::{PATIENCE, Server};
use tenure_client::{Client, Durations};

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
            _ => println!("\nanswered {}", write(&store, "A", guard.token(), row)),
        }
    }
}

struct ProcessA(Running);

impl ProcessA {
    fn start(server: &Server, store: &Store) -> ProcessA {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "the_other_process_of_the_story", "--nocapture"])
            .env(SERVER, &server.address)
            .env(STORE, &store.address);
        ProcessA(Running::start(command))
    }

    /// The rest of its next line, which has to begin so.
    #[track_caller]
    fn hear(&mut self, expected: &str) -> String {
        loop {
            let line = self.0.line();
            // The test harness says something, too.
            if ["acquired ", "answered ", "lost "].iter().any(|word| line.starts_with(word)) {
                return line.strip_prefix(expected).unwrap_or_else(|| panic!("{line}")).to_owned();
            }
        }
    }

    fn tell(&mut self, words: &str) {
        self.0.tell(words);
    }

    fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
}

fn write(store: &str, client: &str, token: i64, row: &str) -> u16 {
    store::write(store, client, LOCK, token, row).expect("the store answers").0
}

/// The story up to where A is about to go on: it is stopped, and B has the lock and has written.
async fn until_b_has_written(directory: &Path) -> (Server, Store, ProcessA, tenure_client::LockGuard) {
    let server = Server::start_in(&directory.join("data"));
    let store = Store::start(&directory.join("store"), &[]);
    let mut first = ProcessA::start(&server, &store);
    let token: i64 = first.hear("acquired ").parse().unwrap();
    first.tell("write 1 by A");
    assert_eq!(first.hear("answered "), "200");
    assert_eq!(store.data(LOCK).1, "1 by A");
    first.signal(Signal::STOP);

    let client = Client::connect(&server.address).await.unwrap();
    let waiting = client.lock(LOCK).holder("B").acquire();
    let second = tokio::time::timeout(PATIENCE, waiting).await.expect("A's lease ends").unwrap();
    assert!(second.token() > token);
    second.check().unwrap();
    assert_eq!(write(&store.address, "B", second.token(), "2 by B"), 200);
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
    assert_eq!(store.data(LOCK).1, "2 by B");
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
    assert_eq!(store.data(LOCK).1, "2 by B");
    assert_eq!(write(&store.address, "B", second.token(), "4 by B"), 200, "the holder goes on");
    second.release().await.unwrap();
}
