//! Begins a new cluster with what a snapshot's file, or a stopped member's directory, holds.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use tenure_server::restore::{begin_new_cluster, read_member};

use super::{Restore, status};
use crate::output::Record;
use crate::settings::Global;

impl Restore {
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let format = global.format()?;
        if !self.new_cluster {
            bail!(
                "a restored member begins a new cluster: the old one's members cannot join it, its leases and locks \
                 are gone. Say --new-cluster if that is what you want"
            );
        }
        let machine = if self.from.is_dir() {
            read_member(&self.from)?
        } else {
            status::read(&self.from).map(|(machine, _)| machine)?
        };
        let reborn = begin_new_cluster(&machine, self.revisions_beyond, &self.data_dir)?;
        let (before, after, directory) = (machine.state(), reborn.state(), self.data_dir.display().to_string());
        let (keys, revision) = (after.keys(), after.revision());
        let sentence = format!(
            "restored {keys} keys into {directory}; revisions go on from {revision} (they were at {}); {} leases and {} keys \
             that hung on them are gone\nstart it: tenure serve --data-dir {directory}",
            before.revision(),
            before.lease_count(),
            before.keys() - keys,
        );
        let json = json!({
            "data_dir": directory,
            "keys": keys,
            "revision": revision,
            "old_revision": before.revision(),
            "leases_dropped": before.lease_count(),
            "keys_dropped": before.keys() - keys,
        });
        Record { sentence, json }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}
