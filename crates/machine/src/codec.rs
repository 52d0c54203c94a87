//! Commands as bytes: what the log and the wire between members carry.
//!
//! One format byte, the leader's wall clock, the origin if there is one, then a tag for the command
//! and its fields in order. Numbers are varints, bytes carry their length, flags share a byte. The
//! format byte is raised when the meaning of existing bytes changes; a new command, and a command with
//! new fields, is a new tag. A tag or a format byte beyond those of this release is told apart from
//! damage ([`DecodeError::is_of_later_release`]): a later release wrote it.
//!
//! Decoding copies nothing: keys and values are slices of the bytes given. It never panics, takes
//! no memory on the word of an unchecked length, and accepts nothing after the end.

use bytes::Bytes;

use crate::encoding::{ReadResult, Reader, put_bytes, put_signed, put_varint};
use crate::level::HIGHEST;
use crate::{
    Alarm, AlarmChange, AlarmKind, Command, Compare, CompareResult, CompareTarget, Delete, Envelope, Keys, LeaseGrant,
    Leave, Level, Lock, Member, MemberChange, Mode, Op, Origin, Put, RangeQuery, SortOrder, SortTarget, Txn, Unlock,
    limits,
};

/// Why bytes are not a command that this release can apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No release writes such bytes.
    #[error("undecodable command: {0}")]
    Damaged(&'static str),
    #[error("unknown command {tag}: a later release is needed (this one supports feature level {HIGHEST})")]
    UnknownCommand { tag: u8 },
    #[error("unknown command format {format}: a later release is needed (this one supports feature level {HIGHEST})")]
    UnknownFormat { format: u8 },
}

impl DecodeError {
    /// Whether a later release wrote the command, and would understand it.
    pub fn is_of_later_release(&self) -> bool {
        !matches!(self, DecodeError::Damaged(_))
    }
}

impl From<&'static str> for DecodeError {
    fn from(reason: &'static str) -> DecodeError {
        DecodeError::Damaged(reason)
    }
}

/// The format of commands that this code writes, and the newest that it reads.
pub const FORMAT: u8 = 1;

pub fn encode(envelope: &Envelope, into: &mut Vec<u8>) {
    into.push(FORMAT);
    put_varint(into, envelope.wall_ms);
    into.push(u8::from(envelope.origin.is_some()));
    if let Some(origin) = &envelope.origin {
        for number in [origin.member, origin.boot, origin.sequence, origin.settled_below] {
            put_varint(into, number);
        }
    }
    encode_command(&envelope.command, into);
}

const RAISE_LEVEL: u8 = 19;
const COMPARE_STATES: u8 = 22;

/// The level that an encoded command raises the cluster to; `None` if it is another command. Looks at no more than the
/// envelope, so it can be asked of every entry.
pub fn raised_level(bytes: &[u8]) -> Option<Level> {
    let mut reader = Reader::new(bytes);
    // A later format may mean anything by its bytes. Its members raised the level before they wrote it.
    if reader.byte().ok()? != FORMAT {
        return None;
    }
    reader.varint().ok()?;
    if reader.flag().ok()? {
        for _ in 0..4 {
            reader.varint().ok()?;
        }
    }
    if reader.byte().ok()? == RAISE_LEVEL { reader.small().ok() } else { None }
}

pub fn decode(bytes: Bytes) -> Result<Envelope, DecodeError> {
    let mut decoder = Decoder { whole: &bytes, reader: Reader::new(&bytes) };
    decoder.envelope()
}

fn encode_command(command: &Command, into: &mut Vec<u8>) {
    match command {
        Command::Put(put) => {
            into.push(1);
            encode_put(put, into);
        }
        Command::Delete(delete) => {
            into.push(2);
            encode_delete(delete, into);
        }
        Command::Txn(txn) => {
            into.push(3);
            encode_txn(txn, into);
        }
        Command::Compact { revision } => {
            into.push(4);
            put_signed(into, *revision);
        }
        Command::LeaseGrant(grant) => {
            into.push(5);
            put_signed(into, grant.lease);
            put_varint(into, grant.ttl_ms);
            put_bytes(into, &grant.client);
        }
        Command::LeaseRevoke { lease } => {
            into.push(6);
            put_signed(into, *lease);
        }
        Command::LeaseExpire { term, leases } => {
            into.push(7);
            put_varint(into, *term);
            put_varint(into, leases.len() as u64);
            for lease in leases {
                put_signed(into, *lease);
            }
        }
        Command::Lock(lock) => {
            // 8 was a lock before there were several names and sessions.
            into.push(16);
            encode_lock(lock, into);
        }
        Command::Leave(leave) => {
            into.push(9);
            put_bytes(into, &leave.key);
            into.extend_from_slice(&leave.call.to_le_bytes());
        }
        Command::Alarm(change) => {
            into.push(10);
            let (raised, alarm) = match change {
                AlarmChange::Raise(alarm) => (true, alarm),
                AlarmChange::Clear(alarm) => (false, alarm),
            };
            into.push(u8::from(raised));
            encode_alarm(alarm, into);
        }
        Command::Publish(member) => {
            into.push(11);
            encode_member(member, into);
        }
        Command::Unlock(unlock) => {
            into.push(12);
            encode_names(&unlock.names, into);
            put_signed(into, unlock.token);
            put_varint(into, unlock.epoch);
        }
        Command::ForceRelease { name, token } => {
            into.push(13);
            put_bytes(into, name);
            put_signed(into, *token);
        }
        Command::ForgetLock { name } => {
            into.push(14);
            put_bytes(into, name);
        }
        Command::ResumeSession { lease } => {
            into.push(15);
            put_signed(into, *lease);
        }
        Command::ChangeMembers(change) => {
            into.push(17);
            encode_change(change, into);
        }
        Command::LeaseCheckpoint { term, left_ms } => {
            into.push(18);
            put_varint(into, *term);
            put_varint(into, left_ms.len() as u64);
            for (lease, left_ms) in left_ms {
                put_signed(into, *lease);
                put_varint(into, *left_ms);
            }
        }
        Command::RaiseLevel { level } => {
            into.push(RAISE_LEVEL);
            put_varint(into, u64::from(*level));
        }
        Command::CompareStates => into.push(COMPARE_STATES),
        Command::PinLevel { level } => {
            into.push(20);
            encode_pin(*level, into);
        }
        Command::Continue => into.push(21),
    }
}

pub(crate) fn encode_pin(pin: Option<Level>, into: &mut Vec<u8>) {
    into.push(u8::from(pin.is_some()));
    if let Some(level) = pin {
        put_varint(into, u64::from(level));
    }
}

pub(crate) fn decode_pin(reader: &mut Reader) -> ReadResult<Option<Level>> {
    Ok(if reader.flag()? { Some(reader.small()?) } else { None })
}

fn encode_names(names: &[Bytes], into: &mut Vec<u8>) {
    put_varint(into, names.len() as u64);
    for name in names {
        put_bytes(into, name);
    }
}

fn encode_put(put: &Put, into: &mut Vec<u8>) {
    into.push(flags([put.prev_kv, put.ignore_value, put.ignore_lease]));
    put_bytes(into, &put.key);
    put_bytes(into, &put.value);
    put_signed(into, put.lease);
}

fn encode_delete(delete: &Delete, into: &mut Vec<u8>) {
    into.push(flags([delete.prev_kv]));
    encode_keys(&delete.keys, into);
}

fn encode_keys(keys: &Keys, into: &mut Vec<u8>) {
    match keys {
        Keys::One(key) => {
            into.push(0);
            put_bytes(into, key);
        }
        Keys::Span { from, to: Some(to) } => {
            into.push(1);
            put_bytes(into, from);
            put_bytes(into, to);
        }
        Keys::Span { from, to: None } => {
            into.push(2);
            put_bytes(into, from);
        }
    }
}

fn encode_range(range: &RangeQuery, into: &mut Vec<u8>) {
    into.push(flags([range.keys_only, range.count_only]));
    into.push(match range.sort_order {
        SortOrder::None => 0,
        SortOrder::Ascend => 1,
        SortOrder::Descend => 2,
    });
    into.push(match range.sort_target {
        SortTarget::Key => 0,
        SortTarget::Version => 1,
        SortTarget::CreateRevision => 2,
        SortTarget::ModRevision => 3,
        SortTarget::Value => 4,
    });
    encode_keys(&range.keys, into);
    let numbers = [
        range.revision,
        range.limit,
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ];
    for number in numbers {
        put_signed(into, number);
    }
}

fn encode_txn(txn: &Txn, into: &mut Vec<u8>) {
    put_varint(into, txn.compare.len() as u64);
    for compare in &txn.compare {
        encode_compare(compare, into);
    }
    for ops in [&txn.success, &txn.failure] {
        put_varint(into, ops.len() as u64);
        for op in ops {
            encode_op(op, into);
        }
    }
}

fn encode_compare(compare: &Compare, into: &mut Vec<u8>) {
    into.push(match compare.result {
        CompareResult::Equal => 0,
        CompareResult::Greater => 1,
        CompareResult::Less => 2,
        CompareResult::NotEqual => 3,
    });
    encode_keys(&compare.keys, into);
    let (tag, number) = match &compare.target {
        CompareTarget::Version(version) => (0, *version),
        CompareTarget::CreateRevision(revision) => (1, *revision),
        CompareTarget::ModRevision(revision) => (2, *revision),
        CompareTarget::Lease(lease) => (3, *lease),
        CompareTarget::Value(value) => {
            into.push(4);
            return put_bytes(into, value);
        }
    };
    into.push(tag);
    put_signed(into, number);
}

fn encode_op(op: &Op, into: &mut Vec<u8>) {
    match op {
        Op::Range(range) => {
            into.push(0);
            encode_range(range, into);
        }
        Op::Put(put) => {
            into.push(1);
            encode_put(put, into);
        }
        Op::Delete(delete) => {
            into.push(2);
            encode_delete(delete, into);
        }
        Op::Txn(txn) => {
            into.push(3);
            encode_txn(txn, into);
        }
    }
}

fn encode_lock(lock: &Lock, into: &mut Vec<u8>) {
    into.push(flags([lock.overwrite]));
    put_bytes(into, &lock.name);
    put_signed(into, lock.lease);
    into.extend_from_slice(&lock.call.to_le_bytes());
    encode_mode(lock.mode, into);
    for bytes in [&lock.value, &lock.owner, &lock.holder, &lock.metadata] {
        put_bytes(into, bytes);
    }
    encode_names(&lock.more_names, into);
    into.push(flags([lock.try_once]));
    put_varint(into, lock.epoch);
}

pub(crate) fn encode_mode(mode: Mode, into: &mut Vec<u8>) {
    match mode {
        Mode::Exclusive => into.push(0),
        Mode::Shared => into.push(1),
        Mode::Slots(slots) => {
            into.push(2);
            put_varint(into, u64::from(slots));
        }
        Mode::Barrier(parties) => {
            into.push(3);
            put_varint(into, u64::from(parties));
        }
    }
}

pub(crate) fn decode_mode(reader: &mut Reader) -> ReadResult<Mode> {
    match reader.byte()? {
        0 => Ok(Mode::Exclusive),
        1 => Ok(Mode::Shared),
        2 => Ok(Mode::Slots(reader.small()?)),
        3 => Ok(Mode::Barrier(reader.small()?)),
        _ => Err("unknown lock mode"),
    }
}

pub(crate) fn encode_alarm(alarm: &Alarm, into: &mut Vec<u8>) {
    put_varint(into, alarm.member);
    into.push(match alarm.kind {
        AlarmKind::NoSpace => 1,
        AlarmKind::Corrupt => 2,
    });
}

pub(crate) fn decode_alarm(reader: &mut Reader) -> ReadResult<Alarm> {
    let member = reader.varint()?;
    let kind = match reader.byte()? {
        1 => AlarmKind::NoSpace,
        2 => AlarmKind::Corrupt,
        _ => return Err("unknown alarm"),
    };
    Ok(Alarm { member, kind })
}

pub(crate) fn encode_member(member: &Member, into: &mut Vec<u8>) {
    put_varint(into, member.id);
    into.push(u8::from(member.learner));
    put_bytes(into, member.name.as_bytes());
    for urls in [&member.peer_urls, &member.client_urls] {
        put_varint(into, urls.len() as u64);
        for url in urls {
            put_bytes(into, url.as_bytes());
        }
    }
}

pub(crate) fn decode_member(reader: &mut Reader) -> ReadResult<Member> {
    let id = reader.varint()?;
    let learner = reader.flag()?;
    let name = decode_text(reader)?;
    let peer_urls = decode_texts(reader)?;
    let client_urls = decode_texts(reader)?;
    Ok(Member { id, name, peer_urls, client_urls, learner })
}

fn encode_change(change: &MemberChange, into: &mut Vec<u8>) {
    match change {
        MemberChange::Add { member } => {
            into.push(1);
            encode_member(member, into);
        }
        MemberChange::Promote { id } => {
            into.push(2);
            put_varint(into, *id);
        }
        MemberChange::Remove { id, force } => {
            into.push(3);
            put_varint(into, *id);
            into.push(u8::from(*force));
        }
        MemberChange::Update { member } => {
            into.push(4);
            encode_member(member, into);
        }
        MemberChange::Together(changes) => {
            into.push(5);
            put_varint(into, changes.len() as u64);
            for change in changes {
                encode_change(change, into);
            }
        }
    }
}

/// Several changes are not several within several.
fn decode_change(reader: &mut Reader, may_be_several: bool) -> ReadResult<MemberChange> {
    Ok(match reader.byte()? {
        1 => MemberChange::Add { member: decode_member(reader)? },
        2 => MemberChange::Promote { id: reader.varint()? },
        3 => MemberChange::Remove { id: reader.varint()?, force: reader.flag()? },
        4 => MemberChange::Update { member: decode_member(reader)? },
        5 if may_be_several => MemberChange::Together(
            (0..reader.count()?).map(|_| decode_change(reader, false)).collect::<ReadResult<_>>()?,
        ),
        _ => return Err("unknown change of members"),
    })
}

fn decode_texts(reader: &mut Reader) -> ReadResult<Vec<String>> {
    (0..reader.count()?).map(|_| decode_text(reader)).collect()
}

fn decode_text(reader: &mut Reader) -> ReadResult<String> {
    std::str::from_utf8(reader.bytes()?).map(str::to_owned).map_err(|_| "text that is not UTF-8")
}

fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.iter().enumerate().fold(0, |byte, (bit, flag)| byte | u8::from(*flag) << bit)
}

struct Decoder<'a> {
    whole: &'a Bytes,
    reader: Reader<'a>,
}

impl Decoder<'_> {
    fn envelope(&mut self) -> Result<Envelope, DecodeError> {
        match self.reader.byte()? {
            FORMAT => {}
            0 => return Err(DecodeError::Damaged("not a command")),
            format => return Err(DecodeError::UnknownFormat { format }),
        }
        let wall_ms = self.reader.varint()?;
        let origin = if self.reader.flag()? { Some(self.origin()?) } else { None };
        let command = self.command()?;
        self.reader.finish()?;
        Ok(Envelope { wall_ms, origin, command })
    }

    fn origin(&mut self) -> ReadResult<Origin> {
        Ok(Origin {
            member: self.reader.varint()?,
            boot: self.reader.varint()?,
            sequence: self.reader.varint()?,
            settled_below: self.reader.varint()?,
        })
    }

    fn command(&mut self) -> Result<Command, DecodeError> {
        Ok(match self.reader.byte()? {
            1 => Command::Put(self.put()?),
            2 => Command::Delete(self.delete()?),
            3 => Command::Txn(self.txn(1)?),
            4 => Command::Compact { revision: self.reader.signed()? },
            5 => Command::LeaseGrant(LeaseGrant {
                lease: self.reader.signed()?,
                ttl_ms: self.reader.varint()?,
                client: self.bytes()?,
            }),
            6 => Command::LeaseRevoke { lease: self.reader.signed()? },
            7 => {
                let term = self.reader.varint()?;
                let count = self.reader.count()?;
                let leases = (0..count).map(|_| self.reader.signed()).collect::<ReadResult<_>>()?;
                Command::LeaseExpire { term, leases }
            }
            8 => Command::Lock(Box::new(self.first_lock()?)),
            9 => Command::Leave(Leave { key: self.bytes()?, call: self.call()? }),
            10 => {
                let raised = self.reader.flag()?;
                let alarm = decode_alarm(&mut self.reader)?;
                Command::Alarm(if raised { AlarmChange::Raise(alarm) } else { AlarmChange::Clear(alarm) })
            }
            11 => Command::Publish(decode_member(&mut self.reader)?),
            12 => Command::Unlock(Unlock {
                names: self.names()?,
                token: self.reader.signed()?,
                epoch: self.reader.varint()?,
            }),
            13 => Command::ForceRelease { name: self.bytes()?, token: self.reader.signed()? },
            14 => Command::ForgetLock { name: self.bytes()? },
            15 => Command::ResumeSession { lease: self.reader.signed()? },
            16 => Command::Lock(Box::new(self.lock()?)),
            18 => {
                let term = self.reader.varint()?;
                let count = self.reader.count()?;
                let left_ms = (0..count).map(|_| Ok((self.reader.signed()?, self.reader.varint()?)));
                Command::LeaseCheckpoint { term, left_ms: left_ms.collect::<ReadResult<_>>()? }
            }
            17 => Command::ChangeMembers(decode_change(&mut self.reader, true)?),
            COMPARE_STATES => Command::CompareStates,
            RAISE_LEVEL => Command::RaiseLevel { level: self.reader.small()? },
            20 => Command::PinLevel { level: decode_pin(&mut self.reader)? },
            21 => Command::Continue,
            0 => return Err(DecodeError::Damaged("unknown command")),
            tag => return Err(DecodeError::UnknownCommand { tag }),
        })
    }

    fn bytes(&mut self) -> ReadResult<Bytes> {
        Ok(self.whole.slice_ref(self.reader.bytes()?))
    }

    fn call(&mut self) -> ReadResult<u128> {
        let bytes = self.reader.take(16)?;
        Ok(u128::from_le_bytes(bytes.try_into().map_err(|_| "ends too early")?))
    }

    fn flags<const N: usize>(&mut self) -> ReadResult<[bool; N]> {
        let byte = self.reader.byte()?;
        if usize::from(byte) >= 1 << N {
            return Err("unknown flag");
        }
        Ok(std::array::from_fn(|bit| byte >> bit & 1 == 1))
    }

    fn put(&mut self) -> ReadResult<Put> {
        let [prev_kv, ignore_value, ignore_lease] = self.flags()?;
        let (key, value, lease) = (self.bytes()?, self.bytes()?, self.reader.signed()?);
        Ok(Put { key, value, lease, prev_kv, ignore_value, ignore_lease })
    }

    fn delete(&mut self) -> ReadResult<Delete> {
        let [prev_kv] = self.flags()?;
        Ok(Delete { keys: self.keys()?, prev_kv })
    }

    fn keys(&mut self) -> ReadResult<Keys> {
        Ok(match self.reader.byte()? {
            0 => Keys::One(self.bytes()?),
            1 => Keys::Span { from: self.bytes()?, to: Some(self.bytes()?) },
            2 => Keys::Span { from: self.bytes()?, to: None },
            _ => return Err("unknown kind of keys"),
        })
    }

    fn range(&mut self) -> ReadResult<RangeQuery> {
        let [keys_only, count_only] = self.flags()?;
        let sort_order = match self.reader.byte()? {
            0 => SortOrder::None,
            1 => SortOrder::Ascend,
            2 => SortOrder::Descend,
            _ => return Err("unknown sort order"),
        };
        let sort_target = match self.reader.byte()? {
            0 => SortTarget::Key,
            1 => SortTarget::Version,
            2 => SortTarget::CreateRevision,
            3 => SortTarget::ModRevision,
            4 => SortTarget::Value,
            _ => return Err("unknown sort target"),
        };
        Ok(RangeQuery {
            keys: self.keys()?,
            revision: self.reader.signed()?,
            limit: self.reader.signed()?,
            sort_order,
            sort_target,
            keys_only,
            count_only,
            min_mod_revision: self.reader.signed()?,
            max_mod_revision: self.reader.signed()?,
            min_create_revision: self.reader.signed()?,
            max_create_revision: self.reader.signed()?,
        })
    }

    fn txn(&mut self, depth: usize) -> ReadResult<Txn> {
        if depth > limits::DECODE_NESTING {
            return Err("transactions nested too deep");
        }
        let compares = self.reader.count()?;
        let compare = (0..compares).map(|_| self.compare()).collect::<ReadResult<_>>()?;
        Ok(Txn { compare, success: self.ops(depth)?, failure: self.ops(depth)? })
    }

    /// Collected one by one: memory follows what was decoded, not what a count promises.
    fn ops(&mut self, depth: usize) -> ReadResult<Vec<Op>> {
        let ops = self.reader.count()?;
        (0..ops).map(|_| self.op(depth)).collect()
    }

    fn compare(&mut self) -> ReadResult<Compare> {
        let result = match self.reader.byte()? {
            0 => CompareResult::Equal,
            1 => CompareResult::Greater,
            2 => CompareResult::Less,
            3 => CompareResult::NotEqual,
            _ => return Err("unknown comparison"),
        };
        let keys = self.keys()?;
        let target = match self.reader.byte()? {
            0 => CompareTarget::Version(self.reader.signed()?),
            1 => CompareTarget::CreateRevision(self.reader.signed()?),
            2 => CompareTarget::ModRevision(self.reader.signed()?),
            3 => CompareTarget::Lease(self.reader.signed()?),
            4 => CompareTarget::Value(self.bytes()?),
            _ => return Err("unknown compare target"),
        };
        Ok(Compare { keys, result, target })
    }

    fn op(&mut self, depth: usize) -> ReadResult<Op> {
        Ok(match self.reader.byte()? {
            0 => Op::Range(self.range()?),
            1 => Op::Put(self.put()?),
            2 => Op::Delete(self.delete()?),
            3 => Op::Txn(self.txn(depth + 1)?),
            _ => return Err("unknown operation"),
        })
    }

    fn lock(&mut self) -> ReadResult<Lock> {
        let lock = self.first_lock()?;
        let (more_names, [try_once], epoch) = (self.names()?, self.flags()?, self.reader.varint()?);
        Ok(Lock { more_names, try_once, epoch, ..lock })
    }

    fn first_lock(&mut self) -> ReadResult<Lock> {
        let [overwrite] = self.flags()?;
        Ok(Lock {
            name: self.bytes()?,
            lease: self.reader.signed()?,
            call: self.call()?,
            mode: decode_mode(&mut self.reader)?,
            value: self.bytes()?,
            overwrite,
            owner: self.bytes()?,
            holder: self.bytes()?,
            metadata: self.bytes()?,
            ..Lock::default()
        })
    }

    fn names(&mut self) -> ReadResult<Vec<Bytes>> {
        (0..self.reader.count()?).map(|_| self.bytes()).collect()
    }
}
