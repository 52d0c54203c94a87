//! A new cluster begins with what is left of an old one.

mod shell;
mod support;

use shell::Running;
use support::Server;
use support::place::Place;

#[test]
fn a_backup_or_a_stopped_member_begins_a_new_cluster() {
    let mut place = Place::start();
    place.tenure(&["put", "stays", "here"]).ok();
    let mut holding = place.running(&["lock", "deploy", "--ttl", "60s"]);
    let old_token: i64 = holding.line().parse().unwrap();
    place.tenure(&["put", "later", "too"]).ok();
    let backup = place.path("backup.snapshot");
    place.tenure(&["snapshot", "save", &backup]).ok();
    place.tenure(&["put", "after", "the backup"]).ok();
    place.server.kill();
    drop(holding);

    let old = place.path("data");
    for (from, kept) in [(&backup, "here\ntoo\n"), (&old, "here\ntoo\nthe backup\n")] {
        let new = format!("{from}.restored");
        let said = shell::tenure(&["snapshot", "restore", from, "--data-dir", &new]).failed(1);
        assert!(said.contains("--new-cluster") && !std::path::Path::new(&new).exists(), "{said}");
        let said = shell::tenure(&["snapshot", "restore", from, "--data-dir", &new, "--new-cluster"]).ok();
        assert!(said.contains("tenure serve --data-dir") && said.contains("1 leases and 1 keys"), "{said}");
        let few = ["snapshot", "restore", from, "--data-dir", "x", "--new-cluster", "--revisions-beyond", "0"];
        let said = shell::tenure(&few).failed(2);
        assert!(said.contains("--revisions-beyond"), "tokens of then would be issued again: {said}");
        let again = shell::tenure(&["snapshot", "restore", from, "--data-dir", &new, "--new-cluster"]).failed(1);
        assert!(again.contains("a member's already"), "{again}");

        let server = Server::start_in(new.as_ref());
        let tenure = |arguments: &[&str]| shell::tenure(&[arguments, &["--endpoints", &server.address][..]].concat());
        let values = ["stays", "later", "after"].map(|key| tenure(&["get", key, "--value-only"]).stdout);
        assert_eq!(values.concat(), kept);
        let mut command = support::tenure();
        command.args(["lock", "deploy", "--endpoints", &server.address]);
        let mut lock = Running::start(command);
        let token: i64 = lock.line().parse().unwrap();
        assert!(token > old_token + (1 << 30) - 10, "{token} after {old_token}");
        let said = tenure(&["watch", "stays", "--revision", "2"]).failed(1);
        assert!(said.contains("compacted"), "{said}");
    }
}

#[test]
fn what_cannot_be_restored_is_said_to_be_so() {
    let place = Place::start();
    let (running, empty, new) = (place.path("data"), place.path("empty"), place.path("new"));
    std::fs::create_dir(&empty).unwrap();
    let garbage = place.path("garbage");
    std::fs::write(&garbage, [7; 200]).unwrap();
    for (from, reason) in [
        (&running, "in use by another process"),
        (&empty, "no data directory of a member"),
        (&garbage, "is not a snapshot of Tenure"),
        (&place.path("missing"), "cannot open"),
    ] {
        let said = shell::tenure(&["snapshot", "restore", from, "--data-dir", &new, "--new-cluster"]).failed(1);
        assert!(said.contains(reason), "{from}: {said}");
        assert!(!std::path::Path::new(&new).exists(), "nothing is left behind for {from}");
    }
}
