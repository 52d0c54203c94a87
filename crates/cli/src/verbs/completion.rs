//! `tenure completion`: a script that teaches the shell our verbs and flags, and the names of locks.
//!
//! clap writes the script for verbs and flags. What it cannot know, the names of locks, is added here: the shell
//! asks `tenure complete` for them.

use std::process::ExitCode;

use anyhow::Context;
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
        let script = String::from_utf8(script).context("the script is not text")?;
        output::print(&with_names(self.shell, script))?;
        Ok(ExitCode::SUCCESS)
    }
}

const BASH: &str = r#"
# Names of locks, which only the server knows.
_tenure_names() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="" word place
    local -a servers=()
    for ((place = 1; place < COMP_CWORD; place++)); do
        word="${COMP_WORDS[place]}"
        case "$word" in
            --) verb=""; break ;;
            --endpoints) servers=(--endpoints "${COMP_WORDS[place+1]}") ;;
            exec|lock|unlock|locks|why|elect) [[ -z "$verb" ]] && verb="$word" ;;
        esac
    done
    case "$prev" in
        -w|--wait|--slots|--ttl|--holder|--owner|--metadata|--grace|--signal|-E|--busy-code|--token|--lease) verb="" ;;
        --endpoints|-o|--output|--timeout|--config|--force-release) verb="" ;;
    esac
    if [[ -n "$verb" && "$cur" != -* ]]; then
        mapfile -t COMPREPLY < <(tenure "${servers[@]}" complete locks "$cur" 2>/dev/null)
        [[ ${#COMPREPLY[@]} -gt 0 ]] && return 0
    fi
    _tenure "$@"
}
complete -F _tenure_names -o nosort -o bashdefault -o default tenure
"#;

const ZSH: &str = r#"
# Names of locks, which only the server knows.
_tenure_names() {
    local -a names
    names=("${(@f)$(tenure complete locks "$PREFIX" 2>/dev/null)}")
    compadd -a names
}
"#;

const FISH: &str = r#"
# Names of locks, which only the server knows.
complete -c tenure -n "__fish_seen_subcommand_from exec lock unlock locks why elect" -a "(tenure complete locks (commandline -ct) 2>/dev/null)"
"#;

fn with_names(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH,
        Shell::Zsh => {
            let is_name = |line: &str| line.contains("The lock") || line.contains("The election");
            let line = |line: &str| match is_name(line) {
                true => line.replace(":_default", ":_tenure_names"),
                false => line.to_owned(),
            };
            let mut lines: Vec<String> = script.lines().map(line).collect();
            // Behind the line that tells zsh what this is.
            lines.insert(1.min(lines.len()), ZSH.to_owned());
            lines.join("\n") + "\n"
        }
        _ => script,
    }
}
