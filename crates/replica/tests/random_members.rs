//! Random schedules in which members come and go, logs are short, and leadership is handed about, with all the
//! faults of `cluster.rs` on top. `REPLICA_SEEDS=from..to` runs other seeds.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use harness::{Disk, config};
use members::{Asked, Cluster};
use rand_chacha::rand_core::RngCore;
use tenure_machine::*;
use tenure_replica::Config;

#[derive(Default, Debug, PartialEq)]
struct Seen {
    made: u64,
    refused: u64,
    removed: u64,
    marks: u64,
    snapshots: u64,
    most_members: usize,
}

#[test]
fn members_come_and_go() {
    let seeds = match std::env::var("REPLICA_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("from..to");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => 0..8,
    };
    let mut total = Seen::default();
    for seed in seeds.clone() {
        let seen = schedule(seed);
        total.made += seen.made;
        total.refused += seen.refused;
        total.removed += seen.removed;
        total.marks += seen.marks;
        total.snapshots += seen.snapshots;
        total.most_members = total.most_members.max(seen.most_members);
    }
    println!("{seeds:?}: {total:?}");
    assert!(total.made > 0 && total.removed > 0 && total.snapshots > 0 && total.most_members > 3, "{total:?}");
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..4 {
        assert_eq!(schedule(seed), schedule(seed), "seed {seed}");
    }
}

struct Run {
    cluster: Cluster,
    next_id: MemberId,
    changes: Vec<u64>,
    removed: u64,
    most_members: usize,
}

fn schedule(seed: u64) -> Seen {
    let config = Config {
        election_min_ms: 100,
        election_max_ms: 200,
        heartbeat_ms: 20,
        call_timeout_ms: 1000,
        log_tail_bytes: 1000,
        catch_up_bytes: if seed.is_multiple_of(3) { 1500 } else { 20_000 },
        ..config(1)
    };
    let mut run =
        Run { cluster: Cluster::new(seed, config), next_id: 4, changes: Vec::new(), removed: 0, most_members: 3 };
    let faults = run.cluster.draw(64);
    for _ in 0..120 {
        run.trouble(faults);
        for _ in 0..run.cluster.draw(5) {
            run.act();
        }
        if run.cluster.percent(25) {
            run.change();
        }
        let millis = run.cluster.draw(80);
        run.cluster.run(millis);
        run.bury();
    }
    run.finish(seed)
}

impl Run {
    fn somebody(&mut self) -> MemberId {
        let members = self.cluster.members();
        members[self.cluster.draw(members.len() as u64) as usize]
    }

    fn trouble(&mut self, faults: u64) {
        let has = |fault: u64| faults & (1 << fault) != 0;
        let (member, other) = (self.somebody(), self.somebody());
        let cluster = &mut self.cluster;
        match cluster.draw(30) {
            0 if has(0) => cluster.isolate(member),
            1 if has(1) => cluster.cut.push((member, other)),
            2 if has(2) => cluster.loss_percent = cluster.draw(25),
            3 if has(3) => cluster.host(member).disk_pace_ms = 1 + cluster.random.next_u64() % 300,
            4 if has(4) => cluster.host(member).paused_until_ms = cluster.now_ms + cluster.random.next_u64() % 800,
            5 if has(5) => cluster.restart(member),
            6 => cluster.stream_ms = 1 + cluster.draw(150),
            7..=13 => cluster.heal(),
            _ => {}
        }
    }

    fn act(&mut self) {
        let member = self.somebody();
        let cluster = &mut self.cluster;
        match cluster.draw(8) {
            0..=2 => drop(cluster.mark(member)),
            3 => drop(cluster.put(member)),
            4 => drop(cluster.get(member)),
            5 => drop(cluster.grant(member, cluster.next_call as LeaseId + 1000)),
            6 => {
                if let Some(lease) = cluster.promised_ms.keys().next_back().copied() {
                    cluster.keep_alive(member, lease);
                    cluster.lock(member, lease);
                }
            }
            _ => {
                let id = member;
                let names = Member {
                    id,
                    name: format!("member {id} {}", cluster.next_call),
                    peer_urls: vec![format!("http://{id}:2380")],
                    client_urls: Vec::new(),
                    learner: false,
                };
                cluster.propose(member, Asked::Other, Command::Publish(names));
            }
        }
    }

    fn change(&mut self) {
        let (at, some, other) = (self.somebody(), self.somebody(), self.somebody());
        let members = self.cluster.members().len();
        let change = match self.cluster.draw(10) {
            0..=2 if members < 7 => self.newcomer(),
            3..=5 => MemberChange::Promote { id: some },
            6 if members > 2 => MemberChange::Remove { id: some, force: false },
            7 if members > 3 && some != other => {
                let remove = |id| MemberChange::Remove { id, force: false };
                MemberChange::Together(vec![remove(some), MemberChange::Promote { id: other }])
            }
            8 => {
                let to = if self.cluster.percent(50) { Some(some) } else { None };
                self.cluster.transfer(at, to);
                return;
            }
            _ => return,
        };
        let call = self.cluster.change(at, change);
        self.changes.push(call);
    }

    fn newcomer(&mut self) -> MemberChange {
        let id = self.next_id;
        self.next_id += 1;
        self.cluster.start(id, Disk::joining());
        let peer_urls = vec![format!("http://{id}:2380")];
        let learner = self.cluster.percent(70);
        let member = Member { id, name: String::new(), peer_urls, client_urls: Vec::new(), learner };
        MemberChange::Add { member }
    }

    /// Whoever was told that it was removed stops.
    fn bury(&mut self) {
        let removed: Vec<_> =
            self.cluster.members().into_iter().filter(|member| self.cluster.hosts[member].is_removed).collect();
        for member in removed {
            self.removed += 1;
            self.cluster.stop(member);
        }
        self.most_members = self.most_members.max(self.cluster.members().len());
    }

    fn finish(mut self, seed: u64) -> Seen {
        self.cluster.heal();
        self.cluster.stream_ms = 10;
        self.cluster.run(5000);
        self.bury();
        let leader = self.cluster.wait_for_leader();
        let call = self.cluster.mark(leader);
        self.cluster.run_until("a write", |cluster| cluster.outcomes.contains_key(&call));
        let status = self.cluster.status(leader);
        let configured: Vec<_> = status.voters.iter().chain(status.learners.iter()).copied().collect();
        self.cluster.run_until("everybody catches up", |cluster| {
            let leader = cluster.leader().map(|leader| cluster.status(leader).applied_index);
            configured.iter().all(|member| Some(cluster.status(*member).applied_index) == leader)
        });
        for member in &configured {
            let status = self.cluster.status(*member);
            assert_eq!((status.voters.len(), status.learners.len()), {
                let leads = self.cluster.status(leader);
                (leads.voters.len(), leads.learners.len())
            });
            let told = self.cluster.hosts[member].members.as_ref().expect("told");
            assert_eq!(told.len(), configured.len(), "seed {seed}: {told:?}");
        }
        // Those who are left over never came in, or do not know yet that they are out.
        self.cluster.run(3000);
        for member in self.cluster.members().into_iter().filter(|member| !configured.contains(member)) {
            let (host, status) = (&self.cluster.hosts[&member], self.cluster.status(member));
            assert!(host.is_removed || status.applied_index == 0, "seed {seed}: {member} {status:?}");
        }
        self.cluster.check_marks(leader);
        let is_made = |call: &&u64| self.cluster.outcomes.get(call) == Some(&None);
        let made = self.changes.iter().filter(is_made).count() as u64;
        let refused = self.changes.iter().filter(|call| self.cluster.outcomes.get(call).is_some_and(Option::is_some));
        Seen {
            made,
            refused: refused.count() as u64,
            removed: self.removed,
            marks: self.cluster.outcomes.values().filter(|outcome| outcome.is_none()).count() as u64,
            snapshots: self.cluster.counts.snapshots,
            most_members: self.most_members,
        }
    }
}
