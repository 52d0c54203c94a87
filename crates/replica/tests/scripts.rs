//! Golden scripts: conversations with a member that is alone, read as documentation and checked to the letter.
//!
//! Every line of output begins with the time. Nothing is durable before the script says so:
//! `persisted` reports all that was asked for, `persisted 3` the third and those before it, and
//! `disk fast` reports after every step. `[more]` keeps an input for the step of the next command.
//! After a change that is meant, `UPDATE_GOLDENFILES=1 cargo test -p tenure-replica --test scripts`
//! writes what the member says now; review the difference line by line.
#![allow(clippy::disallowed_types)]

mod harness;

use std::error::Error;
use std::fmt::Write as _;

use bytes::Bytes;
use goldenscript::{Argument, Context};
use harness::{Calls, Disk, config};
use tenure_machine::*;
use tenure_replica::{
    Answer, Answered, Boot, CallId, Config, Consistency, HardState, Input, LockNotice, LockWatchRequest, LogEntry,
    Notice, Now, Output, Read, Replica, WatchRequest,
};

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() -> std::io::Result<()> {
                let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/", stringify!($name));
                goldenscript::run(&mut Runner::default(), path)
            }
        )*
    };
}

scripts!(
    boot,
    proposals,
    reads,
    leases,
    lease_restart,
    lease_checkpoints,
    pauses,
    locks,
    dead_leases,
    patience,
    lock_service,
    barriers,
    sessions,
    lock_watches,
    cancel,
    watches,
    watch_history,
    quota,
    snapshots,
    compaction,
    timeouts,
    faults
);

#[derive(Default)]
struct Runner {
    config: Config,
    replica: Option<Replica>,
    disk: Disk,
    disk_is_fast: bool,
    now_ms: u64,
    batch: Vec<Input>,
    calls: Calls,
    /// Calls of a `fill`, whose answers are counted and not shown one by one.
    fill_calls: std::ops::Range<CallId>,
    filled: u64,
    text: String,
}

type Failure = Box<dyn Error>;

impl goldenscript::Runner for Runner {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, context: &Context) -> Result<String, Failure> {
        let mut args = Args::of_command(command);
        match command.name.as_str() {
            "boot" => self.boot(&mut args)?,
            "restart" => self.restart(HardState { ..self.disk.hard_state })?,
            "restart_with_commit" => {
                let commit = args.number()?;
                self.restart(HardState { commit, ..self.disk.hard_state })?
            }
            "damage" => {
                let index: u64 = args.number()?;
                let entry = self.disk.entries.iter_mut().find(|entry| entry.index == index);
                entry.ok_or("no such entry")?.data = Bytes::from_static(b"\xff written by a newer version");
            }
            "disk" => self.disk_is_fast = args.next_pos() == Some("fast"),
            "persisted" => match args.next_pos() {
                Some(number) => self.persisted(number.parse()?),
                None => self.persist_all(),
            },
            "run" => self.run_for(args.number()?),
            "after" => {
                self.now_ms += args.number::<u64>()?;
                self.step();
            }
            "wake" => {
                let wake_ms = self.replica.as_ref().ok_or("nothing runs")?.wake_ms();
                writeln!(self.text, "in {} ms", wake_ms - self.now_ms)?;
            }
            "calls" => writeln!(self.text, "waiting: {:?}", self.calls.waiting())?,
            "status" => {
                let status = self.replica.as_ref().ok_or("nothing runs")?.status();
                writeln!(self.text, "{}", status_text(&status))?;
            }
            "fill" => {
                let (call, count, bytes): (CallId, u64, usize) = (args.number()?, args.number()?, args.number()?);
                for number in 0..count {
                    let put = put(format!("fill{number}"), "x".repeat(bytes), 0);
                    self.open(call + number, |call| Input::Propose { call, command: put });
                }
                self.fill_calls = call..call + count;
                self.step();
                writeln!(self.text, "{} of {count} answered", std::mem::take(&mut self.filled))?;
                self.fill_calls = 0..0;
            }
            name => {
                let input = self.input(name, &mut args)?;
                self.batch.push(input);
                if !context.tags.contains("more") {
                    self.step();
                }
            }
        }
        args.reject_next()?;
        Ok(std::mem::take(&mut self.text))
    }
}

impl Runner {
    fn boot(&mut self, args: &mut Args) -> Result<(), Failure> {
        let mut config = config(1);
        config.call_timeout_ms = args.key_or("call_timeout_ms", config.call_timeout_ms)?;
        config.snapshot_floor_bytes = args.key_or("snapshot_floor_bytes", config.snapshot_floor_bytes)?;
        config.log_tail_bytes = args.key_or("log_tail_bytes", config.log_tail_bytes)?;
        config.inflight_bytes = args.key_or("inflight_bytes", config.inflight_bytes)?;
        config.watch_buffer_bytes = args.key_or("watch_buffer_bytes", config.watch_buffer_bytes)?;
        config.quota_bytes = args.key_or("quota_bytes", config.quota_bytes)?;
        config.history_age_ms = args.key_or("history_age_ms", config.history_age_ms)?;
        config.history_bytes = args.key_or("history_bytes", config.history_bytes)?;
        config.expiry_budget = args.key_or("expiry_budget", config.expiry_budget)?;
        config.range_budget = args.key_or("range_budget", config.range_budget)?;
        config.election_max_ms = args.key_or("election_max_ms", config.election_max_ms)?;
        config.join_patience_ms = args.key_or("join_patience_ms", 0)?;
        self.config = config;
        let voters = args.key_or("voters", 1)?;
        self.disk = Disk::new(&(1..=voters).collect::<Vec<_>>(), &[]);
        self.now_ms = 1000;
        self.restart(HardState::default())
    }

    fn restart(&mut self, hard_state: HardState) -> Result<(), Failure> {
        self.batch.clear();
        self.calls = Calls::default();
        self.config.boot += 1;
        let boot = Boot { hard_state, ..self.disk.boot() };
        self.replica = Some(Replica::boot(self.config.clone(), boot, self.now())?);
        self.step();
        Ok(())
    }

    fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: 1_000_000 + self.now_ms }
    }

    fn step(&mut self) {
        let Some(replica) = &mut self.replica else { return };
        let mut outputs = Vec::new();
        let now = Now { monotonic_ms: self.now_ms, wall_ms: 1_000_000 + self.now_ms };
        replica.step(now, self.batch.drain(..), &mut outputs);
        for output in outputs {
            self.take(output);
        }
        self.calls.stepped();
        if self.disk_is_fast {
            self.persist_all();
        }
    }

    fn take(&mut self, output: Output) {
        let text = match output {
            Output::Persist(persist) => {
                let mut text = format!("persist {}", persist.number);
                if let Some(HardState { term, vote, commit }) = persist.hard_state {
                    write!(text, ", term {term} vote {vote} commit {commit}").expect("a string takes it");
                }
                for entry in persist.entries.iter().take(4) {
                    write!(text, ", {}", entry_text(entry)).expect("a string takes it");
                }
                if persist.entries.len() > 4 {
                    write!(text, " and {} more", persist.entries.len() - 4).expect("a string takes it");
                }
                text += if persist.sync { "" } else { ", no sync" };
                for (to, _) in &persist.messages {
                    write!(text, ", then a message to {to}").expect("a string takes it");
                }
                self.disk.unwritten.push(persist);
                text
            }
            Output::Send { to, message } => format!("send {} bytes to {to}", message.len()),
            Output::Answer { call, answer } => {
                self.calls.answered(call);
                if self.fill_calls.contains(&call) && answer.result.is_ok() {
                    self.filled += 1;
                    return;
                }
                format!("answer {call}: {}", answer_text(answer))
            }
            Output::Queued { call, ahead } => format!("queued {call}, {ahead} ahead"),
            Output::LockNotice { stream, notice } => format!("lock watches {stream}: {}", lock_notice_text(notice)),
            Output::Session { stream, notice } => format!("session {stream}: {notice:?}"),
            Output::Notice { stream, notice } => format!("stream {stream}: {}", notice_text(notice)),
            Output::SaveSnapshot(save) => {
                let voters = if save.configuration == self.disk.configuration() { "same" } else { "other" };
                let revision = save.view.revision();
                format!("save snapshot {}.{}, revision {revision}, {voters} members", save.index, save.term)
            }
            // A cluster of one, or of three who never move.
            Output::Members(_) => return,
            Output::Removed => "removed".to_owned(),
            Output::SendSnapshot { to, index, .. } => format!("send snapshot {index} to {to}"),
            Output::HashState { index, .. } => format!("hash the state at {index}"),
            Output::SnapshotRefused { index } => format!("snapshot {index} refused"),
            Output::Fatal(reason) => format!("fatal: {reason}"),
        };
        writeln!(self.text, "@{} {text}", self.now_ms).expect("a string takes it");
    }

    fn persisted(&mut self, number: u64) {
        for (to, _) in self.disk.write_upto(number) {
            writeln!(self.text, "@{} message leaves to {to}", self.now_ms).expect("a string takes it");
        }
        self.batch.push(Input::Persisted { number });
        let fast = std::mem::take(&mut self.disk_is_fast);
        self.step();
        self.disk_is_fast = fast;
    }

    fn persist_all(&mut self) {
        while let Some(number) = self.disk.unwritten.last().map(|persist| persist.number) {
            self.persisted(number);
            if !self.disk_is_fast {
                return;
            }
        }
    }

    /// Steps as the driver does: whenever the member wants to be woken, for so long.
    fn run_for(&mut self, millis: u64) {
        let end = self.now_ms + millis;
        while let Some(wake_ms) = self.replica.as_ref().map(Replica::wake_ms)
            && wake_ms <= end
        {
            self.now_ms = wake_ms;
            self.step();
        }
        self.now_ms = end;
    }

    fn open(&mut self, call: CallId, input: impl FnOnce(CallId) -> Input) {
        self.calls.open(call);
        let input = input(call);
        self.batch.push(input);
    }

    fn input(&mut self, name: &str, args: &mut Args) -> Result<Input, Failure> {
        Ok(match name {
            "cancel" => {
                let call = args.number()?;
                self.calls.cancelled(call);
                Input::Cancel { call }
            }
            "cancel_lock" => {
                let (call, name, lease) = (args.number()?, args.text()?, args.number()?);
                self.calls.cancelled(call);
                let key = lock::entry_key(name.as_bytes(), lease).into();
                Input::CancelLock { call, leaves: vec![Leave { key, call: u128::from(call) }] }
            }
            "watch_lock" | "watch_locks" => {
                let (stream, watch) = (args.number()?, args.number()?);
                let start = args.take_key("from").map_or(Ok(0), str::parse)?;
                let request =
                    LockWatchRequest::Create { watch, name: args.text()?.into(), prefix: name == "watch_locks", start };
                Input::LockWatch { stream, request }
            }
            "unwatch_lock" => {
                let (stream, watch) = (args.number()?, args.number()?);
                Input::LockWatch { stream, request: LockWatchRequest::Cancel { watch } }
            }
            "session_opened" => Input::SessionOpened { stream: args.number()?, lease: args.number()? },
            "session_closed" => Input::SessionClosed { stream: args.number()?, lease: args.number()? },
            "saved" => Input::SnapshotSaved { index: args.number()?, bytes: args.number()? },
            "save_failed" => Input::SnapshotFailed { index: args.number()? },
            "watch" | "unwatch" | "resume" | "drained" | "progress" | "close" => {
                Input::Watch { stream: args.number()?, request: watch_request(name, args)? }
            }
            _ => {
                let call = args.number()?;
                self.calls.open(call);
                call_input(name, call, args)?
            }
        })
    }
}

fn call_input(name: &str, call: CallId, args: &mut Args) -> Result<Input, Failure> {
    let propose = |command| Input::Propose { call, command };
    Ok(match name {
        "put" => {
            let (key, value) = (args.text()?, args.text()?);
            propose(put(key, value, args.key_or("lease", 0)?))
        }
        "delete" => propose(Command::Delete(Delete { keys: Keys::One(args.text()?.into()), prev_kv: false })),
        "grant" => {
            let (lease, ttl_ms) = (args.number()?, args.number()?);
            propose(Command::LeaseGrant(LeaseGrant { lease, ttl_ms, client: Bytes::new() }))
        }
        "revoke" => propose(Command::LeaseRevoke { lease: args.number()? }),
        "raise_corrupt" => propose(Command::Alarm(AlarmChange::Raise(alarm(AlarmKind::Corrupt)))),
        "clear_corrupt" => propose(Command::Alarm(AlarmChange::Clear(alarm(AlarmKind::Corrupt)))),
        "clear_no_space" => propose(Command::Alarm(AlarmChange::Clear(alarm(AlarmKind::NoSpace)))),
        "lock" => {
            let (names, lease) = (args.text()?, args.number()?);
            let mut names = names.split('@').map(|name| Bytes::copy_from_slice(name.as_bytes()));
            let parties = args.key_or("parties", 0)?;
            let lock = Lock {
                mode: if parties == 0 { Mode::Exclusive } else { Mode::Barrier(parties) },
                name: names.next().unwrap_or_default(),
                more_names: names.collect(),
                lease,
                call: u128::from(call),
                try_once: args.next_pos() == Some("try"),
                ..Default::default()
            };
            Input::Lock { call, lock: Box::new(lock) }
        }
        "unlock" => {
            let names = args.text()?.split('@').map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
            propose(Command::Unlock(Unlock { names, token: args.number()?, epoch: 0 }))
        }
        "force" => {
            let name = args.text()?.into();
            propose(Command::ForceRelease { name, token: args.number()? })
        }
        "resume_session" => propose(Command::ResumeSession { lease: args.number()? }),
        "keep_alive" => Input::KeepAlive { call, lease: args.number()?, epoch: args.key_or("epoch", 0)? },
        "times" => {
            let mut leases = Vec::new();
            while let Some(lease) = args.next_pos() {
                leases.push(lease.parse()?);
            }
            read(call, Read::LeaseTimes(leases))
        }
        "get" => read(call, Read::Range(RangeQuery::new(Keys::One(args.text()?.into())))),
        "get_all" => read(call, Read::Range(RangeQuery::new(Keys::all()))),
        "view" => read(call, Read::View),
        "time_to_live" => read(call, Read::LeaseTimeToLive(args.number()?)),
        "get_local" => {
            let read = Read::Range(RangeQuery::new(Keys::One(args.text()?.into())));
            Input::Read { call, read, consistency: Consistency::Serializable }
        }
        name => return Err(format!("no command {name}").into()),
    })
}

fn read(call: CallId, read: Read) -> Input {
    Input::Read { call, read, consistency: Consistency::Linearizable }
}

fn put(key: String, value: String, lease: LeaseId) -> Command {
    let (key, value) = (Bytes::from(key), Bytes::from(value));
    Command::Put(Put { key, value, lease, prev_kv: false, ignore_value: false, ignore_lease: false })
}

fn alarm(kind: AlarmKind) -> Alarm {
    Alarm { member: 1, kind }
}

fn watch_request(name: &str, args: &mut Args) -> Result<WatchRequest, Failure> {
    Ok(match name {
        "watch" => {
            let watch = args.number()?;
            let key = Bytes::from(args.text()?);
            let start = args.take_key("start").map(str::parse).transpose()?;
            let keys = if args.take_key("prefix").is_some() { Keys::prefix(key) } else { Keys::One(key) };
            WatchRequest::Create { watch, keys, start }
        }
        "unwatch" => WatchRequest::Cancel { watch: args.number()? },
        "resume" => WatchRequest::Resume { watch: args.number()?, from: args.number()? },
        "drained" => WatchRequest::Drained { bytes: args.number()? },
        "progress" => WatchRequest::Progress,
        _ => WatchRequest::Close,
    })
}

fn show(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() > 20 { format!("{} bytes", text.len()) } else { text.into_owned() }
}

fn entry_text(entry: &LogEntry) -> String {
    let what = match codec::decode(entry.data.clone()) {
        _ if entry.data.is_empty() => "empty".to_owned(),
        Err(error) => format!("{error}"),
        Ok(envelope) => match envelope.command {
            Command::Put(put) => format!("put {}={}", show(&put.key), show(&put.value)),
            Command::Delete(Delete { keys: Keys::One(key), .. }) => format!("delete {}", show(&key)),
            Command::LeaseGrant(grant) => format!("grant {} for {} ms", grant.lease, grant.ttl_ms),
            Command::LeaseRevoke { lease } => format!("revoke {lease}"),
            Command::LeaseExpire { term, leases } => format!("expire {leases:?} of term {term}"),
            Command::LeaseCheckpoint { term, left_ms } => format!("checkpoint {left_ms:?} of term {term}"),
            Command::Lock(lock) => format!("lock {} with {} by call {}", show(&lock.name), lock.lease, lock.call),
            Command::Leave(leave) => format!("leave {} by call {}", show(&leave.key), leave.call),
            Command::Compact { revision } => format!("compact {revision}"),
            other => format!("{other:?}"),
        },
    };
    format!("{}.{} {what}", entry.index, entry.term)
}

fn answer_text(answer: Answer) -> String {
    let revision = answer.revision;
    match answer.result {
        Err(failure) => format!("{failure:?}, revision {revision}"),
        Ok(Answered::Reply(reply)) => format!("{reply:?}, revision {revision}"),
        Ok(Answered::Lock(reply)) => {
            let LockReply { key, more_keys, token, granted, slot, renewed, ahead, mode: _ } = reply;
            let keys: Vec<_> = std::iter::once(&key).chain(&more_keys).map(|key| show(key)).collect();
            let key = keys.join(" and ");
            let what = if granted { "granted" } else { "waiting" };
            let renewed = if renewed { ", renewed" } else { "" };
            let slot = if slot > 0 { format!(", slot {slot}") } else { String::new() };
            format!("{what} {key} token {token}, {ahead} ahead{renewed}{slot}, revision {revision}")
        }
        Ok(Answered::Range(reply)) => {
            let kvs: Vec<_> = reply.kvs.iter().map(|kv| format!("{}={}", show(&kv.key), show(&kv.value))).collect();
            format!("{kvs:?}, revision {revision}")
        }
        Ok(Answered::Members(members)) => format!("members {members:?}"),
        Ok(Answered::Leader(leader)) => format!("leader {leader}"),
        Ok(Answered::Reseeded { index }) => format!("reseeded, up to {index}"),
        Ok(Answered::View(view)) => format!("{view:?}"),
        Ok(Answered::KeptAlive { ttl_ms }) => format!("kept alive {ttl_ms:?}"),
        Ok(Answered::LeaseTimeToLive(status)) => format!("{status:?}"),
        Ok(Answered::LeaseTimes(times)) => format!("{times:?}"),
    }
}

fn commit_text(commit: &Commit) -> String {
    let events = commit.events.iter().map(|event| match event.kind() {
        EventKind::Put => format!("{}={}", show(&event.kv.key), show(&event.kv.value)),
        EventKind::Delete => format!("-{}", show(&event.kv.key)),
    });
    format!("{}: {}", commit.revision, events.collect::<Vec<_>>().join(" "))
}

fn lock_notice_text(notice: LockNotice) -> String {
    match notice {
        LockNotice::Created { watch, revision, .. } => format!("watch {watch} created, revision {revision}"),
        LockNotice::Forgotten { watch, oldest, .. } => format!("watch {watch} refused, known from {oldest} on"),
        LockNotice::FellBehind { watch, .. } => format!("watch {watch} fell behind"),
        LockNotice::Events { watch, events, .. } => {
            let events = events.iter().map(|event| {
                let holder = event
                    .holder
                    .as_ref()
                    .map_or("free".to_owned(), |entry| format!("held by {} token {}", show(&entry.key), entry.token));
                let ended = event.ended.as_ref().map(|ended| format!(" after token {}", ended.token));
                format!("{} {holder}{}", show(&event.name), ended.unwrap_or_default())
            });
            format!("watch {watch} told [{}]", events.collect::<Vec<_>>().join(", "))
        }
    }
}

fn notice_text(notice: Notice) -> String {
    match notice {
        Notice::Created { watch, revision, .. } => format!("watch {watch} created, revision {revision}"),
        Notice::Commits { watch, commits, bytes, revision, .. } => {
            let commits: Vec<_> = commits.iter().map(commit_text).collect();
            format!("watch {watch} fed [{}], {bytes} bytes, revision {revision}", commits.join(", "))
        }
        Notice::Behind { watch, from, view, .. } => {
            let commits: Vec<_> = match view.commits(from) {
                Ok(commits) => commits.map(|commit| commit_text(&commit)).collect(),
                Err(refusal) => vec![refusal.to_string()],
            };
            format!("watch {watch} behind from {from}, view of {} has [{}]", view.revision(), commits.join(", "))
        }
        Notice::Compacted { watch, compacted, revision, .. } => {
            format!("watch {watch} compacted at {compacted}, revision {revision}")
        }
        Notice::Progress { revision, .. } => format!("progress {revision}"),
    }
}

fn status_text(status: &tenure_replica::Status) -> String {
    let tenure_replica::Status { leader, term, last_index, commit_index, applied_index, .. } = status;
    let tenure_replica::Status { revision, compacted_revision, leases, watches, waiting_locks, .. } = status;
    format!(
        "leader {leader}, term {term}, last {last_index}, committed {commit_index}, applied {applied_index}, revision \
         {revision}, compacted {compacted_revision}, {leases} leases, {watches} watches, {waiting_locks} waiting locks, \
         snapshot {}",
        status.snapshot_index
    )
}

struct Args<'a> {
    words: Vec<(Option<&'a str>, &'a str)>,
}

impl<'a> Args<'a> {
    fn of_command(command: &'a goldenscript::Command) -> Args<'a> {
        let words = command.args.iter().filter_map(|argument| match argument {
            Argument::Positional(value) => Some((None, value.as_str())),
            Argument::KeyValue(key, value) => Some((Some(key.as_str()), value.as_str())),
            _ => None,
        });
        Args { words: words.collect() }
    }

    fn next_pos(&mut self) -> Option<&'a str> {
        let index = self.words.iter().position(|(key, _)| key.is_none())?;
        Some(self.words.remove(index).1)
    }

    fn text(&mut self) -> Result<String, Failure> {
        Ok(self.next_pos().ok_or("a word is missing")?.to_owned())
    }

    fn number<T: std::str::FromStr<Err = std::num::ParseIntError>>(&mut self) -> Result<T, Failure> {
        Ok(self.next_pos().ok_or("a number is missing")?.parse()?)
    }

    fn take_key(&mut self, key: &str) -> Option<&'a str> {
        let index = self.words.iter().position(|(found, _)| *found == Some(key))?;
        Some(self.words.remove(index).1)
    }

    fn key_or<T: std::str::FromStr<Err = std::num::ParseIntError>>(
        &mut self,
        key: &str,
        other: T,
    ) -> Result<T, Failure> {
        Ok(self.take_key(key).map(str::parse).transpose()?.unwrap_or(other))
    }

    fn reject_next(&self) -> Result<(), Failure> {
        self.words.first().map_or(Ok(()), |word| Err(format!("what is {word:?}?").into()))
    }
}
