//! Golden scripts: conversations with a machine, read as documentation and checked to the letter.
//!
//! After a change that is meant, `UPDATE_GOLDENFILES=1 cargo test -p tenure-machine --test scripts`
//! writes what the machine says now; review the difference line by line.
#![allow(clippy::disallowed_types)]

use std::error::Error;
use std::fmt::Write as _;

use bytes::Bytes;
use goldenscript::{Argument, Context};
use tenure_machine::snapshot::{self, Restore};
use tenure_machine::*;

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
    keys,
    ranges,
    transactions,
    leases,
    locks,
    lock_modes,
    barriers,
    lock_overwrites,
    lock_service,
    compaction,
    alarms,
    origins,
    levels,
    lock_level_1
);

#[derive(Default)]
struct Runner {
    machine: Machine,
    index: u64,
    origin: Option<Origin>,
}

type Failure = Box<dyn Error>;

impl goldenscript::Runner for Runner {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Result<String, Failure> {
        let mut args = Args::of_command(command);
        let output = match command.name.as_str() {
            "get" => {
                let query = range_query(&mut args)?;
                range_text(&self.machine.state().range(&query)?)
            }
            "check" => check(&mut args)?,
            "commits" => self.commits(&mut args)?,
            "queue" => self.queue(args.next_pos().unwrap_or("")),
            "entries" => self.entries(number(&mut args)?),
            "recent" => self.recent(),
            "leases" => self.leases(),
            "status" => {
                let view = self.machine.state();
                let (revision, compacted, keys) = (view.revision(), view.compacted_revision(), view.keys());
                format!("revision {revision}, compacted {compacted}, {keys} keys, alarms {:?}", view.alarms())
            }
            "level" => {
                let view = self.machine.state();
                let pin = view.level_pin().map_or(String::new(), |pin| format!(", pinned at {pin}"));
                format!("level {}{pin}", view.level())
            }
            "restart" => self.restart()?,
            "origin" => {
                let number = |text: Option<&str>| text.unwrap_or("0").parse::<u64>();
                self.origin = Some(Origin {
                    member: number(args.take_key("member"))?,
                    boot: number(args.take_key("boot"))?,
                    sequence: number(args.take_key("sequence"))?,
                    settled_below: number(args.take_key("settled_below"))?,
                });
                String::new()
            }
            name => {
                let command = parse_command(name, &mut args)?;
                self.apply(command)?
            }
        };
        args.reject_next()?;
        Ok(output)
    }
}

impl Runner {
    fn apply(&mut self, command: Command) -> Result<String, Failure> {
        self.index += 1;
        let envelope = Envelope { wall_ms: self.index * 1000, origin: self.origin.take(), command };
        let applied = self.machine.apply(self.index, 1, &envelope);
        let mut text = reply_text(applied.reply?);
        if let Some(commit) = &applied.commit {
            write!(text, "\n  {}", commit_text(commit))?;
        }
        for change in &applied.lease_changes {
            write!(text, "\n  lease {change:?}")?;
        }
        for change in &applied.lock_changes {
            write!(text, "\n  {}", lock_change_text(change))?;
        }
        Ok(text)
    }

    fn commits(&self, args: &mut Args) -> Result<String, Failure> {
        let from = args.next_pos().ok_or("from which revision?")?.parse()?;
        let commits: Vec<_> = self.machine.state().commits(from)?.map(|commit| commit_text(&commit)).collect();
        Ok(if commits.is_empty() { "nothing".to_owned() } else { commits.join("\n") })
    }

    fn queue(&self, name: &str) -> String {
        let view = self.machine.state();
        let lines = view.lock_queue(name.as_bytes()).map(|entry| {
            let granted = entry.granted_wall_ms.map_or("waits".to_owned(), |wall_ms| format!("holds since {wall_ms}"));
            format!(
                "{} token {} lease {} {:?} {granted}, joined {}, last joiner {:?}, holder {:?}",
                show(&entry.key),
                entry.token,
                entry.lease,
                entry.mode,
                entry.joined_wall_ms,
                entry.last_joiner,
                show(&entry.holder)
            )
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() { "free".to_owned() } else { lines.join("\n") }
    }

    fn recent(&self) -> String {
        let lines = self.machine.state().recent_holders().map(|holder| {
            format!(
                "{} token {} lease {} holder {:?}: held {} to {}, {:?}",
                show(holder.name()),
                holder.token,
                holder.lease,
                show(&holder.holder),
                holder.granted_wall_ms.unwrap_or(0),
                holder.ended_wall_ms,
                holder.cause
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The entries of a lease.
    fn entries(&self, lease: LeaseId) -> String {
        let entries = self.machine.state().lease_entries(lease);
        let lines: Vec<_> = entries.map(|(name, entry)| format!("{} token {}", show(name), entry.token)).collect();
        if lines.is_empty() { "no entries".to_owned() } else { lines.join("\n") }
    }

    fn leases(&self) -> String {
        let lines = self.machine.state().leases().map(|lease| {
            let keys: Vec<_> = lease.keys.iter().map(|key| show(key)).collect();
            let (id, ttl_ms, wall_ms) = (lease.lease, lease.ttl_ms, lease.granted_wall_ms);
            format!("lease {id}: {ttl_ms} ms, granted at {wall_ms}, keys {keys:?}")
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() { "no leases".to_owned() } else { lines.join("\n") }
    }

    fn restart(&mut self) -> Result<String, Failure> {
        let hash = self.machine.state().hash();
        let mut restore = Restore::new();
        for chunk in snapshot::chunks(self.machine.view(), 64) {
            restore.chunk(&chunk)?;
        }
        self.machine = restore.finish()?;
        let same = if self.machine.state().hash() == hash { "the same" } else { "ANOTHER" };
        Ok(format!("from a snapshot: {same} state"))
    }
}

fn parse_command(name: &str, args: &mut Args) -> Result<Command, Failure> {
    Ok(match name {
        "put" => Command::Put(put(args)?),
        "delete" => Command::Delete(delete(args)?),
        "txn" => Command::Txn(txn(args)?),
        "compact" => Command::Compact { revision: number(args)? },
        "grant" => {
            let lease = number(args)?;
            let ttl_ms = args.take_key("ttl_ms").unwrap_or("30000").parse()?;
            let client = bytes(args.take_key("client").unwrap_or(""));
            Command::LeaseGrant(LeaseGrant { lease, ttl_ms, client })
        }
        "revoke" => Command::LeaseRevoke { lease: number(args)? },
        "expire" => {
            let term = args.take_key("term").unwrap_or("1").parse()?;
            let mut leases = Vec::new();
            while let Some(lease) = args.next_pos() {
                leases.push(lease.parse()?);
            }
            Command::LeaseExpire { term, leases }
        }
        "lock" => Command::Lock(Box::new(lock(args)?)),
        "unlock" => {
            let names = bytes_list(args.next_pos().ok_or("which lock?")?);
            let epoch = args.take_key("epoch").unwrap_or("0").parse()?;
            Command::Unlock(Unlock { names, token: number(args)?, epoch })
        }
        "force" => {
            let name = bytes(args.next_pos().ok_or("which lock?")?);
            Command::ForceRelease { name, token: number(args)? }
        }
        "forget" => Command::ForgetLock { name: bytes(args.next_pos().ok_or("which lock?")?) },
        "resume" => Command::ResumeSession { lease: number(args)? },
        "leave" => {
            let key = bytes(args.next_pos().ok_or("which key?")?);
            let call = args.take_key("call").unwrap_or("1").parse()?;
            Command::Leave(Leave { key, call })
        }
        "raise" | "clear" => {
            let kind = match args.next_pos() {
                Some("nospace") => AlarmKind::NoSpace,
                Some("corrupt") => AlarmKind::Corrupt,
                _ => return Err("nospace or corrupt?".into()),
            };
            let alarm = Alarm { kind, member: args.take_key("member").unwrap_or("0").parse()? };
            Command::Alarm(if name == "raise" { AlarmChange::Raise(alarm) } else { AlarmChange::Clear(alarm) })
        }
        "raise_level" => Command::RaiseLevel { level: number(args)?.try_into()? },
        "pin_level" => {
            let level = args.next_pos().map(str::parse).transpose()?;
            Command::PinLevel { level }
        }
        name => return Err(format!("unknown command {name}").into()),
    })
}

fn check(args: &mut Args) -> Result<String, Failure> {
    txn(args)?.check()?;
    Ok("fine".to_owned())
}

fn put(args: &mut Args) -> Result<Put, Failure> {
    let mut put = Put {
        key: bytes(args.next_pos().ok_or("which key?")?),
        value: Bytes::new(),
        lease: args.take_key("lease").unwrap_or("0").parse()?,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    };
    while let Some(argument) = args.next_pos() {
        match argument {
            "prev" => put.prev_kv = true,
            "ignore_value" => put.ignore_value = true,
            "ignore_lease" => put.ignore_lease = true,
            value => put.value = bytes(value),
        }
    }
    Ok(put)
}

fn delete(args: &mut Args) -> Result<Delete, Failure> {
    let keys = parse_keys(args)?;
    Ok(Delete { keys, prev_kv: args.next_pos() == Some("prev") })
}

fn parse_keys(args: &mut Args) -> Result<Keys, Failure> {
    let key = bytes(args.next_pos().ok_or("which key?")?);
    Ok(match args.take_key("to") {
        Some("end") => Keys::Span { from: key, to: None },
        Some("prefix") => Keys::prefix(key),
        Some(to) => Keys::Span { from: key, to: Some(bytes(to)) },
        None => Keys::One(key),
    })
}

fn range_query(args: &mut Args) -> Result<RangeQuery, Failure> {
    let mut query = RangeQuery::new(parse_keys(args)?);
    while let Some((key, value)) = args.next_key() {
        match key {
            "revision" => query.revision = value.parse()?,
            "limit" => query.limit = value.parse()?,
            "min_mod" => query.min_mod_revision = value.parse()?,
            "max_mod" => query.max_mod_revision = value.parse()?,
            "min_create" => query.min_create_revision = value.parse()?,
            "max_create" => query.max_create_revision = value.parse()?,
            "order" => {
                query.sort_order = match value {
                    "ascend" => SortOrder::Ascend,
                    "descend" => SortOrder::Descend,
                    _ => return Err("which order?".into()),
                }
            }
            "by" => {
                query.sort_target = match value {
                    "key" => SortTarget::Key,
                    "version" => SortTarget::Version,
                    "create" => SortTarget::CreateRevision,
                    "mod" => SortTarget::ModRevision,
                    "value" => SortTarget::Value,
                    _ => return Err("by what?".into()),
                }
            }
            key => return Err(format!("unknown option {key}").into()),
        }
    }
    while let Some(flag) = args.next_pos() {
        match flag {
            "keys_only" => query.keys_only = true,
            "count_only" => query.count_only = true,
            flag => return Err(format!("unknown flag {flag}").into()),
        }
    }
    Ok(query)
}

fn bytes_list(text: &str) -> Vec<Bytes> {
    text.split('@').map(bytes).collect()
}

fn lock(args: &mut Args) -> Result<Lock, Failure> {
    let mut names = bytes_list(args.next_pos().ok_or("which lock?")?);
    let name = names.remove(0);
    let mode = match args.take_key("mode") {
        None => Mode::Exclusive,
        Some("shared") => Mode::Shared,
        Some(mode) => match mode.strip_prefix("barrier") {
            Some(parties) => Mode::Barrier(parties.parse()?),
            None => Mode::Slots(mode.parse()?),
        },
    };
    let word = args.next_pos();
    Ok(Lock {
        name,
        lease: args.take_key("lease").ok_or("which lease?")?.parse()?,
        call: args.take_key("call").unwrap_or("1").parse()?,
        mode,
        value: bytes(args.take_key("value").unwrap_or("")),
        owner: bytes(args.take_key("owner").unwrap_or("")),
        holder: bytes(args.take_key("holder").unwrap_or("")),
        metadata: Bytes::new(),
        more_names: names,
        epoch: args.take_key("epoch").unwrap_or("0").parse()?,
        overwrite: word == Some("overwrite"),
        try_once: word == Some("try"),
    })
}

/// `if="version(a) = 0, value(b) > x" then="put a 1; get b; { if .. then .. else .. }"`: lists in text, nested in braces.
fn txn(args: &mut Args) -> Result<Txn, Failure> {
    let compare = split(args.take_key("if").unwrap_or(""), ',').into_iter().map(compare).collect::<Result<_, _>>()?;
    let success = split(args.take_key("then").unwrap_or(""), ';').into_iter().map(op).collect::<Result<_, _>>()?;
    let failure = split(args.take_key("else").unwrap_or(""), ';').into_iter().map(op).collect::<Result<_, _>>()?;
    Ok(Txn { compare, success, failure })
}

fn compare(text: &str) -> Result<Compare, Failure> {
    let (target, rest) = text.split_once('(').ok_or("which target?")?;
    let (key, rest) = rest.split_once(')').ok_or("which key?")?;
    let (result, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let keys = match key.split_once("..") {
        Some((from, "")) => Keys::Span { from: bytes(from), to: None },
        Some((from, to)) => Keys::Span { from: bytes(from), to: Some(bytes(to)) },
        None => Keys::One(bytes(key)),
    };
    let result = match result {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        _ => return Err("which comparison?".into()),
    };
    let target = match target {
        "version" => CompareTarget::Version(value.parse()?),
        "create" => CompareTarget::CreateRevision(value.parse()?),
        "mod" => CompareTarget::ModRevision(value.parse()?),
        "lease" => CompareTarget::Lease(value.parse()?),
        "value" => CompareTarget::Value(bytes(value)),
        _ => return Err("which target?".into()),
    };
    Ok(Compare { keys, result, target })
}

/// An operation is a line of the script language itself.
fn op(text: &str) -> Result<Op, Failure> {
    if let Some(nested) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        let part = |name: &str| {
            let start = nested.find(&format!("{name}(("))? + name.len() + 2;
            Some(&nested[start..start + nested[start..].find("))")?])
        };
        let list = |name: &str| split(part(name).unwrap_or(""), ';').into_iter().map(op).collect::<Result<_, _>>();
        let compare = split(part("if").unwrap_or(""), ',').into_iter().map(compare).collect::<Result<_, _>>()?;
        return Ok(Op::Txn(Txn { compare, success: list("then")?, failure: list("else")? }));
    }
    let mut args = Args::of_text(text);
    let name = args.next_pos().unwrap_or("");
    Ok(match name {
        "put" => Op::Put(put(&mut args)?),
        "delete" => Op::Delete(delete(&mut args)?),
        "get" => Op::Range(range_query(&mut args)?),
        name => return Err(format!("unknown operation {name}").into()),
    })
}

/// Splits at the separator, but not within braces.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            character if character == separator && depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// The words of a command, or of an operation within one: positional, or `key=value`.
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

    fn of_text(text: &'a str) -> Args<'a> {
        let words = text.split_whitespace().map(|word| match word.split_once('=') {
            Some((key, value)) => (Some(key), value),
            // Two quotes stand for nothing at all.
            None => (None, word.trim_matches('\'')),
        });
        Args { words: words.collect() }
    }

    fn next_pos(&mut self) -> Option<&'a str> {
        let index = self.words.iter().position(|(key, _)| key.is_none())?;
        Some(self.words.remove(index).1)
    }

    fn next_key(&mut self) -> Option<(&'a str, &'a str)> {
        let index = self.words.iter().position(|(key, _)| key.is_some())?;
        let (key, value) = self.words.remove(index);
        Some((key?, value))
    }

    fn take_key(&mut self, key: &str) -> Option<&'a str> {
        let index = self.words.iter().position(|(found, _)| *found == Some(key))?;
        Some(self.words.remove(index).1)
    }

    fn reject_next(&self) -> Result<(), Failure> {
        self.words.first().map_or(Ok(()), |word| Err(format!("what is {word:?}?").into()))
    }
}

fn number(args: &mut Args) -> Result<i64, Failure> {
    Ok(args.next_pos().ok_or("a number is missing")?.parse()?)
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "\\0")
}

fn kv_text(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease {}", kv.lease) };
    let (create, modified, version) = (kv.create_revision, kv.mod_revision, kv.version);
    format!("{}={} (create {create} mod {modified} version {version}{lease})", show(&kv.key), show(&kv.value))
}

fn prev_text(prev: Option<&KeyValue>) -> String {
    prev.map_or(String::new(), |prev| format!(", was {}", kv_text(prev)))
}

fn range_text(reply: &RangeReply) -> String {
    let mut text = format!("{} of {}{}", reply.kvs.len(), reply.count, if reply.more { ", more" } else { "" });
    for kv in &reply.kvs {
        let _ = write!(text, "\n    {}", if reply.keys_only { show(&kv.key) } else { kv_text(kv) });
    }
    text
}

fn delete_text(deleted: i64, prev: &[std::sync::Arc<KeyValue>]) -> String {
    let prev: String = prev.iter().map(|prev| prev_text(Some(prev))).collect();
    format!("deleted {deleted}{prev}")
}

fn reply_text(reply: Reply) -> String {
    match reply {
        Reply::Put { prev } => format!("put{}", prev_text(prev.as_deref())),
        Reply::Delete { deleted, prev } => delete_text(deleted, &prev),
        Reply::Txn(txn) => txn_text(&txn, 1),
        Reply::Lock(lock) => {
            let granted = if lock.granted { "granted" } else { "waits" };
            let renewed = if lock.renewed { ", renewed" } else { "" };
            let slot = if lock.slot > 0 { format!(", slot {}", lock.slot) } else { String::new() };
            let keys: Vec<_> = std::iter::once(&lock.key).chain(&lock.more_keys).map(|key| show(key)).collect();
            format!("{} token {}: {granted}, {} ahead{slot}{renewed}", keys.join(" and "), lock.token, lock.ahead)
        }
        Reply::Busy(busy) => {
            let holder = busy.holder.map(|holder| format!(", held by {} {}", show(&holder.key), show(&holder.holder)));
            format!("{} is busy{}, {} wait", show(&busy.name), holder.unwrap_or_default(), busy.waiting)
        }
        Reply::ForceReleased(entry) => format!("took it from {} token {}", show(&entry.key), entry.token),
        reply => format!("{reply:?}"),
    }
}

fn txn_text(txn: &TxnReply, depth: usize) -> String {
    let mut text = if txn.succeeded { "then".to_owned() } else { "else".to_owned() };
    for response in &txn.responses {
        let response = match response {
            OpReply::Range(range) => range_text(range),
            OpReply::Put { prev } => format!("put{}", prev_text(prev.as_deref())),
            OpReply::Delete { deleted, prev } => delete_text(*deleted, prev),
            OpReply::Txn(txn) => txn_text(txn, depth + 1),
        };
        let _ = write!(text, "\n{}- {response}", "  ".repeat(depth));
    }
    text
}

fn commit_text(commit: &Commit) -> String {
    let events = commit.events.iter().map(|event| {
        let prev = prev_text(event.prev.as_deref());
        match event.kind() {
            EventKind::Put => format!("PUT {}{prev}", kv_text(&event.kv)),
            EventKind::Delete => format!("DELETE {}{prev}", show(&event.kv.key)),
        }
    });
    format!("@{} {}", commit.revision, events.collect::<Vec<_>>().join(" | "))
}

fn lock_change_text(change: &LockChange) -> String {
    let name = show(change.name());
    let LockEntry { key, token, lease, granted_wall_ms, .. } = &**change.entry();
    match change {
        LockChange::Granted(_) => {
            format!("GRANTED {name} to {} token {token} lease {lease}", show(key))
        }
        LockChange::Ended { cause, .. } => {
            let was = if granted_wall_ms.is_some() { "holder" } else { "waiter" };
            format!("ENDED {name} {was} {} token {token} lease {lease}: {cause:?}", show(key))
        }
    }
}
