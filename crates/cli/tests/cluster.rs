//! Clusters of real processes: elections, members that die and come back, join and leave.

mod shell;
mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use shell::{Said, tenure};
use support::{Server, own_address};
use tempfile::TempDir;
use tenure_api::etcdserverpb::PutRequest;
use tenure_api::etcdserverpb::kv_client::KvClient;

/// Nothing of a test may wait longer than this.
const PATIENCE: Duration = Duration::from_secs(90);

struct Member {
    name: String,
    peer: String,
    address: String,
    data: PathBuf,
    /// None = it does not run.
    server: Option<Server>,
}

struct Cluster {
    directory: TempDir,
    members: Vec<Member>,
}

impl Member {
    fn new(directory: &Path, name: &str) -> Member {
        let data = directory.join(name);
        Member { name: name.to_owned(), peer: own_address(), address: own_address(), data, server: None }
    }

    fn start(&mut self, flags: &[&str]) {
        let flags = [&["--peer-listen", &self.peer], flags].concat();
        self.server = Some(Server::spawn(&self.data, self.address.clone(), &flags));
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("it runs")
    }

    fn wait_until_ready(&mut self) {
        let server = self.server.as_mut().expect("it runs");
        assert!(server.is_ready(), "{} did not start:\n{}", self.name, server.stderr());
    }

    fn kill(&mut self) {
        self.server.take().expect("it runs").kill();
    }

    fn run(&self, arguments: &[&str]) -> Said {
        tenure(&[arguments, &["--endpoints", &self.address, "--timeout", "20s"]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Option<Value> {
        let said = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&said.stdout).ok()
    }

    /// Waits for it to end by itself, with this code; gives what it said.
    fn ended(&mut self, expected: i32) -> String {
        let code = self.server().wait();
        let said = self.server().stderr();
        assert_eq!(code, Some(expected), "{said}");
        self.server = None;
        said
    }
}

impl Cluster {
    /// Started, all of them ready.
    fn start(size: usize) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<String> = (1..=size).map(|number| format!("n{number}")).collect();
        let mut members: Vec<Member> = names.iter().map(|name| Member::new(directory.path(), name)).collect();
        let list: Vec<String> = members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
        let list = list.join(",");
        for (member, name) in members.iter_mut().zip(&names) {
            member.start(&["--name", name, "--cluster", &list]);
        }
        let mut cluster = Cluster { directory, members };
        cluster.members.iter_mut().for_each(Member::wait_until_ready);
        cluster
    }

    fn list(&self) -> String {
        let entries: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
        entries.join(",")
    }

    /// Where the leader stands in the list of members, once there is one that runs.
    fn leader(&self) -> usize {
        eventually("somebody leads", || {
            self.members.iter().position(|member| {
                let status = || member.json(&["status"]);
                let is_leader = |status: Value| {
                    let mut endpoints = status["endpoints"].as_array().into_iter().flatten();
                    endpoints.any(|one| one["endpoint"] == member.address.as_str() && one["role"] == "leader")
                };
                member.server.is_some() && status().is_some_and(is_leader)
            })
        })
    }

    fn follower(&self) -> usize {
        let leader = self.leader();
        (0..self.members.len()).find(|index| *index != leader && self.members[*index].server.is_some()).unwrap()
    }

    /// The members' roles by name, as one of them lists them.
    fn role(&self, at: usize, name: &str) -> Option<String> {
        let listed = self.members[at].json(&["member", "list"])?;
        let member = listed["members"].as_array()?.iter().find(|member| member["name"] == name)?;
        Some(member["role"].as_str()?.to_owned())
    }
}

#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("not so: {what}");
}

#[test]
fn what_is_put_at_a_follower_is_read_at_every_member() {
    let cluster = Cluster::start(3);
    let follower = cluster.follower();
    cluster.members[follower].run(&["put", "greeting", "hello"]).ok();
    for member in &cluster.members {
        assert_eq!(member.run(&["get", "greeting", "--value-only"]).ok(), "hello\n", "at {}", member.name);
    }
    // One endpoint is enough to see all of them.
    eventually("all are listed, and one of them leads", || {
        let status = cluster.members[follower].json(&["status"])?;
        let endpoints = status["endpoints"].as_array()?;
        let leaders = endpoints.iter().filter(|one| one["role"] == "leader").count();
        let are_well = endpoints.iter().all(|one| one["health"] == "healthy" && one["lag"] == 0);
        (endpoints.len() == 3 && leaders == 1 && are_well).then_some(())
    });
}

#[test]
fn status_shows_who_is_gone_though_nobody_leads() {
    let mut cluster = Cluster::start(3);
    cluster.leader();
    cluster.members[1].kill();
    cluster.members[2].kill();
    eventually("one is left, without a leader, and the others are named", || {
        let status = cluster.members[0].json(&["status"])?;
        let said = |one: &Value, field: &str| one[field].as_str().map(str::to_owned);
        let endpoints = status["endpoints"].as_array()?;
        let left =
            endpoints.iter().find(|one| said(one, "name").is_some_and(|name| name == cluster.members[0].name))?;
        let gone = endpoints.iter().filter(|one| one["role"] == "unreachable").count();
        (gone == 2 && left["health"] == "no leader").then_some(())
    });
}

#[test]
fn who_waits_for_a_leader_in_vain_is_told_so_before_its_time_is_up() {
    let mut cluster = Cluster::start(3);
    cluster.leader();
    cluster.members[1].kill();
    cluster.members[2].kill();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = KvClient::new(cluster.members[0].server().channel().await);
        // The first may go to a leader that has not noticed yet that it is one no more.
        loop {
            let mut request = tonic::Request::new(PutRequest { key: "a".into(), ..PutRequest::default() });
            request.set_timeout(Duration::from_secs(2));
            let refused = client.put(request).await.unwrap_err();
            if refused.message().contains("no leader") {
                return assert_eq!(refused.code(), tonic::Code::Unavailable);
            }
        }
    });
}

#[test]
fn another_leads_when_the_leader_is_killed_and_it_comes_back_with_nothing_but_its_data() {
    let mut cluster = Cluster::start(3);
    let dead = cluster.leader();
    cluster.members[dead].run(&["put", "before", "1"]).ok();
    cluster.members[dead].kill();
    let leader = cluster.leader();
    assert_ne!(leader, dead);
    eventually("the rest goes on", || {
        (cluster.members[leader].run(&["put", "after", "2"]).code == Some(0)).then_some(())
    });
    cluster.members[dead].start(&[]);
    cluster.members[dead].wait_until_ready();
    for (key, value) in [("before", "1\n"), ("after", "2\n")] {
        assert_eq!(cluster.members[dead].run(&["get", key, "--value-only"]).ok(), value);
    }
    let name = cluster.members[dead].name.clone();
    assert!(cluster.role(leader, &name).is_some(), "it has kept its name");
}

#[test]
fn its_data_directory_alone_tells_a_member_who_and_where_it_is() {
    let mut cluster = Cluster::start(3);
    let restarted = cluster.follower();
    cluster.members[0].run(&["put", "a", "b"]).ok();
    let Member { name, data, address, .. } = &cluster.members[restarted];
    let (name, data, address) = (name.clone(), data.clone(), address.clone());
    let listed = |cluster: &Cluster| {
        let listed = cluster.members[0].json(&["member", "list"])?;
        listed["members"].as_array()?.iter().find(|member| member["name"] == name.as_str()).cloned()
    };
    // It can remember only what it has heard of itself: that goes through the log like everything else.
    eventually("it knows where clients find it", || {
        let known = cluster.members[restarted].json(&["member", "list"])?;
        let own = known["members"].as_array()?.iter().find(|member| member["name"] == name.as_str())?;
        (!own["client_addresses"].as_array()?.is_empty()).then_some(())
    });
    let before = listed(&cluster).expect("it is listed");
    cluster.members[restarted].kill();
    cluster.members[restarted].server = Some(Server::spawn_as_told(&data, address, &[]));
    cluster.members[restarted].wait_until_ready();
    assert_eq!(cluster.members[restarted].run(&["get", "a", "--value-only"]).ok(), "b\n");
    let after = listed(&cluster).expect("it is listed");
    for field in ["id", "peer_addresses", "client_addresses"] {
        assert_eq!(after[field], before[field]);
    }
    let said = cluster.members[restarted].server().stderr();
    assert!(said.contains(&format!("\"name\":\"{name}\"")), "{said}");
}

#[test]
fn a_peer_that_is_killed_and_comes_back_costs_one_line_each_time() {
    let mut cluster = Cluster::start(3);
    let killed = cluster.follower();
    let lines = |member: &mut Member, of: &str, text: &str| {
        let said = member.server().stderr();
        said.lines().filter(|line| line.contains(&format!("\"peer\":\"{of}\"")) && line.contains(text)).count()
    };
    let name = cluster.members[killed].name.clone();
    let others: Vec<usize> = (0..3).filter(|index| *index != killed).collect();
    for times in 1..=2 {
        cluster.members[killed].kill();
        for other in &others {
            eventually("it is missed", || {
                (lines(&mut cluster.members[*other], &name, "lost a peer") == times).then_some(())
            });
        }
        // Long enough for many tries to reach it.
        std::thread::sleep(Duration::from_secs(3));
        cluster.members[killed].start(&[]);
        cluster.members[killed].wait_until_ready();
        for other in &others {
            let member = &mut cluster.members[*other];
            eventually("it is back", || (lines(member, &name, "connected to a peer") == times + 1).then_some(()));
            assert_eq!(lines(member, &name, ""), 2 * times + 1, "nothing else is said: {}", member.server().stderr());
            assert!(!member.server().stderr().contains("h2"), "{}", member.server().stderr());
        }
    }
}

#[test]
fn a_fourth_member_joins_catches_up_and_votes() {
    let mut cluster = Cluster::start(3);
    for number in 0..20 {
        cluster.members[0].run(&["put", &format!("key/{number}"), "value"]).ok();
    }
    // It may ask anybody.
    let follower = cluster.follower();
    let peer = cluster.members[follower].peer.clone();
    let mut fourth = Member::new(cluster.directory.path(), "n4");
    fourth.start(&["--name", "n4", "--join", &peer]);
    fourth.wait_until_ready();
    cluster.members.push(fourth);
    eventually("it votes", || matches!(cluster.role(0, "n4")?.as_str(), "voter" | "leader").then_some(()));
    assert_eq!(cluster.members[3].run(&["get", "key/", "--prefix", "--count-only"]).ok().trim(), "20");
    cluster.members[3].run(&["put", "by", "n4"]).ok();
    // Four can lose one, whoever it is.
    let dead = cluster.leader();
    cluster.members[dead].kill();
    let leader = cluster.leader();
    eventually("the rest goes on", || {
        (cluster.members[leader].run(&["put", "after", "2"]).code == Some(0)).then_some(())
    });
}

#[test]
fn one_that_was_away_for_long_is_sent_a_snapshot() {
    let mut cluster = Cluster::start(3);
    let away = cluster.follower();
    cluster.members[away].kill();
    let leader = cluster.leader();
    // For one that was heard of within two election timeouts the log is kept.
    std::thread::sleep(Duration::from_secs(3));
    // More than a leader keeps of it for others.
    let value = "x".repeat(512 << 10);
    for number in 0..24 {
        let said = shell::tenure_reading(
            &["put", &format!("large/{number}"), "-", "--endpoints", &cluster.members[leader].address],
            &value,
        );
        said.ok();
    }
    // What was sent to it on trust is dropped when it is not there at the next try.
    std::thread::sleep(Duration::from_secs(2));
    cluster.members[away].start(&[]);
    cluster.members[away].wait_until_ready();
    assert_eq!(cluster.members[away].run(&["get", "large/", "--prefix", "--count-only"]).ok().trim(), "24");
    let log = cluster.members[away].server().stderr();
    assert!(log.contains("received a snapshot from a peer"), "{log}");
    // What it was sent is what it starts from.
    cluster.members[away].kill();
    cluster.members[away].start(&[]);
    cluster.members[away].wait_until_ready();
    assert_eq!(cluster.members[away].run(&["get", "large/", "--prefix", "--count-only"]).ok().trim(), "24");
    let hashes: Vec<u64> = cluster.members.iter().map(|member| hash(&member.address)).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
}

/// Of all keys, as a member has them.
fn hash(address: &str) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = tenure_client::Client::connect(address).await.unwrap();
        // A read that is current first: then it has everything.
        client.get("large/0").await.unwrap();
        u64::from(client.hash(0).await.unwrap().hash)
    })
}

#[test]
fn a_learner_stays_one_until_it_is_promoted() {
    let mut cluster = Cluster::start(1);
    let peer = cluster.members[0].peer.clone();
    cluster.members[0].run(&["put", "a", "b"]).ok();
    let mut learner = Member::new(cluster.directory.path(), "n2");
    learner.start(&["--name", "n2", "--join", &peer, "--learner"]);
    cluster.members.push(learner);
    eventually("it has joined", || (cluster.role(0, "n2")? == "learner").then_some(()));
    eventually("it has caught up", || {
        (cluster.members[1].run(&["get", "a", "--value-only"]).stdout == "b\n").then_some(())
    });
    eventually("it is promoted", || {
        (cluster.members[0].run(&["member", "promote", "n2"]).code == Some(0)).then_some(())
    });
    assert_eq!(cluster.role(0, "n2").unwrap(), "voter");
    let said = cluster.members[0].run(&["member", "promote", "n2"]).failed(1);
    assert!(said.contains("n2 is a voter already"), "{said}");
}

/// What one that was killed between joining and voting leaves behind is a learner with that note.
#[test]
fn one_that_ended_before_it_could_vote_goes_on_to_ask_for_it() {
    let mut cluster = Cluster::start(1);
    let peer = cluster.members[0].peer.clone();
    let mut joining = Member::new(cluster.directory.path(), "n2");
    joining.start(&["--name", "n2", "--join", &peer, "--learner"]);
    cluster.members.push(joining);
    eventually("it has joined", || (cluster.members[1].run(&["put", "a", "b"]).code == Some(0)).then_some(()));
    assert_eq!(cluster.role(0, "n2").unwrap(), "learner");
    let note = cluster.members[1].data.join("CANDIDATE");
    cluster.members[1].kill();
    cluster.members[1].start(&[]);
    eventually("it is back", || (cluster.members[1].run(&["put", "a", "b"]).code == Some(0)).then_some(()));
    assert_eq!(cluster.role(0, "n2").unwrap(), "learner", "without the note it stays one");
    cluster.members[1].kill();
    std::fs::write(&note, "").unwrap();
    cluster.members[1].start(&[]);
    eventually("it votes", || (cluster.role(0, "n2")? == "voter").then_some(()));
    eventually("the note is gone", || (!note.exists()).then_some(()));
}

/// It would begin a cluster of its own, though others list it already.
#[test]
fn one_that_ended_while_it_joined_does_not_begin_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut joining = Member::new(directory.path(), "n2");
    std::fs::create_dir(&joining.data).unwrap();
    std::fs::write(joining.data.join("CANDIDATE"), "").unwrap();
    joining.start(&[]);
    let said = joining.ended(1);
    assert!(said.contains("start it with --join again"), "{said}");
}

#[test]
fn a_member_that_is_removed_stops_and_says_so() {
    let mut cluster = Cluster::start(3);
    let (leader, gone) = (cluster.leader(), cluster.follower());
    let name = cluster.members[gone].name.clone();
    cluster.members[leader].run(&["member", "remove", &name]).ok();
    let said = cluster.members[gone].ended(0);
    assert!(said.contains("this member was removed from the cluster"), "{said}");
    assert_eq!(cluster.role(leader, &name), None);
    cluster.members[leader].run(&["put", "a", "b"]).ok();
    // Neither with its flags nor without does it come back.
    cluster.members[gone].start(&[]);
    let said = cluster.members[gone].ended(0);
    assert!(said.contains("this member was removed from the cluster"), "{said}");
}

#[test]
fn one_that_was_down_when_it_was_removed_is_told_when_it_comes_back() {
    let mut cluster = Cluster::start(3);
    let gone = cluster.follower();
    let name = cluster.members[gone].name.clone();
    cluster.members[gone].kill();
    let leader = cluster.leader();
    cluster.members[leader].run(&["member", "remove", &name]).ok();
    cluster.members[gone].start(&[]);
    let said = cluster.members[gone].ended(0);
    assert!(said.contains("this member was removed from the cluster"), "{said}");
}

#[test]
fn a_leader_that_leaves_hands_over_first() {
    let mut cluster = Cluster::start(3);
    let gone = cluster.leader();
    let said = cluster.members[gone].run(&["member", "leave"]).ok();
    assert!(said.contains("left"), "{said}");
    cluster.members[gone].ended(0);
    let leader = cluster.leader();
    cluster.members[leader].run(&["put", "a", "b"]).ok();
    let name = cluster.members[gone].name.clone();
    assert_eq!(cluster.role(leader, &name), None);
}

#[test]
fn leadership_goes_where_it_is_sent() {
    let cluster = Cluster::start(3);
    let follower = cluster.follower();
    let name = &cluster.members[follower].name;
    // Asked for at any member.
    eventually("it leads", || {
        // On a busy machine it may lose leadership before it is looked at.
        let said = cluster.members[(follower + 1) % 3].run(&["member", "transfer", name]);
        (said.code == Some(0) && cluster.leader() == follower).then_some(())
    });
    let said = cluster.members[0].run(&["member", "transfer", "nobody"]).failed(1);
    assert!(said.contains("there is no member nobody"), "{said}");
}

#[test]
fn a_member_that_lost_its_disk_is_refused_under_its_old_name() {
    let mut cluster = Cluster::start(3);
    let wiped = cluster.follower();
    let (name, list) = (cluster.members[wiped].name.clone(), cluster.list());
    cluster.members[wiped].kill();
    std::fs::remove_dir_all(&cluster.members[wiped].data).unwrap();
    cluster.members[wiped].start(&["--name", &name, "--cluster", &list]);
    let said = cluster.members[wiped].ended(1);
    assert!(said.contains("known with another data directory"), "{said}");
    // As a new member, at the same address, it is welcome.
    let leader = cluster.leader();
    cluster.members[leader].run(&["member", "remove", &name]).ok();
    std::fs::remove_dir_all(&cluster.members[wiped].data).unwrap();
    let peer = cluster.members[leader].peer.clone();
    cluster.members[wiped].start(&["--name", &name, "--join", &peer]);
    cluster.members[wiped].wait_until_ready();
    eventually("it votes", || matches!(cluster.role(leader, &name)?.as_str(), "voter" | "leader").then_some(()));
}

#[test]
fn mistakes_are_told_in_one_sentence() {
    let one = Cluster::start(1);
    let mut other = Cluster::start(1);
    // Somebody else's cluster.
    let peer = one.members[0].peer.clone();
    other.members[0].kill();
    other.members[0].start(&["--join", &peer]);
    let said = other.members[0].ended(1);
    assert!(said.contains("belongs to cluster") && said.contains(&peer), "{said}");
    // A name that is taken.
    let mut same = Member::new(one.directory.path(), "again");
    same.start(&["--name", "n1", "--join", &peer]);
    let said = same.ended(1);
    assert!(said.contains("a member named n1 exists already"), "{said}");
    // The port for clients instead of that for peers.
    let mut astray = Member::new(one.directory.path(), "astray");
    astray.start(&["--name", "n2", "--join", &one.members[0].address]);
    let said = astray.ended(1);
    assert!(said.contains("no member listens for others there") && said.contains("2380"), "{said}");
    // The last one cannot go, by no means.
    let said = one.members[0].run(&["member", "leave"]).failed(1);
    assert!(said.contains("the cluster would have no voter left"), "{said}");
    let said = one.members[0].run(&["member", "remove", "n1", "--force"]).failed(1);
    assert!(said.contains("the cluster would have no voter left"), "{said}");
}

#[test]
fn whoever_is_needed_for_a_majority_is_told_at_once_that_it_cannot_go() {
    let mut cluster = Cluster::start(3);
    let (leader, gone) = (cluster.leader(), cluster.follower());
    let stays = 3 - leader - gone;
    cluster.members[gone].kill();
    // One that was heard of within two election timeouts counts as there.
    std::thread::sleep(Duration::from_secs(3));
    let address = cluster.members[stays].address.clone();
    // With the patience that a person at a terminal has, which is less than a member's.
    let said = tenure(&["member", "leave", "--endpoints", &address, "--timeout", "5s"]).failed(1);
    assert!(said.contains("the cluster would lose its quorum") && said.contains("--force"), "{said}");
    let name = cluster.members[stays].name.clone();
    let said = cluster.members[leader].run(&["member", "remove", &name]).failed(1);
    assert!(said.contains("Start one of them first. Use --force to do it anyway."), "{said}");
    // Who is gone may go.
    let name = cluster.members[gone].name.clone();
    cluster.members[stays].run(&["member", "remove", &name]).ok();
}

#[test]
fn the_log_tells_who_leads_and_that_nobody_does() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let name = cluster.members[leader].name.clone();
    let follower = cluster.follower();
    let said = |member: &mut Member, text: &str| member.server().stderr().contains(text).then_some(());
    eventually("the leader says so", || said(&mut cluster.members[leader], "this member leads"));
    eventually("a follower names it", || {
        said(&mut cluster.members[follower], "\"message\":\"another member leads\"")?;
        said(&mut cluster.members[follower], &format!("\"leader\":\"{name}\""))
    });
    let other = 3 - leader - follower;
    cluster.members[leader].kill();
    cluster.members[other].kill();
    eventually("who is left says that nobody leads", || said(&mut cluster.members[follower], "no leader: too few"));
    // Who belongs to the cluster can be seen all the same.
    let listed = cluster.members[follower].run(&["member", "list"]);
    assert!(listed.stderr.contains("the cluster has no leader"), "{}", listed.stderr);
    assert_eq!(listed.stdout.lines().count(), 4, "{}", listed.stdout);
}
