//! What a run comes to, for people.

use std::fmt;

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
    /// Of the last run.
    pub trace: u64,
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
        self.trace = other.trace;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "simulated {:.1} h: {} calls, {} commands, {} notices, {} snapshots, {} deaths, {} steps",
            self.simulated_us as f64 / 3.6e9,
            self.calls,
            self.commands,
            self.notices,
            self.snapshots,
            self.deaths,
            self.steps
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
    pub faults: Vec<&'static str>,
    pub trace: u64,
    pub timeline: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.timeline {
            writeln!(formatter, "{line}")?;
        }
        writeln!(formatter, "\nseed {} breaks a rule, with these faults on: {}", self.seed, self.faults.join(", "))?;
        writeln!(formatter, "  {}", self.rule)?;
        writeln!(formatter, "  {}", readable(&self.what))?;
        write!(formatter, "again: tenure-sim --seed {}", self.seed)?;
        match self.planted {
            Some(planted) => write!(formatter, " --planted {planted:?}"),
            None => Ok(()),
        }
    }
}
