//! `tenure-sim`: runs seeds until one of them shows something wrong.
//!
//! The only place that looks at a real clock, to say how fast it goes and to stop in time.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_sim::plan::Plan;
use tenure_sim::{Planted, Report, Setting, TIMELINE_LINES, Violation, coverage, explain, faults, run};

const USAGE: &str =
    "usage: tenure-sim [--seeds N | --forever] [--from SEED] [--minutes M] [--having FAULT] [--planted BUG]
       tenure-sim --seed SEED [--faults LIST] [--lines N] [--planted BUG]

Runs simulated clusters, one for each seed, and stops at the first that breaks a rule.

  --seeds N      how many seeds to run (default 1000; with --minutes: no bound)
  --forever      no bound
  --from SEED    the first of them (default 0)
  --minutes M    stop after so much real time
  --seed SEED    run this one and print the hash of its trace
  --having FAULT only seeds that have this fault
  --faults LIST  only these of its faults, by name, with commas between them
  --lines N      how much of the timeline to show with what was found (default 40)
  --planted BUG  with a bug put in on purpose, to see it found";

struct Arguments {
    seeds: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    seed: Option<u64>,
    faults: Option<Vec<&'static str>>,
    having: Option<&'static str>,
    lines: usize,
    planted: Option<Planted>,
}

impl Arguments {
    fn setting(&self, seed: u64) -> Setting {
        SEED.store(seed, Ordering::Relaxed);
        Setting { planted: self.planted, faults: self.faults.clone(), lines: self.lines, ..Setting::of(seed) }
    }
}

/// Of the run under way, for whoever reads that it panicked.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        eprintln!("again: tenure-sim --seed {}", SEED.load(Ordering::Relaxed));
    }));
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match arguments.seed {
        Some(seed) => one(&arguments.setting(seed)),
        None => many(&arguments),
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (seeds, minutes, seed, faults, having, planted) = (None, None, None, None, None, None);
    let mut arguments = Arguments { seeds, from: 0, minutes, seed, faults, having, lines: TIMELINE_LINES, planted };
    while let Some(name) = given.next() {
        if name == "--help" || name == "-h" {
            return Err("A simulation of Tenure.".into());
        }
        if name == "--forever" {
            arguments.seeds = Some(u64::MAX);
            continue;
        }
        let value = given.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value:?} is not a number"));
        match name.as_str() {
            "--seeds" => arguments.seeds = Some(number()?),
            "--from" => arguments.from = number()?,
            "--minutes" => arguments.minutes = Some(number()?),
            "--seed" => arguments.seed = Some(number()?),
            "--faults" => arguments.faults = Some(fault_names(&value)?),
            "--having" => arguments.having = fault_names(&value)?.first().copied(),
            "--lines" => arguments.lines = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--planted" => {
                let found = Planted::all().into_iter().find(|planted| planted.name() == value);
                arguments.planted = Some(found.ok_or(format!("{value:?} is none of {:?}", Planted::all()))?);
            }
            _ => return Err(format!("what is {name:?}?")),
        }
    }
    Ok(arguments)
}

fn fault_names(list: &str) -> Result<Vec<&'static str>, String> {
    let named = |name: &str| faults::NAMES.into_iter().find(|known| *known == name);
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| named(name).ok_or(format!("{name:?} is none of {:?}", faults::NAMES))).collect()
}

/// As it is: a replay shows what the seed does, not what fewer faults would have done.
fn one(setting: &Setting) -> ExitCode {
    match run(setting) {
        Ok(report) => {
            println!("{report}");
            println!("trace {:016x}", report.trace);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            println!("trace {:016x}", violation.trace);
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let bound = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let seeds = arguments.seeds.unwrap_or(if bound.is_some() { u64::MAX } else { 1000 });
    let mut total = Report::default();
    let mut shown = Duration::ZERO;
    let is_meant = |seed: &u64| arguments.having.is_none_or(|fault| Plan::draw(*seed).faults.contains(&fault));
    let meant = (arguments.from..).filter(is_meant);
    for seed in meant.take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        match explain(&arguments.setting(seed)) {
            Ok(report) => total.add(&report),
            Err(violation) => return give_up(&violation),
        }
        let elapsed = began.elapsed();
        if elapsed - shown >= Duration::from_secs(5) {
            shown = elapsed;
            println!("{}", progress(&total, elapsed));
        }
        if bound.is_some_and(|bound| elapsed >= bound) {
            break;
        }
    }
    println!("{}\nnothing found", progress(&total, began.elapsed()));
    let missing = coverage::missing(&total.sent);
    if !missing.is_empty() {
        println!("never sent: {}", missing.join(", "));
    }
    ExitCode::SUCCESS
}

fn progress(total: &Report, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let hours_per_hour = total.simulated_us as f64 / 1e6 / seconds;
    let rate = total.seeds as f64 / seconds;
    format!("{:>8} seeds, {rate:.1} seeds/s, {hours_per_hour:.0} hours in an hour; {total}", total.seeds)
}

fn give_up(violation: &Violation) -> ExitCode {
    println!("{violation}");
    ExitCode::FAILURE
}
