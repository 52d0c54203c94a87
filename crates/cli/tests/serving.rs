//! The life of `tenure serve` as an operator meets it: start, readiness, mistakes, the end.

mod shell;
mod support;

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use shell::tenure;
use support::{Server, own_address};

#[test]
fn it_stops_cleanly_on_a_signal_and_keeps_what_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = Server::start_in(&data);
    tenure(&["put", "a", "b", "--endpoints", &server.address]).ok();
    assert_eq!(server.terminate(), Some(0));
    let log = server.stderr();
    assert!(log.contains("\"ready\"") && log.contains("\"stopped\""), "{log}");
    let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(log.lines().all(is_json), "away from a terminal the log is JSON: {log}");
    let server = Server::start_in(&data);
    assert_eq!(tenure(&["get", "a", "--value-only", "--endpoints", &server.address]).ok(), "b\n");
}

/// Kernels before 4.19 do not tell.
#[cfg(target_os = "linux")]
#[test]
fn it_takes_memory_in_small_pages() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_in(directory.path());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let told = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(told.is_none_or(|enabled| enabled.trim() == "0"), "{status}");
}

#[test]
fn mistakes_at_start_are_one_sentence_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start_in(&data);
    let (data, other) = (data.to_str().unwrap(), directory.path().join("other"));
    let other = other.to_str().unwrap();
    let (free, peer) = (own_address(), own_address());
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    let file = foreign.join("thesis.txt");
    for (flags, reasons) in [
        (&["--listen", &server.address, "--data-dir", other][..], &["already in use", "--listen"][..]),
        (&["--listen", &free, "--data-dir", data], &["in use by another process", "--data-dir"]),
        (&["--listen", &free, "--data-dir", foreign.to_str().unwrap()], &["thesis.txt", "choose another"]),
        (&["--listen", &free, "--data-dir", file.to_str().unwrap()], &["not a directory", "--data-dir"]),
        (&["--listen", "0.0.0.0:0", "--data-dir", other], &["--insecure"]),
        (&["--listen", &free, "--data-dir", other, "--log-level", "loud"], &["loud", "debug"]),
        (&["--listen", &free, "--data-dir", other, "--endpoints", "a:1"], &["--endpoints", "--listen"]),
        (&["--listen", &free, "--data-dir", other, "--timeout", "1s"], &["--timeout", "--listen"]),
        (&["--listen", &free, "--data-dir", other, "-o", "json"], &["--output", "--listen"]),
        (&["--listen", &free, "--data-dir", other, "--name", "a=b"], &["a=b"]),
    ] {
        tenure(&[&["serve", "--peer-listen", &peer][..], flags].concat()).failed_for(1, reasons);
    }
}

#[test]
fn settings_come_from_flags_then_environment_then_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.toml");
    let peer = own_address();
    let text = format!("data-dir = \"{}\"\npeer-listen = \"{peer}\"\nnmae = \"typo\"\n", directory.path().display());
    std::fs::write(&file, text).unwrap();
    let said = tenure(&["serve", "--config", file.to_str().unwrap()]).failed(1);
    assert!(said.contains("nmae"), "{said}");

    std::fs::write(&file, "name = \"from-file\"\nquota = \"1GiB\"\n[client]\ntimeout = \"1s\"\n").unwrap();
    let server = Server::start_with(&directory.path().join("data"), &["--config", file.to_str().unwrap()]);
    let log = server.stderr();
    assert!(log.contains("from-file"), "{log}");
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = support::tenure()
        .arg("serve")
        .args(["--data-dir", directory.path().join("data").to_str().unwrap()])
        .args(["--listen", "127.0.0.1:0", "--peer-listen", &own_address()])
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let received = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(received(), "READY=1");
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    assert_eq!(received(), "STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
