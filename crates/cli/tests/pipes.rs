//! Logs and notes that cannot be written are dropped: they never end a server, nor spoil what a verb does.

mod shell;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use shell::tenure;
use support::place::Place;
use support::{own_address, own_ports, until};

/// A child that is killed when it is dropped.
struct Spawned(Child);

impl Spawned {
    fn start(command: &mut Command) -> Spawned {
        Spawned(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn ended_by(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        let mut status = None;
        until("it ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(directory: &Path, address: &str) -> Command {
    let mut command = support::tenure();
    command.args(["serve", "--log-level", "debug", "--listen", address, "--peer-listen", &own_address()]);
    command.arg("--data-dir").arg(directory);
    command
}

#[test]
fn a_member_outlives_the_reader_of_its_log_and_ends_in_order() {
    let (directory, address) = (tempfile::tempdir().unwrap(), own_address());
    let mut member = Spawned::start(&mut serve(directory.path(), &address));
    let mut log = BufReader::new(member.0.stderr.take().unwrap());
    log.read_line(&mut String::new()).unwrap();
    drop(log);
    until("it serves", || tenure(&["--endpoints", &address, "put", "a", "b"]).code == Some(0));
    assert_eq!(tenure(&["--endpoints", &address, "get", "a", "--value-only"]).ok(), "b\n");
    assert_eq!(member.ended_by(Signal::TERM), Some(0));
}

#[test]
fn a_member_whose_log_is_a_full_disk_serves() {
    let (directory, address) = (tempfile::tempdir().unwrap(), own_address());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = serve(directory.path(), &address);
    let mut member = Spawned(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn().unwrap());
    until("it serves", || tenure(&["--endpoints", &address, "put", "a", "b"]).code == Some(0));
    assert_eq!(member.ended_by(Signal::TERM), Some(0));
}

#[test]
fn a_development_cluster_outlives_the_readers_of_its_output() {
    let directory = tempfile::tempdir().unwrap();
    let (clients, peers) = (own_ports(3), own_ports(3));
    let mut command = support::tenure();
    command.args(["dev", "--client-port", &clients.to_string(), "--peer-port", &peers.to_string()]);
    let mut dev = Spawned::start(command.arg("--data-dir").arg(directory.path().join("dev")));
    drop((dev.0.stdout.take(), dev.0.stderr.take()));
    let address = format!("127.0.0.1:{clients}");
    until("it serves", || tenure(&["--endpoints", &address, "put", "a", "b"]).code == Some(0));
    assert_eq!(dev.ended_by(Signal::TERM), Some(0));
}

#[test]
fn a_data_store_outlives_the_reader_of_its_log() {
    let (directory, address) = (tempfile::tempdir().unwrap(), own_address());
    let mut command = support::tenure();
    command.args(["datastore", "--log-level", "debug", "--listen", &address, "--data-dir"]).arg(directory.path());
    let mut store = Spawned::start(&mut command);
    let mut log = BufReader::new(store.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        log.read_line(&mut line).unwrap();
    }
    drop(log);
    until("it answers", || std::net::TcpStream::connect(&address).is_ok());
    assert_eq!(store.ended_by(Signal::TERM), Some(0));
}

#[test]
fn a_verb_whose_reader_has_seen_enough_ends_quietly() {
    let place = Place::start();
    for number in 0..3 {
        place.tenure(&["put", &format!("many/{number}"), &"x".repeat(100_000)]).ok();
    }
    let mut command = place.command(&["get", "--prefix", "many/"]);
    let mut reading = Spawned::start(&mut command);
    drop(reading.0.stdout.take());
    let mut said = String::new();
    reading.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((reading.0.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

#[test]
fn a_note_that_cannot_be_written_does_not_end_a_holder() {
    let place = Place::start();
    // Such a TTL is noted as not failover-safe.
    let mut holder = Spawned::start(&mut place.command(&["exec", "--ttl", "500ms", "a", "--", "cat"]));
    drop(holder.0.stderr.take());
    assert_eq!(holder.0.wait().unwrap().code(), Some(0));
}
