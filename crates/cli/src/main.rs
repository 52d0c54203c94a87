//! The one binary: `tenure serve` and every verb of the client.
//!
//! A verb is a file in [`verbs`]: its arguments, its help with an example first, and what it does.
//! The rest of this crate is what verbs have in common: where settings come from ([`settings`]),
//! how results are written ([`output`]), how long work shows that it is alive ([`progress`]).
//!
//! Data goes to stdout and everything else to stderr. The exit code is 0 if the verb did what it
//! was asked, 1 if it failed, 2 if the command line could not be understood; `exec` has its own.
#![forbid(unsafe_code)]

mod bytes_text;
mod follow;
mod keyboard;
mod logging;
mod notify;
mod output;
mod progress;
mod selection;
mod settings;
mod verbs;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use settings::Global;
use verbs::Verb;

/// On the prototype: 24 µs of server CPU for a put, against 28 with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ABOUT: &str = "Locks, leases and coordination for distributed systems.";
const FIRST_STEPS: &str = "\
First steps:
  tenure serve                          one member on 127.0.0.1:2379, data in ./tenure-data
  tenure exec job -- ./job.sh           in another terminal: runs while it holds the lock
  tenure locks                          who holds what; `tenure why NAME` tells more
  tenure put greeting hello
  tenure dev                            three members on this machine, in one terminal
  etcdctl put hello world               etcd's tools and clients work as they are";

#[derive(Parser)]
#[command(name = "tenure", version, about = ABOUT, before_help = FIRST_STEPS)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
struct CommandLine {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

fn main() -> ExitCode {
    if let Some(code) = verbs::hidden_main() {
        return code;
    }
    let matches = match CommandLine::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    let CommandLine { global, verb } = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match verbs::check(&matches).and_then(|()| verb.run(global)) {
        Ok(code) => code,
        // Whoever reads our output has seen enough, as in `tenure get --prefix a | head -1`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// As clap would end, but for `exec`: there 2 may be the command's own code.
fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let own = |code: i32| ExitCode::from(u8::try_from(code).unwrap_or(1));
    match error.use_stderr() && named_verb().is_some_and(|verb| verb == "exec") {
        true => ExitCode::from(125),
        false => own(error.exit_code()),
    }
}

/// The first word of the command line that is neither an option of every verb nor its value.
fn named_verb() -> Option<String> {
    const WITH_VALUE: &[&str] = &["--endpoints", "--output", "-o", "--timeout", "--config"];
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word {
            word if WITH_VALUE.contains(&word.as_str()) => drop(words.next()),
            word if word.starts_with('-') => {}
            word => return Some(word),
        }
    }
    None
}

fn report(error: &anyhow::Error) {
    let label = match output::color_on_stderr() {
        true => "\x1b[1;31merror:\x1b[0m",
        false => "error:",
    };
    // If even stderr is gone, the exit code is all that is left to say it with.
    let _ = writeln!(io::stderr(), "{label} {error:#}");
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example_first() {
        fn check(command: &clap::Command, path: &str) {
            for verb in command.get_subcommands() {
                let path = format!("{path} {}", verb.get_name());
                if verb.has_subcommands() {
                    check(verb, &path);
                }
                let example = verb.get_before_help().map(ToString::to_string).unwrap_or_default();
                assert!(example.starts_with("Example"), "{path}: {example:?}");
                assert!(example.contains(&path), "{path}: {example:?}");
                assert!(verb.get_about().is_some(), "{path}");
            }
        }
        check(&CommandLine::command(), "tenure");
    }
}
