//! `tenure completion`: a script that teaches the shell our verbs and flags.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output;

const EXAMPLE: &str = "\
Examples:
  source <(tenure completion bash)      in this shell
  tenure completion fish > ~/.config/fish/completions/tenure.fish";

/// Print a completion script for your shell
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Completion {
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::CommandLine::command(), "tenure", &mut script);
        output::print_bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
