//! `tenure-sim`: runs seeds until one of them shows something wrong.
//!
//! The only place that looks at a real clock, to say how fast it goes and to stop in time.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tenure_sim::{Planted, Report, TIMELINE_LINES, Violation, explain};

const USAGE: &str = "usage: tenure-sim [--seeds N] [--from SEED] [--minutes M] [--planted BUG]
       tenure-sim --seed SEED [--lines N] [--planted BUG]

Runs simulated members, one for each seed, and stops at the first that breaks a rule.

  --seeds N      how many seeds to run (default 1000; with --minutes: no bound)
  --from SEED    the first of them (default 0)
  --minutes M    stop after so much real time
  --seed SEED    run this one and print the hash of its trace
  --lines N      how much of the timeline to show with what was found (default 40)
  --planted BUG  with a bug put in on purpose, to see it found";

struct Arguments {
    seeds: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    seed: Option<u64>,
    lines: usize,
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seeds: None, from: 0, minutes: None, seed: None, lines: TIMELINE_LINES, planted: None };
    while let Some(name) = given.next() {
        if name == "--help" || name == "-h" {
            return Err("A simulation of Tenure.".into());
        }
        let value = given.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value:?} is not a number"));
        match name.as_str() {
            "--seeds" => arguments.seeds = Some(number()?),
            "--from" => arguments.from = number()?,
            "--minutes" => arguments.minutes = Some(number()?),
            "--seed" => arguments.seed = Some(number()?),
            "--lines" => arguments.lines = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--planted" => {
                let found = Planted::ALL.into_iter().find(|planted| format!("{planted:?}") == value);
                arguments.planted = Some(found.ok_or(format!("{value:?} is none of {:?}", Planted::ALL))?);
            }
            _ => return Err(format!("what is {name:?}?")),
        }
    }
    Ok(arguments)
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    match explain(seed, arguments.planted, arguments.lines) {
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
    for seed in (arguments.from..).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        match explain(seed, arguments.planted, arguments.lines) {
            Ok(report) => total.add(&report),
            Err(violation) => return give_up(&violation),
        }
        let elapsed = began.elapsed();
        if elapsed - shown >= Duration::from_secs(5) {
            shown = elapsed;
            println!("{:>8} seeds, {:.0} seeds/s; {total}", total.seeds, total.seeds as f64 / elapsed.as_secs_f64());
        }
        if bound.is_some_and(|bound| elapsed >= bound) {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{} seeds in {seconds:.1} s, nothing found; {total}", total.seeds);
    ExitCode::SUCCESS
}

fn give_up(violation: &Violation) -> ExitCode {
    println!("{violation}");
    ExitCode::FAILURE
}
