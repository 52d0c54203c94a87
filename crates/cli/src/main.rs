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
mod words;

use std::io;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches, Parser};

use output::report;
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
    let matches = match without_empty_variables(CommandLine::command()).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    let CommandLine { global, verb } = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Servers write no results, so their errors stay text. A file that cannot be read is reported by the verb.
    if !verb.serves() {
        output::report_as(global.format().unwrap_or_default());
    }
    match verbs::check(&matches).and_then(|()| verb.run(global)) {
        Ok(code) => code,
        // The reader of our output has seen enough, as in `tenure get --prefix a | head -1`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Treats a variable that is set to nothing as one that is not set: `TENURE_ENDPOINTS= tenure …` uses the default.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|argument| match argument.get_env().is_some_and(is_empty) {
            true => argument.env(Resettable::Reset),
            false => argument,
        })
        .mut_subcommands(without_empty_variables)
}

/// Ends as clap would, except for `exec`: there 2 may be the command's own code.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.use_stderr() && is_json_asked_for() {
        true => {
            let text = error.render().to_string();
            let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim();
            output::report_as(output::Format::Json);
            output::report_text(text, false);
        }
        false => drop(error.print()),
    }
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

/// Whether a command line that cannot be parsed asks for JSON.
fn is_json_asked_for() -> bool {
    let words: Vec<String> = std::env::args().skip(1).take_while(|word| word != "--").collect();
    let is_json = |text: &str| matches!(text, "json" | "jsonl");
    let of_word = |word: &String| word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o")).map(str::to_owned);
    let joined = words.iter().filter_map(of_word);
    let apart =
        words.windows(2).filter(|pair| matches!(pair[0].as_str(), "-o" | "--output")).map(|pair| pair[1].clone());
    let given: Vec<String> = joined.chain(apart).filter(|text| !text.is_empty()).collect();
    match given.last() {
        Some(format) => is_json(format),
        None => std::env::var("TENURE_OUTPUT").is_ok_and(|text| is_json(&text)),
    }
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
