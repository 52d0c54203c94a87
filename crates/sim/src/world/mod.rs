//! The world: one clock, one queue of events, and everything that happens in it.
//!
//! A run has five phases. While it is *busy*, clients ask and faults strike. Then everything *heals*:
//! faults are taken back, members are up for good, clients begin nothing new, and every open call must
//! come to its end. Then all is *silent*, and what has a lease must go, and watchers *read* what they
//! have not read yet. Last all members are stopped and started once more, and must be what they were.

mod clients;
mod damage;
mod lives;
mod report;
mod step;
mod streams;
mod transfers;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use tenure_machine::{Lock, MemberId};
use tenure_replica::{Answer, CallId, FIRST_INDEX, Input, LockWatchRequest, StreamId, WatchRequest};

use crate::checks::{self, Check, Context, Seen};
use crate::events::Events;
use crate::fates::Fates;
use crate::faults::{self, Fault};
use crate::member::{Life, Member};
use crate::network::Network;
use crate::plan::{Limits, Plan};
use crate::planted::{Memory, Planted, switch};
use crate::random::Random;
use crate::reference::Reference;
use crate::request::Call;
use crate::trace::Trace;
use crate::traffic::streams::{Happening, Streams};
use crate::traffic::{Mood, Parcel, Traffic};

pub use self::report::{Report, Violation};
use self::transfers::Transfer;

/// After healing: until every call is answered; until every watcher has read; until all have started again.
const ANSWERED_WITHIN_US: u64 = 90_000_000;
const READ_WITHIN_US: u64 = 10_000_000;
/// A comparison of states that is under way is done within this.
const COMPARED_US: u64 = 2_000_000;
const LAST_LIFE_US: u64 = 1_000_000;
const LOOK_US: u64 = 250_000;

pub struct World {
    pub now_us: u64,
    pub fault_random: Random,
    pub members: BTreeMap<MemberId, Member>,
    pub network: Network,
    pub plan: Plan,
    planted: Option<Planted>,
    memory: Memory,
    events: Events<Event>,
    random: Random,
    traffic: Traffic,
    sessions: Streams,
    /// Taken out while it strikes.
    faults: Vec<Option<Box<dyn Fault>>>,
    reference: Reference,
    checks: Vec<Box<dyn Check>>,
    trace: Trace,
    calls: BTreeMap<CallId, Call>,
    next_call: CallId,
    /// Grants on their way to their clients.
    telling: BTreeMap<CallId, Telling>,
    fates: Fates,
    /// To which member each client goes first.
    homes: Vec<MemberId>,
    /// When each client's keeper is woken next, and until when each client stands still.
    keep_due_us: Vec<u64>,
    clients_paused_us: Vec<u64>,
    streams: BTreeMap<StreamId, MemberId>,
    /// Connections between members whose greeting was heard: each end with its life.
    greeted: BTreeSet<[(MemberId, u64); 2]>,
    transfers: BTreeMap<u64, Transfer>,
    next_transfer: u64,
    phase: Phase,
    phase_began_us: u64,
    report: Report,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Busy,
    Healed,
    Silent,
    Reading,
    LastLife,
    Over,
}

enum Event {
    /// A member's own; void if it has died since.
    Own {
        member: MemberId,
        life: u64,
        what: Own,
    },
    Packet {
        from: MemberId,
        to: MemberId,
        directory_id: u128,
        /// Of the receiver, if the sender knew it.
        meant_for: Option<u128>,
        message: Bytes,
    },
    Transfer(u64),
    Restart(MemberId),
    Client(usize),
    /// A client's keeper is woken.
    Keep(usize),
    /// A client that stood still goes on.
    GoOn(usize),
    /// An answer that waited until its client went on.
    Told(Box<Told>),
    Session(Box<Happening>),
    Strike(usize),
    Heal,
    Look,
    /// A message of a watch arrives at its reader.
    Parcel(StreamId, Parcel),
}

/// An answer on its way to the one who asked.
struct Told {
    id: CallId,
    call: Call,
    answer: Answer,
}

/// A grant on its way to its client, with the member that told it, in which of its lives.
struct Telling {
    client: usize,
    member: MemberId,
    life: u64,
    lock: Lock,
}

enum Own {
    Step,
    LogDone,
    Chunk,
    Stream(StreamId, WatchRequest),
    LockStream(StreamId, LockWatchRequest),
    /// Of a call whose time is almost up.
    Hurry(CallId),
    /// A snapshot is almost read in, which takes all of the process for a moment; and it is read in.
    Restoring(Box<Input>),
    Restored(Box<Input>),
}

/// A rule that does not hold.
#[derive(Debug)]
pub struct Broken {
    rule: &'static str,
    what: String,
}

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Setting {
    pub seed: u64,
    pub planted: Option<Planted>,
    /// Only these of the seed's faults strike.
    pub faults: Option<Vec<&'static str>>,
    /// Only the check whose name begins so looks on, beside the comparison with the model.
    pub check: Option<&'static str>,
    /// How many of the last lines of the timeline are kept.
    pub lines: usize,
}

impl Setting {
    /// Everything that the seed has.
    pub fn of(seed: u64) -> Setting {
        Setting { seed, planted: None, faults: None, check: None, lines: 0 }
    }
}

/// Runs one seed to its end.
pub fn run(setting: &Setting) -> Result<Report, Box<Violation>> {
    switch(setting.planted);
    let mut world = World::new(setting);
    world.plan.limits.set();
    // Whoever gives itself up takes the process with it; here it breaks a rule like any other.
    let end = catch_unwind(AssertUnwindSafe(|| world.turn())).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|message| (*message).to_owned()));
        Err(Broken { rule: "no member panics", what: message.unwrap_or_default() })
    });
    switch(None);
    // One thread runs many seeds.
    Limits::default().set();
    let mut report = world.report;
    report.seeds = 1;
    report.simulated_us = world.now_us;
    report.trace = world.trace.hash();
    world.checks.iter().for_each(|check| check.count(&mut report));
    match end {
        Ok(()) => Ok(report),
        Err(Broken { rule, what }) => Err(Box::new(Violation {
            seed: setting.seed,
            planted: setting.planted,
            rule,
            what,
            members: world.plan.members,
            faults: world.plan.faults,
            all_faults: None,
            trace: world.trace.hash(),
            timeline: world.trace.lines().map(str::to_string).collect(),
        })),
    }
}

impl World {
    fn new(setting: &Setting) -> World {
        let seed = setting.seed;
        let mut plan = Plan::draw(seed);
        if let Some(kept) = &setting.faults {
            plan.faults.retain(|fault| kept.contains(fault));
        }
        let is_asked = |name: &str| setting.check.is_none_or(|asked| name.starts_with(asked));
        let mut random = Random::new(seed, 3);
        let founders: Vec<MemberId> = (1..=plan.members).collect();
        let members = founders.iter().map(|id| {
            let drift_ppm = random.below(2 * plan.drift_ppm + 1) as i64 - plan.drift_ppm as i64;
            (*id, Member::new(*id, random.draw(), founders.clone(), plan.sync_us, drift_ppm))
        });
        let members = members.collect();
        let all = faults::all().into_iter().filter(|fault| plan.faults.contains(&fault.name()));
        World {
            now_us: 0,
            fault_random: Random::new(seed, 4),
            members,
            network: Network::new(seed, plan.delay_us, plan.is_ordered)
                .with_restores(plan.windows.map_or(0, |windows| windows.restore_us)),
            planted: setting.planted,
            memory: Memory::default(),
            events: Events::default(),
            traffic: Traffic::new(seed, &plan, setting.planted),
            sessions: Streams::new(seed, &plan),
            faults: all.map(Some).collect(),
            reference: Reference::new(&founders, plan.limits),
            checks: checks::all().into_iter().filter(|check| is_asked(check.name())).collect(),
            trace: Trace::new(setting.lines),
            calls: BTreeMap::new(),
            next_call: 1,
            telling: BTreeMap::new(),
            fates: Fates::default(),
            homes: (0..plan.clients as u64).map(|client| 1 + client % plan.members).collect(),
            keep_due_us: vec![u64::MAX; plan.clients],
            clients_paused_us: vec![0; plan.clients],
            streams: BTreeMap::new(),
            greeted: BTreeSet::new(),
            transfers: BTreeMap::new(),
            next_transfer: 1,
            phase: Phase::Busy,
            phase_began_us: 0,
            report: Report::default(),
            broken: None,
            random,
            plan,
        }
    }

    fn turn(&mut self) -> Result<(), Broken> {
        for member in self.members.keys().copied().collect::<Vec<_>>() {
            let at_us = self.random.spread(0, 20_000);
            self.events.at(at_us, Event::Restart(member));
        }
        self.events.at(self.plan.active_us, Event::Heal);
        for client in 0..self.plan.clients {
            self.events.at(1000 + client as u64, Event::Client(client));
        }
        self.begin_sessions();
        for fault in 0..self.faults.len() {
            let first_us = self.fault_random.spread(10_000, self.plan.fault_pace_us);
            self.events.at(first_us, Event::Strike(fault));
        }
        while self.phase != Phase::Over {
            let Some((now_us, event)) = self.events.pop() else { break };
            self.now_us = now_us;
            self.report.events += 1;
            self.happen(event)?;
            for delivery in self.traffic.take_delivered() {
                self.trace.note(self.now_us, format_args!("  watcher: {delivery:?}"));
                see(&mut self.checks, &Seen::Delivered(&delivery), &context!(self))?;
            }
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Own { member, life, what } => self.happen_within(member, life, what)?,
            Event::Packet { from, to, directory_id, meant_for, message } => {
                if self.is_meant(to, meant_for) {
                    self.arrive(from, to, directory_id, message);
                }
            }
            Event::Transfer(transfer) => self.carry_on(transfer)?,
            Event::Restart(member) => self.restart(member)?,
            Event::Client(client) => self.client_acts(client)?,
            Event::Keep(client) => self.keep(client)?,
            Event::GoOn(client) => self.go_on_client(client)?,
            Event::Told(told) => self.tell(*told)?,
            Event::Session(happening) => self.happen_to_session(*happening)?,
            Event::Strike(fault) => self.strike(fault),
            Event::Heal => self.heal(),
            Event::Look => self.look()?,
            Event::Parcel(stream, parcel) => self.traffic.take_parcel(stream, parcel),
        }
        Ok(())
    }

    fn happen_within(&mut self, member: MemberId, number: u64, what: Own) -> Result<(), Broken> {
        let Some(life) = self.life(member).filter(|life| life.number == number) else { return Ok(()) };
        let (until_us, due_us, busy_us) = (life.paused_until_us, life.step_due_us, life.busy_until_us);
        match what {
            Own::Stream(stream, request) => self.give_watch(member, stream, request),
            Own::LockStream(stream, request) => {
                if self.streams.get(&stream) == Some(&member) && self.traffic.follows(stream) {
                    self.give(member, Input::LockWatch { stream, request });
                }
            }
            Own::Hurry(call) => self.hurry(member, call),
            Own::Restoring(snapshot) => {
                let (before_us, after_us) = self.network.stall_us();
                let busy_until_us = self.now_us + before_us + after_us;
                self.life_mut(member).into_iter().for_each(|life| life.busy_until_us = busy_until_us);
                let what = Own::Restored(snapshot);
                self.events.at(self.now_us + before_us, Event::Own { member, life: number, what });
            }
            Own::Restored(snapshot) => self.give(member, *snapshot),
            // Everything that waited is taken by one step when the process goes on.
            Own::Step if until_us > self.now_us => self.step_at(member, until_us),
            what if until_us > self.now_us => self.events.at(until_us, Event::Own { member, life: number, what }),
            Own::Step if due_us == self.now_us && busy_us > self.now_us => self.step_at(member, busy_us),
            Own::Step if due_us == self.now_us => self.step(member)?,
            Own::Step => {}
            Own::LogDone => self.log_done(member)?,
            Own::Chunk => self.write_chunk(member),
        }
        Ok(())
    }

    pub fn life(&self, member: MemberId) -> Option<&Life> {
        self.members.get(&member)?.life.as_ref()
    }

    fn life_mut(&mut self, member: MemberId) -> Option<&mut Life> {
        self.members.get_mut(&member)?.life.as_mut()
    }

    /// Those that the log says belong together, in order.
    pub fn configured(&self) -> Vec<MemberId> {
        let configuration = self.reference.model.configuration();
        let all = configuration.voters.iter().chain(&configuration.outgoing).chain(&configuration.learners);
        let mut all: Vec<MemberId> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub fn voters(&self) -> Vec<MemberId> {
        self.reference.model.configuration().voters.iter().copied().collect()
    }

    /// Whoever believes to lead, in the highest term.
    pub fn leader(&self) -> Option<MemberId> {
        let statuses = self.members.values().filter_map(|member| Some(member.life.as_ref()?.replica.status()));
        let leaders = statuses.filter(|status| status.leader == status.member);
        leaders.max_by_key(|status| status.term).map(|status| status.member)
    }

    /// A member for a fault to strike, drawn from all that are there.
    pub fn victim(&mut self) -> MemberId {
        let members: Vec<MemberId> = self.members.values().filter(|member| !member.is_gone).map(|m| m.id).collect();
        // Those who lead have most to lose.
        match self.leader() {
            Some(leader) if self.fault_random.percent(30) => leader,
            _ => self.fault_random.pick(&members).copied().unwrap_or(1),
        }
    }

    /// Whoever was never seen cannot be known again, and without a majority nobody can go on.
    pub fn can_lose_disk(&self, victim: MemberId) -> bool {
        let others: Vec<MemberId> = self.configured().into_iter().filter(|other| *other != victim).collect();
        let knows = |other: &MemberId| self.life(*other).is_some_and(|life| life.peers.directory_of(victim).is_some());
        others.len() >= 2 && self.life(victim).is_some() && others.iter().all(knows)
    }

    fn strike(&mut self, nth: usize) {
        if self.phase != Phase::Busy {
            return;
        }
        if let Some(mut fault) = self.faults[nth].take() {
            self.trace.note(self.now_us, format_args!("! {}", fault.name()));
            let next_us = fault.strike(self);
            self.faults[nth] = Some(fault);
            // A slow cluster is struck less often, so that it gets somewhere between two strokes.
            let next_us = next_us * self.plan.slowness;
            self.events.at(self.now_us + next_us.max(1000), Event::Strike(nth));
        }
    }

    fn heal(&mut self) {
        self.trace.note(self.now_us, format_args!("! everything heals"));
        for nth in 0..self.faults.len() {
            if let Some(mut fault) = self.faults[nth].take() {
                fault.heal(self);
            }
        }
        // What went wrong before may have left its mark on a running process; a new one has no excuse.
        for member in self.members.keys().copied().collect::<Vec<_>>() {
            if self.members[&member].disk_is_bad {
                self.kill(member);
                self.member(member).disk_is_bad = false;
            }
        }
        self.traffic.mood = Mood::Finishing;
        self.enter(Phase::Healed);
        self.events.at(self.now_us + LOOK_US, Event::Look);
    }

    /// One that exists.
    pub fn member(&mut self, member: MemberId) -> &mut Member {
        self.members.get_mut(&member).expect("members are never taken out of the world")
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_began_us = self.now_us;
    }

    /// Looks whether the phase is over.
    fn look(&mut self) -> Result<(), Broken> {
        self.events.at(self.now_us + LOOK_US, Event::Look);
        let passed_us = self.now_us - self.phase_began_us;
        match self.phase {
            Phase::Healed => {
                self.stop_forgotten();
                let is_done = self.fates.chores(&self.reference.model).is_done();
                let calm = self.is_caught_up() && self.traffic.is_calm() && self.sessions_are_calm() && is_done;
                if calm && !self.is_log_hanging() || passed_us > ANSWERED_WITHIN_US * self.plan.slowness {
                    self.settle()?;
                }
            }
            Phase::Silent => {
                let is_over = self.reference.model.leases().next().is_none();
                if is_over || passed_us > self.plan.expired_within_us() {
                    self.members.values_mut().for_each(|member| member.late_us = 0);
                    self.enter(Phase::Reading);
                }
            }
            // Leaders go on comparing states: a look may fall into the moment of that. It does not last.
            Phase::Reading
                if passed_us > READ_WITHIN_US
                    && (self.is_all_applied() || passed_us > READ_WITHIN_US + COMPARED_US) =>
            {
                for member in self.configured() {
                    let Some(life) = self.members.get(&member).and_then(|member| member.life.as_ref()) else {
                        continue;
                    };
                    see(&mut self.checks, &Seen::Quiet { replica: &life.replica }, &context!(self))?;
                }
                see(&mut self.checks, &Seen::Ended, &context!(self))?;
                for member in self.members.keys().copied().collect::<Vec<_>>() {
                    self.stop_in_order(member);
                }
                self.enter(Phase::LastLife);
            }
            Phase::Reading => self.read_on()?,
            Phase::LastLife if passed_us > LAST_LIFE_US && self.is_caught_up() => self.enter(Phase::Over),
            Phase::LastLife if passed_us > ANSWERED_WITHIN_US => {
                return Err(Broken { rule: "liveness", what: "the members never came back".into() });
            }
            Phase::Busy | Phase::LastLife | Phase::Over => {}
        }
        Ok(())
    }

    /// A write that was begun on a slow disk takes its time, whatever heals meanwhile.
    fn is_log_hanging(&self) -> bool {
        let soon_us = self.now_us + self.plan.sync_us.1;
        self.members.values().filter_map(|member| member.life.as_ref()).any(|life| life.log_busy_until_us > soon_us)
    }

    fn is_all_applied(&self) -> bool {
        let lives = self.members.values().filter_map(|member| member.life.as_ref());
        lives.map(|life| life.replica.status()).all(|status| status.applied_index == status.last_index)
    }

    /// Stops members that were removed without hearing of it and know only such as are gone: nobody is left to tell
    /// them, so it is their operator who ends them.
    fn stop_forgotten(&mut self) {
        let configured = self.configured();
        let is_gone = |id: &MemberId| self.members.get(id).is_none_or(|member| member.is_gone);
        let is_forgotten = |member: &&Member| {
            let Some(life) = &member.life else { return false };
            let status = life.replica.status();
            let mut others = status.voters.iter().chain(&*status.learners).filter(|other| **other != member.id);
            // One that knows nobody yet is only about to join.
            let knows_somebody = others.clone().next().is_some();
            !configured.contains(&member.id) && knows_somebody && others.all(is_gone)
        };
        let forgotten: Vec<MemberId> = self.members.values().filter(is_forgotten).map(|member| member.id).collect();
        for member in forgotten {
            self.retire(member, "was removed, and nobody is left to tell it: its operator stops it");
        }
    }

    fn settle(&mut self) -> Result<(), Broken> {
        if !self.is_caught_up() {
            let found: Vec<_> = self.members.values().map(|member| (member.id, self.progress(member.id))).collect();
            let what = format!("{:?} never caught up with {}: {found:?}", self.configured(), self.reference.applied());
            return Err(Broken { rule: "liveness: after healing all members catch up", what });
        }
        see(&mut self.checks, &Seen::Settled, &context!(self))?;
        self.end_sessions()?;
        self.traffic.mood = Mood::Silent;
        self.enter(Phase::Silent);
        Ok(())
    }

    fn progress(&self, member: MemberId) -> Option<u64> {
        self.life(member).map(|life| life.replica.machine().applied_index())
    }

    /// Before anything is committed nobody lags: one that has lost its disk looks like all others.
    fn is_caught_up(&self) -> bool {
        let applied = self.reference.applied();
        applied > FIRST_INDEX && self.configured().into_iter().all(|member| self.progress(member) == Some(applied))
    }
}

/// Shows something to every check.
fn see(checks: &mut [Box<dyn Check>], seen: &Seen<'_>, context: &Context<'_>) -> Result<(), Broken> {
    for check in checks {
        check.see(seen, context).map_err(|what| Broken { rule: check.name(), what })?;
    }
    Ok(())
}

/// What checks may look at. A macro, so that the borrow is of these fields alone.
macro_rules! context {
    ($world:expr) => {
        $crate::checks::Context {
            now_us: $world.now_us,
            reference: &$world.reference,
            plan: &$world.plan,
            fates: &$world.fates,
        }
    };
}
use context;
