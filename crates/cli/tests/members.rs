//! `tenure member`: a cluster grows and shrinks by the commands that the verb itself prints.

mod shell;
mod support;

use std::process::{Child, Command, Stdio};

use support::cluster::Cluster;
use support::place::Place;
use support::{own_address, own_ports, until};

/// A member that was started by a line of shell; ended when it is dropped.
struct Started(Child);

impl Started {
    fn by(line: &str, directory: &std::path::Path) -> Started {
        let binaries = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        // `exec`, so that the process that is ended is the member.
        shell.args(["-c", &format!("exec {line}")]).env("PATH", path).current_dir(directory);
        Started(shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn roles(place: &Place) -> Vec<String> {
    let members = place.json(&["member", "list"])["members"].as_array().unwrap().clone();
    members.iter().map(|member| member["role"].as_str().unwrap().to_owned()).collect()
}

/// An address with a free port before it: there the printed command lets clients connect.
fn peer_address() -> String {
    format!("127.0.0.1:{}", own_ports(2) + 1)
}

/// The command that `member add` prints.
fn command_in(said: &str) -> String {
    let line = said.lines().map(str::trim).find(|line| line.starts_with("tenure serve"));
    line.unwrap_or_else(|| panic!("no command: {said}")).to_owned()
}

#[test]
fn a_member_alone_is_joined_by_the_command_that_member_add_prints() {
    let place = Place::start();
    let said = place.tenure(&["member", "add", &peer_address()]).ok();
    place.tenure(&["put", "a", "b"]).ok();
    assert_eq!(roles(&place).iter().filter(|role| *role == "leader").count(), 1, "it leads on");
    let _second = Started::by(&command_in(&said), place.directory.path());
    until("the new member votes", || {
        let mut roles = roles(&place);
        roles.sort();
        roles == ["leader", "voter"]
    });
    place.tenure(&["put", "a", "c"]).ok();
}

#[test]
fn a_learner_stays_one_by_the_command_that_member_add_prints() {
    let place = Place::start();
    let said = place.tenure(&["member", "add", "--learner", &peer_address()]).ok();
    let _second = Started::by(&command_in(&said), place.directory.path());
    until("it has started", || roles(&place).iter().any(|role| role == "learner"));
    place.tenure(&["put", "a", "b"]).ok();
    assert!(!roles(&place).iter().any(|role| role == "voter"));
}

#[test]
fn a_member_that_never_came_is_removed_without_force() {
    let place = Place::start();
    let added = place.json(&["member", "add", &own_address()]);
    place.tenure(&["member", "remove", added["id"].as_str().unwrap()]).ok();
    assert_eq!(roles(&place), ["leader"]);
}

#[tokio::test]
async fn members_without_a_leader_are_listed_without_one() {
    let mut cluster = Cluster::start(2);
    let leader = cluster.leader().await;
    cluster.servers[1 - leader].kill();
    let endpoint = cluster.servers[leader].address.clone();
    let listed = shell::tenure(&["--endpoints", &endpoint, "member", "list", "--timeout", "1s"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    if listed.stderr.contains("no leader") {
        assert!(!listed.stdout.contains("leader"), "{}{}", listed.stderr, listed.stdout);
    }
    let mut rounds = 0;
    until("the loss is noticed", || {
        rounds += 1;
        let listed = shell::tenure(&["--endpoints", &endpoint, "member", "list", "--timeout", "1s"]);
        let is_noticed = listed.stderr.contains("no leader");
        assert!(!is_noticed || !listed.stdout.contains("leader"), "{}{}", listed.stderr, listed.stdout);
        is_noticed
    });
}

#[tokio::test]
async fn members_are_listed_in_the_order_of_their_names() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.endpoints();
    let names = |verb: &[&str], list: &str| {
        let said = shell::tenure(&[&["--endpoints", &endpoints, "-o", "json"], verb].concat()).ok();
        let document: serde_json::Value = serde_json::from_str(&said).unwrap();
        let names = document[list].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&["member", "list"], "members"), ["n1", "n2", "n3"]);
    assert_eq!(names(&["status"], "endpoints"), ["n1", "n2", "n3"]);
}

#[tokio::test]
async fn refusals_are_sentences_that_say_what_to_do() {
    let mut cluster = Cluster::start(3);
    let endpoints = cluster.endpoints();
    let leader = cluster.leader().await;
    let gone = (leader + 1) % 3;
    cluster.servers[gone].kill();
    let name = format!("n{}", gone + 1);
    let tenure = |arguments: &[&str]| shell::tenure(&[&["--endpoints", &endpoints], arguments].concat());
    let said = tenure(&["member", "transfer", &name]).failed(1);
    // Until the loss is noticed it is only known that it has not done so in time.
    let sentences = [format!("{name} cannot take over"), format!("{name} has not taken over")];
    assert!(sentences.iter().any(|sentence| said.contains(sentence)), "{said}");
    assert!(!said.contains("transferee"), "{said}");
    let said = tenure(&["member", "promote", "n1"]).failed(1);
    assert!(said.contains("n1 is a voter already"), "{said}");
    let said = tenure(&["member", "add", &cluster.peer(0)]).failed(1);
    assert!(said.contains("has that address already") && !said.contains("Peer URLs"), "{said}");
}
