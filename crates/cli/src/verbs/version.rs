//! `tenure version`: the version of this binary.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_server::config::{ETCD_VERSION, TENURE_VERSION};

use crate::output::Record;
use crate::settings::Global;

const EXAMPLE: &str = "\
Examples:
  tenure version
  tenure status -o wide                 the versions of the members";

/// Print the version of this binary
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Version {}

impl Version {
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let json = json!({ "version": TENURE_VERSION, "etcd_api": ETCD_VERSION });
        Record { sentence: format!("tenure {TENURE_VERSION}"), json }.print(global.format()?)?;
        Ok(ExitCode::SUCCESS)
    }
}
