//! What a run comes to, for people.

use std::fmt;

use crate::coverage::Counts;
use crate::planted::Planted;
use crate::trace::readable;

/// What happened in one run, or in many.
#[derive(Debug, Default, Clone)]
pub struct Report {
    pub seeds: u64,
    pub simulated_us: u64,
    pub events: u64,
    pub steps: u64,
    pub calls: u64,
    pub commands: u64,
    pub notices: u64,
    pub snapshots: u64,
    pub deaths: u64,
    pub messages: u64,
    pub snapshots_received: u64,
    pub installs: u64,
    pub removed: u64,
    /// Damaged disks that were found to be so.
    pub damaged: u64,
    /// What clients saw of keys, searched for an order; how often the search came to an end only with their first
    /// calls, and how often not at all.
    pub histories: u64,
    pub in_part: u64,
    pub given_up: u64,
    /// The highest, of one run; of many, all of them together.
    pub term: u64,
    /// Of the last run.
    pub trace: u64,
    /// How often each kind of input and command was sent.
    pub sent: Counts,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.seeds += other.seeds;
        self.simulated_us += other.simulated_us;
        self.events += other.events;
        self.steps += other.steps;
        self.calls += other.calls;
        self.commands += other.commands;
        self.notices += other.notices;
        self.snapshots += other.snapshots;
        self.deaths += other.deaths;
        self.messages += other.messages;
        self.snapshots_received += other.snapshots_received;
        self.installs += other.installs;
        self.removed += other.removed;
        self.damaged += other.damaged;
        self.histories += other.histories;
        self.in_part += other.in_part;
        self.given_up += other.given_up;
        self.term += other.term;
        self.trace = other.trace;
        for (kind, count) in &other.sent {
            *self.sent.entry(kind).or_default() += count;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "simulated {:.1} h: {} calls, {} commands, {} notices, {} snapshots, {} installed, {} deaths, {} removed, {} damaged, {} terms, {} messages, {} steps; {} histories, {} in part, {} given up",
            self.simulated_us as f64 / 3.6e9,
            self.calls,
            self.commands,
            self.notices,
            self.snapshots,
            self.installs,
            self.deaths,
            self.removed,
            self.damaged,
            self.term,
            self.messages,
            self.steps,
            self.histories,
            self.in_part,
            self.given_up
        )
    }
}

/// A rule that was broken, and all that is needed to see it again.
#[derive(Debug)]
pub struct Violation {
    pub seed: u64,
    pub planted: Option<Planted>,
    pub rule: &'static str,
    pub what: String,
    pub members: u64,
    pub faults: Vec<&'static str>,
    /// Those of the seed, if fewer were enough.
    pub all_faults: Option<Vec<&'static str>>,
    pub trace: u64,
    pub timeline: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.timeline {
            writeln!(formatter, "{line}")?;
        }
        writeln!(
            formatter,
            "\nseed {}, {} members, breaks a rule, with these faults: {}",
            self.seed,
            self.members,
            self.faults.join(", ")
        )?;
        if let Some(all) = &self.all_faults {
            writeln!(formatter, "  (the seed has these: {})", all.join(", "))?;
        }
        writeln!(formatter, "  {}", self.rule)?;
        writeln!(formatter, "  {}", readable(&self.what))?;
        write!(formatter, "again: tenure-sim --seed {}", self.seed)?;
        if self.all_faults.is_some() {
            write!(formatter, " --faults '{}'", self.faults.join(","))?;
        }
        match self.planted {
            Some(planted) => write!(formatter, " --planted {}", planted.name()),
            None => Ok(()),
        }
    }
}
