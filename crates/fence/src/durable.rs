//! The bars of many keys, on disk: a store that was down forgets nothing.
//!
//! A bar is durable before [`DurableFence::admit`] returns, so before the write that it admits can be acknowledged.
//! Raising it costs one sync; the same holder's next write costs none. For many keys at once, [`DurableFence::admit_all`]
//! shares one sync among them.

use std::fmt;
use std::path::Path;

use tenure_storage::{Disk, Fault, OsDisk, TornTail};

use crate::journal::{Journal, Kind, OpenError};
use crate::{Admitted, Digest, Equal, Fence, Key, Refusal, Token};

/// So many records share a frame when the journal is rewritten.
const RECORDS_PER_FRAME: usize = 4096;

/// A [`Fence`] that outlives its process. One process at a time has the directory.
pub struct DurableFence<D: Disk = OsDisk> {
    fence: Fence,
    journal: Journal<D>,
    /// About what the bars would take if the journal held nothing else.
    live_bytes: u64,
    torn_tail: Option<TornTail>,
}

#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Whether the bar is raised is not known: carry out nothing, and start again from the disk.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// One write that asks to be admitted.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: Key,
    pub token: Token,
    /// Of its data; decides only where equal tokens pass with identical data.
    pub digest: Option<Digest>,
}

impl DurableFence {
    /// Opens a directory of bars, or makes one.
    pub fn open(directory: &Path, equal: Equal) -> Result<DurableFence, OpenError> {
        DurableFence::open_on(OsDisk::default(), directory, equal)
    }
}

impl<D: Disk> DurableFence<D> {
    /// On a disk of the caller's choice.
    pub fn open_on(disk: D, directory: &Path, equal: Equal) -> Result<DurableFence<D>, OpenError> {
        let (journal, recovered) = Journal::open(disk, directory, Kind::Bars)?;
        let mut fence = Fence::new(equal);
        for (position, frame) in recovered.frames.iter().enumerate() {
            replay(&mut fence, frame).map_err(|reason| journal.unreadable(position, reason))?;
        }
        let live_bytes = live_bytes(&fence);
        Ok(DurableFence { fence, journal, live_bytes, torn_tail: recovered.torn_tail })
    }

    /// As [`Fence::admit`]; the bar is durable on return. What is said there about the write that follows holds here.
    pub fn admit(&mut self, key: &Key, token: Token, digest: Option<Digest>) -> Result<Admitted, AdmitError> {
        let admitted = self.fence.check(key, token, digest)?;
        if admitted == Admitted::Raised {
            let mut body = Vec::new();
            encode_bar(&mut body, key, token, self.fence.kept(digest));
            self.journal.append(&body)?;
            self.live_bytes += if self.fence.highest(key).is_none() { bar_bytes(key) } else { 0 };
            self.fence.raise(key, token, digest);
            self.rewrite_if_due()?;
        }
        Ok(admitted)
    }

    /// Several in their order, with one sync. A fault is everybody's: none of them was admitted.
    pub fn admit_all(&mut self, requests: &[Request]) -> Result<Vec<Result<Admitted, Refusal>>, Fault> {
        let mut pending = self.fence.empty();
        let mut body = Vec::new();
        let mut outcomes = Vec::with_capacity(requests.len());
        for Request { key, token, digest } in requests {
            // Those before it in this call have raised bars that are not in the fence yet.
            let fence = if pending.highest(key).is_some() { &pending } else { &self.fence };
            let outcome = fence.check(key, *token, *digest);
            if outcome == Ok(Admitted::Raised) {
                encode_bar(&mut body, key, *token, self.fence.kept(*digest));
                pending.raise(key, *token, *digest);
            }
            outcomes.push(outcome);
        }
        if !body.is_empty() {
            self.journal.append(&body)?;
            let new = pending.bars().filter(|(key, _)| self.fence.highest(key).is_none());
            self.live_bytes += new.map(|(key, _)| bar_bytes(key)).sum::<u64>();
            self.fence.take_bars(pending);
            self.rewrite_if_due()?;
        }
        Ok(outcomes)
    }

    /// As [`Fence::forget_below`]; the floor is durable before anything is forgotten.
    pub fn forget_below(&mut self, floor: Token) -> Result<(), Fault> {
        let mut body = Vec::new();
        encode_floor(&mut body, floor);
        self.journal.append(&body)?;
        self.fence.forget_below(floor);
        self.live_bytes = live_bytes(&self.fence);
        self.rewrite_if_due()
    }

    /// The bars, to be asked and not to be changed.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// What a crash had left of a write that was never acknowledged, and that opening cut off.
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.torn_tail.as_ref()
    }

    fn rewrite_if_due(&mut self) -> Result<(), Fault> {
        if !self.journal.is_worth_rewriting(self.live_bytes) {
            return Ok(());
        }
        let bars: Vec<_> = self.fence.bars().collect();
        let floor = self.fence.floor().map(|floor| {
            let mut body = Vec::new();
            encode_floor(&mut body, floor);
            body
        });
        let frames = bars.chunks(RECORDS_PER_FRAME).map(|bars| {
            let mut body = Vec::new();
            for (key, bar) in bars {
                encode_bar(&mut body, key, bar.highest, bar.digest);
            }
            body
        });
        self.journal.rewrite(floor.into_iter().chain(frames))
    }
}

impl<D: Disk> fmt::Debug for DurableFence<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DurableFence").field("directory", &self.journal.directory()).finish()
    }
}

fn live_bytes(fence: &Fence) -> u64 {
    fence.bars().map(|(key, _)| bar_bytes(key)).sum()
}

fn bar_bytes(key: &Key) -> u64 {
    45 + key.as_str().len() as u64
}

const BAR: u8 = 1;
const BAR_WITH_DIGEST: u8 = 2;
const FLOOR: u8 = 3;

/// A kind, the token, for a bar its key with the length before it, and its digest if there is one.
fn encode_bar(body: &mut Vec<u8>, key: &Key, token: Token, digest: Option<Digest>) {
    body.push(if digest.is_some() { BAR_WITH_DIGEST } else { BAR });
    body.extend_from_slice(&token.get().to_le_bytes());
    body.extend_from_slice(&(key.as_str().len() as u32).to_le_bytes());
    body.extend_from_slice(key.as_str().as_bytes());
    body.extend(digest.iter().flat_map(|digest| digest.0));
}

fn encode_floor(body: &mut Vec<u8>, floor: Token) {
    body.push(FLOOR);
    body.extend_from_slice(&floor.get().to_le_bytes());
}

fn replay(fence: &mut Fence, mut body: &[u8]) -> Result<(), &'static str> {
    const SHORT: &str = "a record is cut short";
    fn take<'a>(body: &mut &'a [u8], length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = body.split_at_checked(length).ok_or(SHORT)?;
        *body = rest;
        Ok(taken)
    }
    while !body.is_empty() {
        let kind = take(&mut body, 1)?[0];
        let token = take(&mut body, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| SHORT)?;
        let token = Token::new(token).map_err(|_| "a record has no token")?;
        if kind == FLOOR {
            fence.forget_below(token);
            continue;
        }
        if kind != BAR && kind != BAR_WITH_DIGEST {
            return Err("a record is of no known kind");
        }
        let length = take(&mut body, 4)?.try_into().map(u32::from_le_bytes).map_err(|_| SHORT)?;
        let key = std::str::from_utf8(take(&mut body, length as usize)?).map_err(|_| "a key is no text")?;
        let key = Key::parse(key).map_err(|_| "a record has no key")?;
        let digest = match kind {
            BAR_WITH_DIGEST => Some(Digest(take(&mut body, 32)?.try_into().map_err(|_| SHORT)?)),
            _ => None,
        };
        fence.raise(&key, token, digest);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tenure_storage::MemoryDisk;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::parse(name).unwrap()
    }

    fn open(disk: &MemoryDisk, equal: Equal) -> DurableFence<MemoryDisk> {
        DurableFence::open_on(disk.clone(), Path::new("/bars"), equal).unwrap()
    }

    fn refused(result: Result<Admitted, AdmitError>) -> Refusal {
        match result {
            Err(AdmitError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_that_was_down_forgets_nothing() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/bars");
        let mut fence = DurableFence::open(&directory, Equal::Identical).unwrap();
        let data = Some(Digest::of(b"data"));
        assert_eq!(fence.admit(&key("a"), token(5), data).unwrap(), Admitted::Raised);
        assert!(matches!(DurableFence::open(&directory, Equal::Identical), Err(OpenError::InUse { .. })));
        drop(fence);
        let mut fence = DurableFence::open(&directory, Equal::Identical).unwrap();
        assert_eq!(
            refused(fence.admit(&key("a"), token(4), data)),
            Refusal::Stale { token: token(4), highest: token(5) }
        );
        assert_eq!(fence.admit(&key("a"), token(5), data).unwrap(), Admitted::Repeated);
        assert_eq!(refused(fence.admit(&key("a"), token(5), None)), Refusal::Reused { token: token(5) });
        fence.forget_below(token(6)).unwrap();
        drop(fence);
        let mut fence = DurableFence::open(&directory, Equal::Allow).unwrap();
        assert!(matches!(refused(fence.admit(&key("a"), token(5), None)), Refusal::Forgotten { .. }));
        assert!(fence.fence().is_empty());
    }

    #[test]
    fn a_changed_policy_never_takes_other_data_for_a_retry() {
        let disk = MemoryDisk::new(1);
        let mut fence = open(&disk, Equal::Allow);
        fence.admit(&key("a"), token(5), Some(Digest::of(b"one"))).unwrap();
        fence.admit(&key("a"), token(5), Some(Digest::of(b"two"))).unwrap();
        drop(fence);
        disk.kill();
        let mut fence = open(&disk, Equal::Identical);
        assert!(matches!(refused(fence.admit(&key("a"), token(5), Some(Digest::of(b"one")))), Refusal::Reused { .. }));
    }

    #[test]
    fn several_are_judged_in_their_order_with_one_sync() {
        let disk = MemoryDisk::new(1);
        let mut fence = open(&disk, Equal::Refuse);
        let before = disk.operations();
        let requests = [("a", 5), ("a", 4), ("b", 3), ("a", 6), ("a", 6), ("a#shared", 9)]
            .map(|(name, value)| Request { key: key(name), token: token(value), digest: None });
        let outcomes = fence.admit_all(&requests).unwrap();
        assert_eq!(
            outcomes,
            [
                Ok(Admitted::Raised),
                Err(Refusal::Stale { token: token(4), highest: token(5) }),
                Ok(Admitted::Raised),
                Ok(Admitted::Raised),
                Err(Refusal::Reused { token: token(6) }),
                Err(Refusal::Shared),
            ]
        );
        assert_eq!(disk.operations() - before, 2, "one write and one sync");
        assert_eq!(fence.fence().highest(&key("a")), Some(token(6)));
    }

    #[test]
    fn a_full_disk_admits_nothing_and_raises_nothing() {
        let disk = MemoryDisk::new(1);
        let mut fence = open(&disk, Equal::Allow);
        fence.admit(&key("a"), token(5), None).unwrap();
        disk.set_capacity(Some(0));
        assert!(matches!(fence.admit(&key("a"), token(6), None), Err(AdmitError::Fault(Fault::DiskFull { .. }))));
        assert_eq!(fence.fence().highest(&key("a")), Some(token(5)));
        disk.set_capacity(None);
        assert!(matches!(fence.admit(&key("b"), token(7), None), Err(AdmitError::Fault(Fault::Poisoned { .. }))));
    }

    /// Long enough to rewrite the journal several times, with the power cut now and then.
    #[test]
    fn bars_never_fall_over_power_cuts_and_rewrites() {
        for seed in 0..4 {
            let disk = MemoryDisk::new(seed);
            let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
            let mut next = 1;
            for life in 0..6 {
                disk.cut_power_at(disk.operations() + 1_500 + life * 777);
                let opened = DurableFence::open_on(disk.clone(), Path::new("/bars"), Equal::Allow);
                let mut fence = opened.expect("the power lasts longer than that");
                for (name, value) in &acknowledged {
                    let highest = fence.fence().highest(&key(name)).expect("it was acknowledged");
                    assert!(highest >= token(*value), "{name}: {value} acknowledged, {highest} found");
                }
                loop {
                    let name = format!("{}{}", "long/".repeat(150), next % 50);
                    match fence.admit(&key(&name), token(next), None) {
                        Ok(admitted) => assert_eq!(admitted, Admitted::Raised),
                        Err(AdmitError::Fault(_)) => break,
                        Err(AdmitError::Refused(refusal)) => panic!("{refusal}"),
                    }
                    acknowledged.insert(name, next);
                    next += 1;
                }
                next += 1;
                drop(fence);
                disk.crash();
            }
            let files = disk.files();
            let last = files.iter().filter_map(|file| file.to_str()?.strip_prefix("/bars/journal-")).max().unwrap();
            assert!(last > "0000000000000002", "it was never rewritten: {last}");
        }
    }
}
