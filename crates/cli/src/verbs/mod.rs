//! The verbs, one file each.
//!
//! To add one: a file with its arguments (help with an example first) and a `run`, and a line in
//! the enum and the two lists beneath.

mod alarm;
mod asking;
mod bench;
mod bound;
mod compact;
mod complete;
mod completion;
mod datastore;
mod del;
mod dev;
mod elect;
mod exec;
mod get;
mod holding;
mod lease;
mod lock;
mod locks;
mod member;
mod pairs;
mod people;
mod put;
mod serve;
mod serving;
mod sessions;
mod snapshot;
mod status;
mod txn;
mod unlock;
mod version;
mod watch;
mod why;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgMatches, Subcommand};

use crate::settings::Global;
pub use exec::signals;

#[derive(Subcommand)]
pub enum Verb {
    Serve(Box<serve::Serve>),
    Dev(dev::Dev),
    Exec(exec::Exec),
    Lock(lock::Lock),
    Unlock(unlock::Unlock),
    Locks(locks::Locks),
    Why(why::Why),
    Sessions(sessions::Sessions),
    Elect(elect::Elect),
    Get(get::Get),
    Put(put::Put),
    Del(del::Del),
    Txn(txn::Txn),
    Watch(watch::Watch),
    Lease(lease::Lease),
    Compact(compact::Compact),
    Status(status::Status),
    Member(member::Member),
    Alarm(alarm::Alarm),
    Snapshot(snapshot::Snapshot),
    Datastore(Box<datastore::Datastore>),
    Bench(bench::Bench),
    Completion(completion::Completion),
    Version(version::Version),
    Complete(complete::Complete),
}

/// Runs what this binary does under its hidden verbs; None if none of them is asked for.
pub fn hidden_main() -> Option<ExitCode> {
    bound::hidden_main().or_else(exec::hidden_main)
}

/// What a verb has to say about its command line beyond what its arguments can express.
pub fn check(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        Some((verb @ ("serve" | "datastore"), matches)) => serving::refuse_client_options(verb, "--listen", matches),
        Some((verb @ "dev", matches)) => serving::refuse_client_options(verb, "--client-port", matches),
        _ => Ok(()),
    }
}

impl Verb {
    /// Whether it runs until it is stopped, for other processes to talk to.
    pub fn serves(&self) -> bool {
        matches!(self, Verb::Serve(_) | Verb::Dev(_) | Verb::Datastore(_))
    }

    pub fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        match self {
            Verb::Serve(serve) => serve.run(&global),
            Verb::Dev(dev) => block_on(dev.run(global)),
            Verb::Exec(exec) => block_on(exec.run(global)),
            Verb::Lock(lock) => block_on(lock.run(global)),
            Verb::Unlock(unlock) => block_on(unlock.run(global)),
            Verb::Locks(locks) => block_on(locks.run(global)),
            Verb::Why(why) => block_on(why.run(global)),
            Verb::Sessions(sessions) => block_on(sessions.run(global)),
            Verb::Elect(elect) => block_on(elect.run(global)),
            Verb::Get(get) => block_on(get.run(global)),
            Verb::Put(put) => block_on(put.run(global)),
            Verb::Del(del) => block_on(del.run(global)),
            Verb::Txn(txn) => block_on(txn.run(global)),
            Verb::Watch(watch) => block_on(watch.run(global)),
            Verb::Lease(lease) => block_on(lease.run(global)),
            Verb::Compact(compact) => block_on(compact.run(global)),
            Verb::Status(status) => block_on(status.run(global)),
            Verb::Member(member) => block_on(member.run(global)),
            Verb::Alarm(alarm) => block_on(alarm.run(global)),
            Verb::Snapshot(snapshot) => snapshot.run(global),
            Verb::Datastore(datastore) => block_on(datastore.run(global)),
            Verb::Bench(bench) => bench.run(&global),
            Verb::Completion(completion) => completion.run(),
            Verb::Version(version) => version.run(&global),
            Verb::Complete(complete) => block_on(complete.run(global)),
        }
    }
}

/// Runs a client verb: one thread is enough for it.
fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?.block_on(work)
}
