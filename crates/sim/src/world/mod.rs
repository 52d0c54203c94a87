//! The world: one clock, one queue of events, and everything that happens in it.
//!
//! A run has four phases. While it is *busy*, clients ask and faults strike. Then everything *heals*:
//! faults are taken back, the member is up for good, clients begin nothing new, and every open call must
//! come to its end. Then all is *silent*, and what has a lease must go. Last the member is stopped and
//! started once more, and must be what it was.

mod lives;
mod report;
mod step;

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::Mode;
use tenure_replica::{CallId, Input, StreamId, WatchRequest};

use crate::checks::{self, Check, Context, Seen};
use crate::events::Events;
use crate::faults::{self, Fault};
use crate::member::Member;
use crate::model::{Model, Place};
use crate::plan::Plan;
use crate::planted::{Memory, Planted};
use crate::random::Random;
use crate::reference::Reference;
use crate::request::{Call, Request};
use crate::trace::Trace;
use crate::traffic::{Doing, Known, Mood, Traffic};

pub use self::report::{Report, Violation};

/// After healing: until every call is answered; until every lease is gone; until every watcher has read.
const ANSWERED_WITHIN_US: u64 = 90_000_000;
const EXPIRED_WITHIN_US: u64 = 15_000_000;
const READ_WITHIN_US: u64 = 10_000_000;
const LAST_LIFE_US: u64 = 1_000_000;
const LOOK_US: u64 = 250_000;

pub struct World {
    pub now_us: u64,
    /// The wall clock stands so much ahead of the world's own.
    pub wall_ms: u64,
    pub fault_random: Random,
    pub member: Member,
    plan: Plan,
    planted: Option<Planted>,
    memory: Memory,
    events: Events<Event>,
    random: Random,
    traffic: Traffic,
    /// Taken out while it strikes.
    faults: Vec<Option<Box<dyn Fault>>>,
    reference: Reference,
    checks: Vec<Box<dyn Check>>,
    trace: Trace,
    calls: BTreeMap<CallId, Call>,
    next_call: CallId,
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
    /// The member's own; void if it has died since.
    Step {
        life: u64,
    },
    LogDone {
        life: u64,
    },
    Chunk {
        life: u64,
    },
    Stream {
        life: u64,
        stream: StreamId,
        request: WatchRequest,
    },
    Restart,
    Client(usize),
    Strike(usize),
    Heal,
    Look,
}

/// A rule that does not hold.
#[derive(Debug)]
pub struct Broken {
    rule: &'static str,
    what: String,
}

/// Runs one seed to its end, keeping the last `lines` lines of its timeline.
pub fn run(seed: u64, planted: Option<Planted>, lines: usize) -> Result<Report, Box<Violation>> {
    let mut world = World::new(seed, planted, lines);
    let end = world.turn();
    let mut report = world.report;
    report.seeds = 1;
    report.simulated_us = world.now_us;
    report.trace = world.trace.hash();
    match end {
        Ok(()) => Ok(report),
        Err(Broken { rule, what }) => Err(Box::new(Violation {
            seed,
            planted,
            rule,
            what,
            faults: world.plan.faults,
            trace: world.trace.hash(),
            timeline: world.trace.lines().map(str::to_string).collect(),
        })),
    }
}

impl World {
    fn new(seed: u64, planted: Option<Planted>, lines: usize) -> World {
        let plan = Plan::draw(seed);
        let mut random = Random::new(seed, 3);
        let all = faults::all().into_iter().filter(|fault| plan.faults.contains(&fault.name()));
        World {
            now_us: 0,
            wall_ms: 1_700_000_000_000,
            fault_random: Random::new(seed, 4),
            member: Member::new(random.draw(), plan.sync_us),
            planted,
            memory: Memory::default(),
            events: Events::default(),
            random,
            traffic: Traffic::new(seed, &plan),
            faults: all.map(Some).collect(),
            reference: Reference::default(),
            checks: checks::all(),
            trace: Trace::new(lines),
            calls: BTreeMap::new(),
            next_call: 1,
            phase: Phase::Busy,
            phase_began_us: 0,
            report: Report::default(),
            broken: None,
            plan,
        }
    }

    fn turn(&mut self) -> Result<(), Broken> {
        self.events.at(0, Event::Restart);
        self.events.at(self.plan.active_us, Event::Heal);
        for client in 0..self.plan.clients {
            self.events.at(1000 + client as u64, Event::Client(client));
        }
        for fault in 0..self.faults.len() {
            let first_us = self.fault_random.spread(10_000, 3_000_000);
            self.events.at(first_us, Event::Strike(fault));
        }
        while self.phase != Phase::Over {
            let Some((now_us, event)) = self.events.pop() else { break };
            self.now_us = now_us;
            self.report.events += 1;
            self.happen(event)?;
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Step { life } if self.is_current(life) => {
                match self.paused_until_us() {
                    // Everything that waited is taken by one step when the process goes on.
                    Some(until_us) => self.step_at(until_us),
                    None if self.member.life.as_ref().is_some_and(|life| life.step_due_us == self.now_us) => {
                        self.step()?
                    }
                    None => {}
                }
            }
            Event::LogDone { life } if self.is_current(life) => match self.paused_until_us() {
                Some(until_us) => self.events.at(until_us, Event::LogDone { life }),
                None => self.log_done()?,
            },
            Event::Chunk { life } if self.is_current(life) => match self.paused_until_us() {
                Some(until_us) => self.events.at(until_us, Event::Chunk { life }),
                None => self.write_chunk()?,
            },
            Event::Stream { life, stream, request } if self.is_current(life) => {
                self.give(Input::Watch { stream, request });
            }
            Event::Step { .. } | Event::LogDone { .. } | Event::Chunk { .. } | Event::Stream { .. } => {}
            Event::Restart => self.restart()?,
            Event::Client(client) => self.client_acts(client)?,
            Event::Strike(fault) => self.strike(fault),
            Event::Heal => self.heal(),
            Event::Look => self.look()?,
        }
        Ok(())
    }

    fn is_current(&self, number: u64) -> bool {
        self.member.life.as_ref().is_some_and(|life| life.number == number)
    }

    fn paused_until_us(&self) -> Option<u64> {
        self.member.life.as_ref().map(|life| life.paused_until_us).filter(|until_us| *until_us > self.now_us)
    }

    fn client_acts(&mut self, client: usize) -> Result<(), Broken> {
        let known = Known {
            now_us: self.now_us,
            revision: self.reference.exposed,
            compacted: self.reference.model.compacted(),
            stray: if self.phase == Phase::Healed { self.stray() } else { Vec::new() },
        };
        let (doing, pause_us) = self.traffic.act(client, &self.plan, &known);
        if self.phase == Phase::Busy || self.phase == Phase::Healed {
            self.events.at(self.now_us + pause_us, Event::Client(client));
        }
        for doing in doing {
            self.perform(client, doing)?;
        }
        Ok(())
    }

    fn perform(&mut self, client: usize, doing: Doing) -> Result<(), Broken> {
        if self.member.life.is_none() {
            // Nobody listens.
            return Ok(());
        }
        match doing {
            Doing::Call(request) => self.issue(client, request),
            Doing::Cancel(id) => {
                if let Some(call) = self.calls.get_mut(&id) {
                    call.cancelled = true;
                    self.give(Input::Cancel { call: id });
                    let call = &self.calls[&id];
                    self.traffic.cancelled(id, call);
                    see(&mut self.checks, &Seen::Cancelled { id, call }, &context!(self))?;
                }
                Ok(())
            }
            Doing::Watch(stream, request) => {
                self.give(Input::Watch { stream, request });
                Ok(())
            }
        }
    }

    fn issue(&mut self, client: usize, request: Request) -> Result<(), Broken> {
        let id = self.next_call;
        self.next_call += 1;
        self.report.calls += 1;
        let input = request.input(id);
        let call = Call {
            client,
            request,
            issued_us: self.now_us,
            floor: self.reference.exposed,
            index: None,
            cancelled: false,
            cancel_taken: None,
        };
        self.traffic.issued(id, &call);
        see(&mut self.checks, &Seen::Issued { id, call: &call }, &context!(self))?;
        self.calls.insert(id, call);
        self.give(input);
        Ok(())
    }

    fn strike(&mut self, nth: usize) {
        if self.phase != Phase::Busy {
            return;
        }
        if let Some(mut fault) = self.faults[nth].take() {
            self.trace.note(self.now_us, format_args!("! {}", fault.name()));
            let next_us = fault.strike(self);
            self.faults[nth] = Some(fault);
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
        if self.member.disk_is_bad {
            self.kill();
            self.member.disk_is_bad = false;
        }
        self.traffic.mood = Mood::Finishing;
        self.enter(Phase::Healed);
        self.events.at(self.now_us + LOOK_US, Event::Look);
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
                let calm = self.is_caught_up() && self.traffic.is_calm() && self.stray().is_empty();
                if calm || passed_us > ANSWERED_WITHIN_US {
                    see(&mut self.checks, &Seen::Settled, &context!(self))?;
                    self.traffic.mood = Mood::Silent;
                    self.enter(Phase::Silent);
                }
            }
            Phase::Silent => {
                if self.reference.model.leases().next().is_none() || passed_us > EXPIRED_WITHIN_US {
                    self.enter(Phase::Reading);
                }
            }
            Phase::Reading if passed_us > READ_WITHIN_US => {
                see(&mut self.checks, &Seen::Ended, &context!(self))?;
                self.stop_in_order();
                self.enter(Phase::LastLife);
            }
            Phase::Reading => {
                for doing in self.traffic.ask_for_progress() {
                    self.perform(0, doing)?;
                }
            }
            Phase::LastLife if passed_us > LAST_LIFE_US && self.is_caught_up() => self.enter(Phase::Over),
            Phase::LastLife if passed_us > ANSWERED_WITHIN_US => {
                return Err(Broken { rule: "liveness", what: "the member never came back".into() });
            }
            Phase::Busy | Phase::LastLife | Phase::Over => {}
        }
        Ok(())
    }

    fn is_caught_up(&self) -> bool {
        let applied = self.member.life.as_ref().map(|life| life.replica.machine().applied_index());
        applied.is_some_and(|applied| applied >= self.reference.applied())
    }

    /// Places in queues that nobody will give back: their key hangs on no lease, or they are held by
    /// somebody who was never told, and who may wait elsewhere for ever (two such can wait for each other);
    /// or they wait at a barrier, for others who may never come.
    fn stray(&self) -> Vec<Bytes> {
        let model = &self.reference.model;
        let is_waited_for = |name: &[u8], place: &Place| {
            self.calls.values().any(|call| match &call.request {
                Request::Lock(lock) => lock.name == name && lock.lease == place.lease,
                _ => false,
            })
        };
        let mut stray = Vec::new();
        for (name, places) in model.queues() {
            for (position, place) in places.iter().enumerate() {
                let leaseless = model.live(&place.key).is_some_and(|kv| model.lease(kv.lease).is_none());
                let granted = position < Model::granted(places);
                let unknown = granted && !is_waited_for(name, place);
                let at_barrier = !granted && matches!(place.mode, Mode::Barrier(_));
                if leaseless || unknown || at_barrier {
                    stray.push(Bytes::copy_from_slice(&place.key));
                }
            }
        }
        stray
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
        $crate::checks::Context { now_us: $world.now_us, reference: &$world.reference, plan: &$world.plan }
    };
}
use context;
