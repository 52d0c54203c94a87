//! `tenure dev`: a cluster whose members are killed, paused and started by a key, or by a line without a terminal.

mod shell;
mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use shell::{Running, Said, run, tenure};
use support::{is_dead, own_ports, until};

struct Dev {
    running: Running,
    client_port: u16,
}

/// A row of what `s` shows.
struct Row {
    role: String,
    id: String,
}

const MEMBERS: u16 = 3;

fn flags(client_port: u16, peer_port: u16, data: &Path) -> Vec<String> {
    let flags = ["dev", "--client-port", &client_port.to_string(), "--peer-port", &peer_port.to_string(), "--data-dir"];
    flags.into_iter().chain(data.to_str()).map(str::to_owned).collect()
}

impl Dev {
    fn start(client_port: u16, peer_port: u16, data: &Path) -> Dev {
        let mut command = support::tenure();
        command.args(flags(client_port, peer_port, data));
        let mut dev = Dev { running: Running::start(command), client_port };
        dev.until("all are there", |rows| {
            let count = |role: &str| rows.iter().filter(|row| row.role == role).count();
            count("leader") == 1 && count("follower") == 2
        });
        dev
    }

    fn rows(&mut self) -> Vec<Row> {
        self.running.tell("s");
        while !self.running.line().starts_with("MEMBER") {}
        let row = |line: String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Row { role: words[2].to_owned(), id: words[words.len() - 1].to_owned() }
        };
        (0..MEMBERS).map(|_| row(self.running.line())).collect()
    }

    fn until(&mut self, what: &str, condition: impl Fn(&[Row]) -> bool) -> Vec<Row> {
        let mut rows = Vec::new();
        until(what, || {
            rows = self.rows();
            condition(&rows)
        });
        rows
    }

    fn ids(&mut self) -> Vec<String> {
        let ids: Vec<String> = self.rows().into_iter().map(|row| row.id).collect();
        assert!(ids.iter().all(|id| !is_dead(id)), "{ids:?}");
        ids
    }

    fn find(&mut self, role: &str) -> usize {
        self.until("somebody has the role", |rows| rows.iter().any(|row| row.role == role))
            .iter()
            .position(|row| row.role == role)
            .unwrap()
    }

    fn address(&self, index: usize) -> String {
        format!("127.0.0.1:{}", usize::from(self.client_port) + index)
    }

    fn endpoints(&self) -> String {
        (0..usize::from(MEMBERS)).map(|index| self.address(index)).collect::<Vec<_>>().join(",")
    }

    fn write(&self, key: &str) {
        self.write_at(&self.endpoints(), key);
    }

    fn write_at(&self, endpoints: &str, key: &str) {
        let put = || tenure(&["--endpoints", endpoints, "put", key, "written"]);
        until("a write succeeds", || put().code == Some(0));
    }

    fn has(&self, index: usize, key: &str) -> bool {
        let said = tenure(&["--endpoints", &self.address(index), "get", key, "--value-only"]);
        said.code == Some(0) && said.stdout == "written\n"
    }
}

fn until_all_dead(ids: &[String]) {
    until("no member is left", || ids.iter().all(|id| is_dead(id)));
}

#[test]
fn writes_go_on_while_members_are_killed_and_paused_and_data_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("dev");
    let (client_port, peer_port) = (own_ports(MEMBERS), own_ports(MEMBERS));
    let mut dev = Dev::start(client_port, peer_port, &data);
    dev.write("before");
    assert!((0..3).all(|index| dev.has(index, "before")));

    let leader = dev.find("leader");
    let killed = dev.ids()[leader].clone();
    dev.running.tell(&(leader + 1).to_string());
    dev.until("it is down", |rows| rows[leader].role == "down" && rows[leader].id == "-");
    assert!(is_dead(&killed));
    dev.write("without one");
    assert_ne!(dev.find("leader"), leader);
    dev.running.tell(&(leader + 1).to_string());
    dev.until("it is back", |rows| rows[leader].role == "follower");
    until("it has caught up", || dev.has(leader, "without one"));

    let paused = dev.find("follower");
    let id = dev.ids()[paused].clone();
    dev.running.tell(&format!("p{}", paused + 1));
    dev.until("it is paused", |rows| rows[paused].role == "paused");
    let is_stopped = || std::fs::read_to_string(format!("/proc/{id}/status")).unwrap().contains("T (stopped)");
    until("the system says so, too", is_stopped);
    // Not at the one that is asleep: a client does not repeat a put elsewhere whose outcome it does not know.
    dev.write_at(&dev.address((paused + 1) % 3), "with one asleep");
    dev.running.tell(&format!("p{}", paused + 1));
    dev.until("it goes on", |rows| rows[paused].role == "follower");
    until("it has caught up", || dev.has(paused, "with one asleep"));

    let ids = dev.ids();
    dev.running.tell("q");
    assert_eq!(dev.running.code(), Some(0));
    assert!(ids.iter().all(|id| is_dead(id)), "none is left when it has ended");
    let said = dev.running.stderr();
    assert!(said.contains(&format!("tenure --endpoints {} status", dev.endpoints())), "{said}");
    assert!(!said.contains("killed"), "all ended by themselves: {said}");

    let mut dev = Dev::start(client_port, peer_port, &data);
    assert!((0..3).all(|index| dev.has(index, "with one asleep")));
    dev.running.tell("q");
    assert_eq!(dev.running.code(), Some(0));

    let mut command = support::tenure();
    command.args(flags(client_port, own_ports(MEMBERS), &data));
    run(command, "q\n").failed_for(1, &["--peer-port", &peer_port.to_string(), "--data-dir"]);
}

#[test]
fn however_it_ends_no_member_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    for (name, signal, code) in [("a", Signal::INT, Some(0)), ("b", Signal::TERM, Some(0)), ("c", Signal::KILL, None)] {
        let mut dev = Dev::start(own_ports(MEMBERS), own_ports(MEMBERS), &directory.path().join(name));
        let ids = dev.ids();
        dev.running.tell("p2");
        dev.until("one is paused", |rows| rows[1].role == "paused");
        dev.running.signal(signal);
        assert_eq!(dev.running.code(), code, "{signal:?}");
        until_all_dead(&ids);
    }
}

#[test]
fn a_member_that_ends_by_itself_is_told_and_can_be_started() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(own_ports(MEMBERS), own_ports(MEMBERS), &directory.path().join("dev"));
    let id = dev.ids()[2].parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
    dev.until("it is down", |rows| rows[2].role == "down");
    for line in ["p3", "9", "x", "?", "3"] {
        dev.running.tell(line);
    }
    dev.until("it is back", |rows| matches!(rows[2].role.as_str(), "leader" | "follower"));
    dev.running.tell("q");
    assert_eq!(dev.running.code(), Some(0));
    let said = dev.running.stderr();
    for expected in ["n3  ended: signal 9", "n3 is down: 3 starts it", "no member 9", "'x'", "Keys:"] {
        assert!(said.contains(expected), "{expected} is not in: {said}");
    }
}

#[test]
fn keys_work_at_once_on_a_terminal_which_is_given_back_as_it_was() {
    // From util-linux: runs it on a terminal of its own.
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not tested: there is no script(1) here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let flags = flags(own_ports(MEMBERS), own_ports(MEMBERS), &directory.path().join("dev")).join(" ");
    // A Ctrl-C reaches the shell as well, which need not be one that waits for what it runs.
    let session = format!("trap : INT; {} {flags}; echo code $?; stty -a", env!("CARGO_BIN_EXE_tenure"));
    for end in ["q", "\x03"] {
        let mut command = Command::new("script");
        command.args(["-qec", &session, "/dev/null"]);
        let mut terminal = Running::start(command);
        while !terminal.line().trim().starts_with("keys") {}
        // Delete, an arrow, F5, Alt-3 and a mouse report: keys that mean nothing, whatever bytes they are made of.
        terminal.press("\x1b[3~\x1b[A\x1bOB\x1b[15~\x1b3\x1b[<0;12;3M");
        terminal.press("s");
        let mut said = String::new();
        while !said.starts_with("MEMBER") {
            said = terminal.line();
            assert!(!said.contains("down") && !said.contains("means nothing"), "{said}");
        }
        for _ in 0..MEMBERS {
            let row = terminal.line();
            assert!(!row.contains("down"), "{row}");
        }
        terminal.press(end);
        while terminal.line().trim() != "code 0" {}
        let mut modes = terminal.line();
        while !modes.contains("icanon") {
            modes = terminal.line();
        }
        assert!(!modes.contains("-icanon"), "{modes}");
    }
}

#[test]
fn mistakes_are_one_sentence_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("dev");
    let (clients, peers) = (own_ports(MEMBERS), own_ports(MEMBERS));
    let refused = |clients: u16, peers: u16, more: &[&str], reasons: &[&str]| {
        let mut command = support::tenure();
        command.args(flags(clients, peers, &data)).args(more);
        run(command, "q\n").failed_for(1, reasons);
        assert!(!data.exists(), "nothing is made for a mistake");
    };
    refused(clients, clients + 1, &[], &["overlap", "--client-port", "--peer-port"]);
    refused(65_535, peers, &[], &["--client-port 65535"]);
    refused(clients, peers, &["--endpoints", "a:1"], &["--endpoints", "--client-port"]);
    for (port, flag) in [(clients + 1, "--client-port"), (peers + 2, "--peer-port")] {
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        refused(clients, peers, &[], &[&format!("127.0.0.1:{port}"), "in use", flag]);
    }
    tenure(&["dev", "--members", "0"]).failed(2);

    // What only the member itself can find out.
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("n2"), "no directory").unwrap();
    let mut command = support::tenure();
    command.args(flags(clients, peers, &data));
    // The others may have said something before.
    let Said { code, stderr, .. } = run(command, "");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("error: n2 cannot start: ") && stderr.contains("not a directory"), "{stderr}");
}
