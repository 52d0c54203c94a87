//! The machine once more, as plainly as it can be said: a list of all events ever, replayed for
//! every question. Slow, and with as little in common with the real one as possible.

mod locks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tenure_machine::*;

pub type State = BTreeMap<Vec<u8>, Arc<KeyValue>>;

#[derive(Default)]
pub struct Naive {
    /// Every event ever made, in order; a delete has version 0.
    pub log: Vec<(Revision, EventKind, Arc<KeyValue>)>,
    pub compacted: Revision,
    pub leases: BTreeMap<LeaseId, u64>,
    /// Who asked for each lease, those that have ended too.
    clients: BTreeMap<LeaseId, Vec<u8>>,
    /// The revision at which each lease was granted, from level 1 on.
    born: BTreeMap<LeaseId, Revision>,
    pub entries: Vec<Entry>,
    /// Who was let through a barrier and has not left: by name and token.
    passed: BTreeSet<(Vec<u8>, Revision)>,
    pub alarms: BTreeSet<Alarm>,
    pub level: Level,
    pub level_pin: Option<Level>,
    origins: BTreeMap<MemberId, (u64, BTreeSet<u64>, u64, BTreeSet<u64>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub key: Vec<u8>,
    pub token: Revision,
    pub lease: LeaseId,
    pub mode: Mode,
    pub call: Option<u128>,
    pub holder: Vec<u8>,
    pub owner: Vec<u8>,
    pub together: Vec<Vec<u8>>,
    pub slot: u32,
}

impl Entry {
    fn place(&self) -> (Vec<u8>, Revision) {
        (self.name.clone(), self.token)
    }

    /// As a change of the lock shows it, without times and metadata, which this model does not have.
    fn told(&self, is_granted: bool) -> Arc<LockEntry> {
        Arc::new(LockEntry {
            key: self.key.clone().into(),
            token: self.token,
            lease: self.lease,
            mode: self.mode,
            last_joiner: self.call,
            owner: self.owner.clone().into(),
            holder: self.holder.clone().into(),
            metadata: Arc::default(),
            together: self.together.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
            joined_wall_ms: 0,
            granted_wall_ms: is_granted.then_some(0),
            slot: self.slot,
        })
    }
}

/// What one command does, before the end of it.
#[derive(Default)]
struct Work {
    events: Vec<(EventKind, Arc<KeyValue>)>,
    ended: Vec<(Entry, LockEnd)>,
    joined: Vec<Vec<u8>>,
    lease_changes: Vec<LeaseChange>,
}

impl Naive {
    pub fn new() -> Naive {
        Naive { compacted: -1, ..Naive::default() }
    }

    pub fn revision(&self) -> Revision {
        self.log.last().map_or(1, |(revision, _, _)| *revision)
    }

    pub fn at(&self, revision: Revision) -> State {
        let mut state = State::new();
        for (_, kind, kv) in self.log.iter().filter(|(at, _, _)| *at <= revision) {
            write(&mut state, *kind, kv);
        }
        state
    }

    pub fn commits(&self, from: Revision) -> Vec<Commit> {
        let mut commits: Vec<Commit> = Vec::new();
        for (revision, _, kv) in self.log.iter().filter(|(at, _, _)| *at >= from) {
            let has_past = *revision != self.compacted && kv.create_revision != *revision;
            let prev = self.at(revision - 1).get(&*kv.key).cloned().filter(|_| has_past);
            let event = Event { kv: kv.clone(), prev };
            match commits.last_mut() {
                Some(commit) if commit.revision == *revision => {
                    commit.events = commit.events.iter().cloned().chain([event]).collect();
                }
                _ => commits.push(Commit { revision: *revision, events: [event].into() }),
            }
        }
        commits
    }

    pub fn range(&self, query: &RangeQuery) -> Result<RangeReply, Refusal> {
        let current = self.revision();
        self.check_revision(query.revision, current)?;
        let state = self.at(if query.revision <= 0 { current } else { query.revision });
        Ok(range(&state, query))
    }

    fn check_revision(&self, asked: Revision, current: Revision) -> Result<(), Refusal> {
        if asked > current {
            return Err(Refusal::FutureRevision { asked, current });
        }
        if asked > 0 && asked < self.compacted {
            return Err(Refusal::Compacted { asked, compacted: self.compacted });
        }
        Ok(())
    }

    /// The tokens that are granted: an entry is if all before it are and go with it. At a barrier, who was let
    /// through stays so, and others are if they and enough others of their kind are all that stands at the head.
    pub fn granted(&self) -> BTreeSet<(Vec<u8>, Revision)> {
        let mut granted = self.passed.clone();
        for entry in &self.entries {
            if let Mode::Barrier(parties) = entry.mode {
                let queue: Vec<_> = self.entries.iter().filter(|other| other.name == entry.name).collect();
                let round: Vec<_> = queue.into_iter().take(parties as usize).collect();
                if !self.passed.iter().any(|(name, _)| *name == entry.name)
                    && round.len() == parties as usize
                    && round.iter().all(|other| other.mode == entry.mode)
                    && round.contains(&entry)
                {
                    granted.insert((entry.name.clone(), entry.token));
                }
                continue;
            }
            let before: Vec<_> =
                self.entries.iter().filter(|other| other.name == entry.name && other.token < entry.token).collect();
            let is_granted = before.iter().all(|other| {
                let compatible = match (other.mode, entry.mode) {
                    (Mode::Shared, Mode::Shared) => true,
                    (Mode::Slots(one), Mode::Slots(other)) => one == other && before.len() < one as usize,
                    _ => false,
                };
                compatible && granted.contains(&(other.name.clone(), other.token))
            });
            if is_granted {
                granted.insert((entry.name.clone(), entry.token));
            }
        }
        granted
    }

    pub fn apply(&mut self, term: u64, envelope: &Envelope) -> Applied {
        let before = self.granted();
        let mut work = Work::default();
        let mut reply = match &envelope.origin {
            Some(origin) if !self.admit(origin) => Ok(Reply::Duplicate),
            _ => self.execute(&mut work, term, &envelope.command),
        };
        let revision = self.revision() + 1;
        assert!(reply.is_ok() || work.events.is_empty());
        let wrote = !work.events.is_empty();
        for (kind, kv) in work.events {
            self.log.push((revision, kind, kv));
        }
        let commit = wrote.then(|| self.commits(revision).remove(0));
        self.passed
            .retain(|(name, token)| self.entries.iter().any(|entry| entry.name == *name && entry.token == *token));
        let after = loop {
            let after = self.granted();
            let is_dead = |entry: &Entry| {
                !before.contains(&entry.place()) && after.contains(&entry.place()) && !self.may_hold(entry)
            };
            let dead: Vec<_> = self.entries.iter().filter(|entry| wrote && is_dead(entry)).cloned().collect();
            if dead.is_empty() {
                break after;
            }
            self.entries.retain(|entry| !dead.contains(entry));
            work.ended.extend(dead.into_iter().map(|entry| (entry, LockEnd::LeaseExpired)));
        };
        let at_barriers = self.entries.iter().filter(|entry| matches!(entry.mode, Mode::Barrier(_)));
        let places = at_barriers.map(|entry| (entry.name.clone(), entry.token));
        self.passed = places.filter(|place| after.contains(place)).collect();
        let mut lock_changes: tenure_machine::LockChanges = work
            .ended
            .into_iter()
            .map(|(entry, cause)| {
                let held = before.contains(&(entry.name.clone(), entry.token));
                LockChange::Ended { entry: entry.told(held), cause, frees: false }
            })
            .collect();
        for (name, token) in after.difference(&before) {
            self.give_slot(name, *token, &before);
            let entry = self.entries.iter().find(|entry| entry.name == *name && entry.token == *token).unwrap();
            lock_changes.push(LockChange::Granted(entry.told(true)));
        }
        if let Ok(Reply::Lock(reply)) = &mut reply {
            reply.granted = true;
            for key in std::iter::once(&reply.key).chain(&reply.more_keys) {
                let entry = self.entries.iter().find(|entry| entry.key[..] == key[..]).unwrap();
                reply.granted &= after.contains(&(entry.name.clone(), entry.token));
                let ahead = |other: &&Entry| other.name == entry.name && other.token < entry.token;
                reply.ahead = reply.ahead.max(self.entries.iter().filter(ahead).count());
            }
            if reply.granted {
                reply.ahead = 0;
            }
            reply.slot = self.entries.iter().find(|entry| entry.key[..] == reply.key[..]).unwrap().slot;
        }
        Applied { revision: self.revision(), reply, commit, lock_changes, lease_changes: work.lease_changes, work: 0 }
    }

    pub fn may_hold(&self, entry: &Entry) -> bool {
        self.level == 0 || (self.leases.contains_key(&entry.lease) && self.born[&entry.lease] < entry.token)
    }

    fn admit(&mut self, origin: &Origin) -> bool {
        let known = self.origins.entry(origin.member).or_insert((origin.boot, BTreeSet::new(), 0, BTreeSet::new()));
        if known.0 != origin.boot {
            if known.3.contains(&origin.boot) {
                return false;
            }
            known.3.insert(known.0);
            (known.0, known.1, known.2) = (origin.boot, BTreeSet::new(), 0);
        }
        if origin.sequence < known.2 || known.1.contains(&origin.sequence) {
            return false;
        }
        known.2 = known.2.max(origin.settled_below.min(origin.sequence));
        known.1.insert(origin.sequence)
    }

    fn has(&self, kind: AlarmKind) -> bool {
        self.alarms.iter().any(|alarm| alarm.kind == kind)
    }

    fn sound(&self) -> Result<(), Refusal> {
        let is_refused = match self.level >= 1 {
            true => self.alarms.iter().any(|alarm| (alarm.member, alarm.kind) == (0, AlarmKind::Corrupt)),
            false => self.has(AlarmKind::Corrupt),
        };
        if is_refused { Err(Refusal::Corrupt) } else { Ok(()) }
    }

    fn growth(&self) -> Result<(), Refusal> {
        self.sound()?;
        if self.has(AlarmKind::NoSpace) { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    fn execute(&mut self, work: &mut Work, term: u64, command: &Command) -> Result<Reply, Refusal> {
        match command {
            Command::Put(put) => {
                self.check_put(put)?;
                Ok(Reply::Put { prev: self.put(work, put) })
            }
            Command::Delete(delete) => {
                self.sound()?;
                let (deleted, prev) = self.delete_all(work, delete);
                Ok(Reply::Delete { deleted, prev })
            }
            Command::Txn(txn) => {
                let state = self.at(self.revision());
                self.check_txn(txn, &state)?;
                Ok(Reply::Txn(self.txn(work, txn, &state)))
            }
            Command::Compact { revision } => {
                self.sound()?;
                if *revision <= self.compacted {
                    return Err(Refusal::Compacted { asked: *revision, compacted: self.compacted });
                }
                self.check_revision(*revision, self.revision())?;
                self.compacted = *revision;
                Ok(Reply::Compacted)
            }
            Command::LeaseGrant(grant) => {
                self.growth()?;
                if self.leases.contains_key(&grant.lease) {
                    return Err(Refusal::LeaseExists);
                }
                let (lease, ttl_ms) = (grant.lease, grant.ttl_ms);
                self.leases.insert(lease, ttl_ms);
                self.clients.insert(lease, grant.client.to_vec());
                self.born.insert(lease, if self.level > 0 { self.revision() } else { 0 });
                work.lease_changes.push(LeaseChange::Granted { lease, ttl_ms });
                Ok(Reply::LeaseGranted { lease, ttl_ms })
            }
            Command::LeaseRevoke { lease } => {
                self.sound()?;
                if !self.leases.contains_key(lease) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.end_leases(work, &[*lease], LockEnd::LeaseRevoked);
                Ok(Reply::LeaseRevoked)
            }
            Command::LeaseExpire { term: proposed, leases } => {
                if *proposed != term {
                    return Ok(Reply::LeasesExpired { expired: 0 });
                }
                self.sound()?;
                Ok(Reply::LeasesExpired { expired: self.end_leases(work, leases, LockEnd::LeaseExpired) })
            }
            Command::Lock(lock) => self.lock(work, lock),
            Command::Leave(leave) => {
                self.sound()?;
                let entry = self.entries.iter().find(|entry| entry.key[..] == leave.key[..]).cloned();
                let entry = entry.filter(|entry| entry.call == Some(leave.call));
                if let Some(entry) = &entry {
                    self.delete(work, &leave.key, LockEnd::Left);
                    for name in &entry.together {
                        let is_sibling = |other: &&Entry| {
                            other.name == *name && other.token == entry.token && other.lease == entry.lease
                        };
                        let sibling = self.entries.iter().find(is_sibling).cloned();
                        if let Some(sibling) = sibling.filter(|sibling| sibling.call == Some(leave.call)) {
                            self.delete(work, &sibling.key, LockEnd::Left);
                        }
                    }
                }
                Ok(Reply::Left { left: entry.is_some() })
            }
            Command::Unlock(unlock) => {
                self.sound()?;
                let (mut held, mut is_of_others) = (Vec::new(), false);
                for name in &unlock.names {
                    let queue: Vec<_> = self.entries.iter().filter(|entry| entry.name == name[..]).collect();
                    if queue.is_empty() {
                        continue;
                    }
                    let holder = queue.iter().find(|entry| entry.token == unlock.token);
                    let holder = holder.filter(|entry| self.granted().contains(&(entry.name.clone(), entry.token)));
                    is_of_others |= holder.is_none();
                    held.extend(holder.map(|holder| holder.key.clone()));
                }
                if is_of_others && (held.is_empty() || self.level == 0) {
                    return Err(Refusal::NotTheHolder);
                }
                for key in &held {
                    self.delete(work, key, LockEnd::Released);
                }
                Ok(Reply::Unlocked { released: !held.is_empty() })
            }
            Command::ForceRelease { name, token } => {
                self.sound()?;
                if !self.entries.iter().any(|entry| entry.name == name[..]) {
                    return Err(Refusal::NotHeld);
                }
                if !self.granted().contains(&(name.to_vec(), *token)) {
                    return Err(Refusal::NotTheHolder);
                }
                let holds = |entry: &&Entry| entry.name == name[..] && entry.token == *token;
                let key = self.entries.iter().find(holds).unwrap().key.clone();
                self.delete(work, &key, LockEnd::Forced);
                // Who it was is compared elsewhere.
                Ok(Reply::Unlocked { released: true })
            }
            Command::ForgetLock { name } => match self.entries.iter().any(|entry| entry.name == name[..]) {
                true => Err(Refusal::InUse),
                false => Ok(Reply::LockForgotten { holders: 0 }),
            },
            Command::ResumeSession { lease } => match self.leases.get(lease) {
                Some(ttl_ms) => Ok(Reply::SessionResumed { epoch: 0, ttl_ms: *ttl_ms }),
                None => Err(Refusal::LeaseNotFound),
            },
            Command::Alarm(AlarmChange::Raise(alarm)) => {
                self.alarms.insert(*alarm);
                Ok(Reply::Alarms(vec![*alarm]))
            }
            Command::Alarm(AlarmChange::Clear(pattern)) => {
                let is_meant =
                    |alarm: &Alarm| alarm.kind == pattern.kind && [0, alarm.member].contains(&pattern.member);
                let cleared = self.alarms.iter().copied().filter(is_meant).collect();
                self.alarms.retain(|alarm| !is_meant(alarm));
                Ok(Reply::Alarms(cleared))
            }
            Command::Publish(_) => Ok(Reply::Published),
            Command::ChangeMembers(_) => Ok(Reply::MembersChanged),
            // Time is not part of this model.
            Command::LeaseCheckpoint { term: proposed, .. } if *proposed != term => Ok(Reply::LeasesCheckpointed),
            Command::LeaseCheckpoint { .. } => self.sound().map(|()| Reply::LeasesCheckpointed),
            // None has as many keys as would be left for it.
            Command::Continue => self.sound().map(|()| Reply::Continued { deleted: 0, granted: 0 }),
            Command::CompareStates => Ok(Reply::StatesCompared),
            Command::RaiseLevel { level } => {
                self.sound()?;
                match self.level_pin {
                    Some(pin) if pin < *level => return Err(Refusal::LevelPinned { level: *level, pin }),
                    _ if *level > self.level => self.level = *level,
                    _ => {}
                }
                Ok(Reply::Level { level: self.level, pin: self.level_pin })
            }
            Command::PinLevel { level: Some(pin) } if *pin < self.level => {
                Err(Refusal::LevelReached { level: self.level, pin: *pin })
            }
            Command::PinLevel { level } => {
                self.level_pin = *level;
                Ok(Reply::Level { level: self.level, pin: self.level_pin })
            }
        }
    }

    fn now(&self, work: &Work) -> State {
        let mut state = self.at(self.revision());
        for (kind, kv) in &work.events {
            write(&mut state, *kind, kv);
        }
        state
    }

    fn check_put(&self, put: &Put) -> Result<(), Refusal> {
        self.growth()?;
        if put.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        let exists = self.at(self.revision()).contains_key(&put.key[..]);
        if (put.ignore_value || put.ignore_lease) && !exists { Err(Refusal::KeyNotFound) } else { Ok(()) }
    }

    fn put(&mut self, work: &mut Work, put: &Put) -> Option<Arc<KeyValue>> {
        let prev = self.now(work).get(&put.key[..]).cloned();
        let old = prev.as_ref();
        let value = if put.ignore_value { old.map_or(Vec::new(), |kv| kv.value.to_vec()) } else { put.value.to_vec() };
        let lease = if put.ignore_lease { old.map_or(0, |kv| kv.lease) } else { put.lease };
        self.write(work, &put.key, value, lease, None);
        prev.filter(|_| put.prev_kv)
    }

    fn write(&mut self, work: &mut Work, key: &[u8], value: Vec<u8>, lease: LeaseId, lock: Option<&Lock>) {
        let prev = self.now(work).get(key).cloned();
        let revision = self.revision() + 1;
        let kv = KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: prev.as_ref().map_or(revision, |prev| prev.create_revision),
            mod_revision: revision,
            version: prev.as_ref().map_or(1, |prev| prev.version + 1),
            lease,
        };
        let text = String::from_utf8_lossy(key).into_owned();
        if let Some((name, hex)) = text.rsplit_once('/')
            && prev.is_none()
            && lease > 0
            && !name.is_empty()
            && hex == format!("{lease:x}")
            && !work.joined.contains(&name.as_bytes().to_vec())
        {
            work.joined.push(name.as_bytes().to_vec());
            self.entries.push(Entry {
                name: name.as_bytes().to_vec(),
                key: key.to_vec(),
                token: revision,
                lease,
                mode: lock.map_or(Mode::Exclusive, |lock| lock.mode),
                call: lock.map(|lock| lock.call),
                holder: match lock {
                    Some(lock) if lock.holder.is_empty() && self.level > 0 => self.clients[&lease].clone(),
                    Some(lock) => lock.holder.to_vec(),
                    None => Vec::new(),
                },
                owner: lock.map_or(Vec::new(), |lock| lock.owner.to_vec()),
                together: lock
                    .map_or(Vec::new(), |lock| names(lock).filter(|other| *other != name.as_bytes()).collect()),
                slot: 0,
            });
        }
        work.events.push((EventKind::Put, Arc::new(kv)));
    }

    fn delete(&mut self, work: &mut Work, key: &[u8], cause: LockEnd) -> Option<Arc<KeyValue>> {
        let prev = self.now(work).get(key).cloned()?;
        let gone = KeyValue {
            key: key.into(),
            value: Box::default(),
            create_revision: 0,
            mod_revision: self.revision() + 1,
            version: 0,
            lease: 0,
        };
        work.events.push((EventKind::Delete, Arc::new(gone)));
        if let Some(index) = self.entries.iter().position(|entry| entry.key == key) {
            work.ended.push((self.entries.remove(index), cause));
        }
        Some(prev)
    }

    fn delete_all(&mut self, work: &mut Work, delete: &Delete) -> (i64, Vec<Arc<KeyValue>>) {
        let doomed: Vec<_> = self.now(work).into_keys().filter(|key| delete.keys.contains(key)).collect();
        let gone: Vec<_> = doomed.iter().filter_map(|key| self.delete(work, key, LockEnd::Released)).collect();
        (gone.len() as i64, if delete.prev_kv { gone } else { Vec::new() })
    }

    fn end_leases(&mut self, work: &mut Work, leases: &[LeaseId], cause: LockEnd) -> usize {
        let ended: Vec<_> = leases.iter().copied().filter(|lease| self.leases.remove(lease).is_some()).collect();
        work.lease_changes.extend(ended.iter().map(|lease| LeaseChange::Ended { lease: *lease }));
        for (key, kv) in self.now(work) {
            if ended.contains(&kv.lease) {
                self.delete(work, &key, cause);
            }
        }
        ended.len()
    }

    fn check_txn(&self, txn: &Txn, state: &State) -> Result<(), Refusal> {
        let ops = if holds(txn, state) { &txn.success } else { &txn.failure };
        for op in ops {
            match op {
                Op::Range(range) => self.check_revision(range.revision, self.revision())?,
                Op::Put(put) => self.check_put(put)?,
                Op::Delete(_) => self.sound()?,
                Op::Txn(txn) => self.check_txn(txn, state)?,
            }
        }
        Ok(())
    }

    /// `state` is the one before the outermost transaction: all compares see that.
    fn txn(&mut self, work: &mut Work, txn: &Txn, state: &State) -> TxnReply {
        let succeeded = holds(txn, state);
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let mut responses = Vec::new();
        for op in ops {
            responses.push(match op {
                Op::Range(query) if query.revision > 0 => OpReply::Range(range(&self.at(query.revision), query)),
                Op::Range(query) => OpReply::Range(range(&self.now(work), query)),
                Op::Put(put) => OpReply::Put { prev: self.put(work, put) },
                Op::Delete(delete) => {
                    let (deleted, prev) = self.delete_all(work, delete);
                    OpReply::Delete { deleted, prev }
                }
                Op::Txn(nested) => OpReply::Txn(self.txn(work, nested, state)),
            });
        }
        TxnReply { succeeded, responses }
    }
}

fn names(lock: &Lock) -> impl Iterator<Item = Vec<u8>> {
    std::iter::once(&lock.name).chain(&lock.more_names).map(|name| name.to_vec())
}

fn key_of(name: &[u8], lease: LeaseId) -> Vec<u8> {
    format!("{}/{lease:x}", String::from_utf8_lossy(name)).into_bytes()
}

fn write(state: &mut State, kind: EventKind, kv: &Arc<KeyValue>) {
    match kind {
        EventKind::Put => state.insert(kv.key.to_vec(), kv.clone()),
        EventKind::Delete => state.remove(&kv.key[..]),
    };
}

fn range(state: &State, query: &RangeQuery) -> RangeReply {
    let mut kvs: Vec<_> = state.values().filter(|kv| query.keys.contains(&kv.key)).cloned().collect();
    let mut reply = RangeReply { count: kvs.len() as i64, keys_only: query.keys_only, ..RangeReply::default() };
    if query.count_only {
        return reply;
    }
    let limit = if query.limit > 0 { query.limit as usize } else { usize::MAX };
    let filters =
        [query.min_mod_revision, query.max_mod_revision, query.min_create_revision, query.max_create_revision];
    // With no order, what is sorted is the limit and one more.
    if query.sort_order == SortOrder::None && filters == [0; 4] {
        kvs.truncate(limit.saturating_add(1));
    }
    kvs.retain(|kv| kv.mod_revision >= query.min_mod_revision && kv.create_revision >= query.min_create_revision);
    kvs.retain(|kv| query.max_mod_revision == 0 || kv.mod_revision <= query.max_mod_revision);
    kvs.retain(|kv| query.max_create_revision == 0 || kv.create_revision <= query.max_create_revision);
    let place = |kv: &Arc<KeyValue>| -> (i64, Vec<u8>) {
        match query.sort_target {
            SortTarget::Key => (0, kv.key.to_vec()),
            SortTarget::Version => (kv.version, Vec::new()),
            SortTarget::CreateRevision => (kv.create_revision, Vec::new()),
            SortTarget::ModRevision => (kv.mod_revision, Vec::new()),
            SortTarget::Value => (0, kv.value.to_vec()),
        }
    };
    match query.sort_order {
        SortOrder::Descend => kvs.sort_by_key(|kv| std::cmp::Reverse(place(kv))),
        _ => kvs.sort_by_key(place),
    }
    reply.more = kvs.len() > limit;
    kvs.truncate(limit);
    reply.kvs = kvs;
    reply
}

fn holds(txn: &Txn, state: &State) -> bool {
    txn.compare.iter().all(|compare| {
        let matching: Vec<_> = state.values().filter(|kv| compare.keys.contains(&kv.key)).collect();
        let missing = KeyValue {
            key: Arc::default(),
            value: Box::default(),
            create_revision: 0,
            mod_revision: 0,
            version: 0,
            lease: 0,
        };
        let one_holds = |kv: &KeyValue| {
            let ordering = match &compare.target {
                CompareTarget::Version(version) => kv.version.cmp(version),
                CompareTarget::CreateRevision(revision) => kv.create_revision.cmp(revision),
                CompareTarget::ModRevision(revision) => kv.mod_revision.cmp(revision),
                CompareTarget::Lease(lease) => kv.lease.cmp(lease),
                CompareTarget::Value(value) => Bytes::copy_from_slice(&kv.value).cmp(value),
            };
            match compare.result {
                CompareResult::Equal => ordering.is_eq(),
                CompareResult::NotEqual => ordering.is_ne(),
                CompareResult::Greater => ordering.is_gt(),
                CompareResult::Less => ordering.is_lt(),
            }
        };
        match (&compare.target, matching.is_empty()) {
            (CompareTarget::Value(_), true) => false,
            (_, true) => one_holds(&missing),
            _ => matching.iter().all(|kv| one_holds(kv)),
        }
    })
}
