//! What the data store keeps: for each key its last data, and with it the token that wrote them.
//!
//! One thread owns the journal. It takes all writes that are waiting, judges them in their order, and makes those it
//! admits durable with one write and one sync; only then are they answered and shown to readers. Data and bar are one
//! record: there is no moment at which one is there without the other.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use tenure_storage::{Disk, Fault, TornTail};
use tokio::sync::{mpsc, oneshot};

use crate::journal::{Journal, Kind, OpenError};
use crate::{Admitted, Bar, Digest, Equal, Key, Part, Refusal, Token};

/// Writes that wait; whoever comes then waits with its answer.
const QUEUE: usize = 1024;
/// What is made durable together.
const BATCH_WRITES: usize = 256;
const BATCH_BYTES: usize = 8 << 20;
/// Beyond the data and the key: kind, token and three lengths.
const RECORD_OVERHEAD_BYTES: usize = 21;
const RECORD: u8 = 1;

/// The last write of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub token: Token,
    pub holder: String,
    pub data: String,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the store is full: its data may have {quota_bytes} bytes")]
    Full { quota_bytes: u64 },
    /// Whether it was carried out is not known.
    #[error("the store has to stop: {0}")]
    Fault(Fault),
    #[error("the store has stopped")]
    Stopped,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub equal: Equal,
    /// All keys and data together.
    pub quota_bytes: u64,
}

/// A handle to the store: cheap to clone, and the store ends with the last one.
#[derive(Clone)]
pub struct Store {
    entries: Entries,
    writes: mpsc::Sender<Write>,
}

/// The store's thread, and how it ended.
pub struct Running {
    thread: std::thread::JoinHandle<()>,
    /// Resolves if the disk failed; is dropped if all handles were.
    pub failed: oneshot::Receiver<Fault>,
    /// What a crash had left of a write that was never acknowledged.
    pub torn_tail: Option<TornTail>,
}

type Entries = Arc<RwLock<BTreeMap<Key, Arc<Stored>>>>;
type Answer = Result<Admitted, WriteError>;

struct Write {
    key: Key,
    stored: Stored,
    answer: oneshot::Sender<Answer>,
}

impl Store {
    /// Opens a directory, or makes one, and starts the thread that writes.
    pub fn open<D: Disk>(disk: D, directory: &Path, options: Options) -> Result<(Store, Running), OpenError> {
        let (journal, recovered) = Journal::open(disk, directory, Kind::Data)?;
        let mut map = BTreeMap::new();
        for (position, frame) in recovered.frames.iter().enumerate() {
            decode(frame, &mut map).map_err(|reason| journal.unreadable(position, reason))?;
        }
        let used_bytes = map.iter().map(|(key, stored)| record_bytes(key, stored)).sum();
        let entries: Entries = Arc::new(RwLock::new(map));
        let (writes, queue) = mpsc::channel(QUEUE);
        let (fail, failed) = oneshot::channel();
        let writer = Writer { journal, entries: entries.clone(), options, used_bytes };
        let spawned = std::thread::Builder::new().name("datastore".to_owned()).spawn(move || writer.run(queue, fail));
        let thread = spawned.map_err(|source| OpenError::Unusable { directory: directory.to_path_buf(), source })?;
        Ok((Store { entries, writes }, Running { thread, failed, torn_tail: recovered.torn_tail }))
    }

    /// Writes, if the token is admitted: durable on return, together with the bar that it raised.
    pub async fn write(&self, key: Key, stored: Stored) -> Answer {
        let (answer, answered) = oneshot::channel();
        let write = Write { key, stored, answer };
        self.writes.send(write).await.map_err(|_| WriteError::Stopped)?;
        answered.await.unwrap_or(Err(WriteError::Stopped))
    }

    pub fn read(&self, key: &Key) -> Option<Arc<Stored>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Keys in their order, from the one after `after` on.
    pub fn list(&self, after: Option<&Key>, limit: usize) -> Vec<(Key, Arc<Stored>)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = entries.range::<Key, _>((from, Bound::Unbounded)).take(limit);
        listed.map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }
}

impl Running {
    /// Waits until the last write is durable and the directory is free. All handles must be gone, or about to be.
    pub fn join(self) {
        // A panic has been reported by its thread already.
        let _ = self.thread.join();
    }
}

struct Writer<D: Disk> {
    journal: Journal<D>,
    entries: Entries,
    options: Options,
    used_bytes: u64,
}

impl<D: Disk> Writer<D> {
    fn run(mut self, mut queue: mpsc::Receiver<Write>, fail: oneshot::Sender<Fault>) {
        while let Some(first) = queue.blocking_recv() {
            let mut bytes = record_bytes(&first.key, &first.stored) as usize;
            let mut batch = vec![first];
            while batch.len() < BATCH_WRITES
                && bytes < BATCH_BYTES
                && let Ok(next) = queue.try_recv()
            {
                bytes += record_bytes(&next.key, &next.stored) as usize;
                batch.push(next);
            }
            if let Err(fault) = self.write(batch) {
                let _ = fail.send(fault);
                return;
            }
        }
    }

    fn write(&mut self, batch: Vec<Write>) -> Result<(), Fault> {
        let mut pending: BTreeMap<Key, Arc<Stored>> = BTreeMap::new();
        let mut used_bytes = self.used_bytes;
        let mut body = Vec::new();
        let mut answers = Vec::with_capacity(batch.len());
        for Write { key, stored, answer } in batch {
            // What is pending is not durable, but all of the batch becomes so, or nothing does.
            let before = pending.get(&key).cloned().or_else(|| self.stored(&key));
            let outcome = self.judge(&key, &stored, before.as_deref(), &mut used_bytes);
            if matches!(outcome, Ok(Admitted::Raised | Admitted::Again)) {
                encode(&mut body, &key, &stored);
                pending.insert(key, Arc::new(stored));
            }
            answers.push((answer, outcome));
        }
        if !body.is_empty() {
            if let Err(fault) = self.journal.append(&body) {
                for (answer, _) in answers {
                    let _ = answer.send(Err(WriteError::Fault(fault.clone())));
                }
                return Err(fault);
            }
            self.used_bytes = used_bytes;
            self.entries.write().unwrap_or_else(PoisonError::into_inner).append(&mut pending);
        }
        for (answer, outcome) in answers {
            // Whoever hung up meanwhile finds its data by reading.
            let _ = answer.send(outcome);
        }
        self.rewrite_if_due()
    }

    fn judge(&self, key: &Key, stored: &Stored, before: Option<&Stored>, used_bytes: &mut u64) -> Answer {
        if key.part() == Part::Shared {
            return Err(Refusal::Shared.into());
        }
        let admitted = match before {
            None => Admitted::Raised,
            // The lock service gave the token to one of them: the other one made it up, or was told it.
            Some(before) if before.token == stored.token && before.holder != stored.holder => {
                return Err(Refusal::OtherHolder { token: stored.token }.into());
            }
            Some(before) => {
                let compared = self.options.equal == Equal::Identical && before.token == stored.token;
                let digest = |data: &str| compared.then(|| Digest::of(data.as_bytes()));
                let bar = Bar { highest: before.token, digest: digest(&before.data) };
                bar.judge(self.options.equal, stored.token, digest(&stored.data))?
            }
        };
        let freed = before.map_or(0, |before| record_bytes(key, before));
        let wanted = *used_bytes - freed + record_bytes(key, stored);
        if wanted > self.options.quota_bytes && wanted > *used_bytes {
            return Err(WriteError::Full { quota_bytes: self.options.quota_bytes });
        }
        *used_bytes = wanted;
        Ok(admitted)
    }

    fn stored(&self, key: &Key) -> Option<Arc<Stored>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn rewrite_if_due(&mut self) -> Result<(), Fault> {
        if !self.journal.is_worth_rewriting(self.used_bytes) {
            return Ok(());
        }
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut entries = entries.iter().peekable();
        let frames = std::iter::from_fn(|| {
            entries.peek()?;
            let mut body = Vec::new();
            while body.len() < BATCH_BYTES
                && let Some((key, stored)) = entries.next()
            {
                encode(&mut body, key, stored);
            }
            Some(body)
        });
        self.journal.rewrite(frames)
    }
}

fn record_bytes(key: &Key, stored: &Stored) -> u64 {
    (RECORD_OVERHEAD_BYTES + key.as_str().len() + stored.holder.len() + stored.data.len()) as u64
}

/// A kind, the token, then key, holder and data, each with its length before it.
fn encode(body: &mut Vec<u8>, key: &Key, stored: &Stored) {
    body.push(RECORD);
    body.extend_from_slice(&stored.token.get().to_le_bytes());
    for text in [key.as_str(), &stored.holder, &stored.data] {
        body.extend_from_slice(&(text.len() as u32).to_le_bytes());
        body.extend_from_slice(text.as_bytes());
    }
}

fn decode(mut body: &[u8], entries: &mut BTreeMap<Key, Arc<Stored>>) -> Result<(), &'static str> {
    fn take<'a>(body: &mut &'a [u8], length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = body.split_at_checked(length).ok_or("a record is cut short")?;
        *body = rest;
        Ok(taken)
    }
    fn take_text(body: &mut &[u8]) -> Result<String, &'static str> {
        let length = take(body, 4)?.try_into().map(u32::from_le_bytes).map_err(|_| "a record is cut short")?;
        String::from_utf8(take(body, length as usize)?.to_vec()).map_err(|_| "a record is no text")
    }
    while !body.is_empty() {
        if take(&mut body, 1)?[0] != RECORD {
            return Err("a record is of no known kind");
        }
        let token = take(&mut body, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| "a record is cut short")?;
        let token = Token::new(token).map_err(|_| "a record has no token")?;
        let key = Key::parse(&take_text(&mut body)?).map_err(|_| "a record has no key")?;
        let (holder, data) = (take_text(&mut body)?, take_text(&mut body)?);
        entries.insert(key, Arc::new(Stored { token, holder, data }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_storage::MemoryDisk;

    const OPTIONS: Options = Options { equal: Equal::Allow, quota_bytes: 1 << 20 };

    fn key(name: &str) -> Key {
        Key::parse(name).unwrap()
    }

    fn stored(token: u64, data: &str) -> Stored {
        Stored { token: Token::new(token).unwrap(), holder: "h".to_owned(), data: data.to_owned() }
    }

    fn open(disk: &MemoryDisk, options: Options) -> (Store, Running) {
        Store::open(disk.clone(), Path::new("/data"), options).unwrap()
    }

    #[tokio::test]
    async fn data_and_bar_are_there_again_together() {
        let disk = MemoryDisk::new(1);
        let (store, running) = open(&disk, OPTIONS);
        assert_eq!(store.write(key("a"), stored(5, "five")).await.unwrap(), Admitted::Raised);
        assert_eq!(store.write(key("a"), stored(5, "again")).await.unwrap(), Admitted::Again);
        assert!(store.write(key("a"), stored(4, "four")).await.is_err());
        drop(store);
        running.join();
        disk.crash();
        let (store, _running) = open(&disk, OPTIONS);
        assert_eq!(*store.read(&key("a")).unwrap(), stored(5, "again"));
        let refused = store.write(key("a"), stored(4, "four")).await.unwrap_err();
        assert!(matches!(refused, WriteError::Refused(Refusal::Stale { .. })), "{refused}");
    }

    #[tokio::test]
    async fn a_retry_passes_and_other_data_do_not() {
        let (store, _running) = open(&MemoryDisk::new(1), Options { equal: Equal::Identical, ..OPTIONS });
        store.write(key("a"), stored(5, "five")).await.unwrap();
        assert_eq!(store.write(key("a"), stored(5, "five")).await.unwrap(), Admitted::Repeated);
        assert!(store.write(key("a"), stored(5, "other")).await.is_err());
        assert!(store.write(key("a#shared"), stored(6, "six")).await.is_err());
        assert_eq!(*store.read(&key("a")).unwrap(), stored(5, "five"));
    }

    #[tokio::test]
    async fn an_equal_token_is_taken_only_from_the_client_that_set_it() {
        for equal in [Equal::Allow, Equal::Identical, Equal::Refuse] {
            let (store, _running) = open(&MemoryDisk::new(1), Options { equal, ..OPTIONS });
            store.write(key("a"), stored(5, "five")).await.unwrap();
            let other = |token| Stored { holder: "other".to_owned(), ..stored(token, "five") };
            let refused = store.write(key("a"), other(5)).await.unwrap_err();
            assert!(matches!(refused, WriteError::Refused(Refusal::OtherHolder { .. })), "{equal:?}: {refused}");
            assert_eq!(*store.read(&key("a")).unwrap(), stored(5, "five"));
            assert_eq!(store.write(key("a"), other(6)).await.unwrap(), Admitted::Raised, "the next holder");
            assert!(store.write(key("a"), stored(5, "five")).await.is_err(), "stale");
        }
    }

    #[tokio::test]
    async fn a_full_store_says_so_and_still_takes_what_is_smaller() {
        let (store, _running) = open(&MemoryDisk::new(1), Options { quota_bytes: 200, ..OPTIONS });
        store.write(key("a"), stored(1, &"x".repeat(150))).await.unwrap();
        let full = store.write(key("b"), stored(2, &"x".repeat(50))).await.unwrap_err();
        assert!(matches!(full, WriteError::Full { .. }), "{full}");
        store.write(key("a"), stored(3, "x")).await.unwrap();
        store.write(key("b"), stored(4, "x")).await.unwrap();
        assert_eq!(store.list(None, 9).len(), 2);
        assert_eq!(store.list(Some(&key("a")), 9)[0].0, key("b"));
    }

    #[tokio::test]
    async fn a_disk_that_fails_stops_the_store_and_shows_nothing_of_the_write() {
        let disk = MemoryDisk::new(1);
        let (store, running) = open(&disk, OPTIONS);
        store.write(key("a"), stored(5, "five")).await.unwrap();
        disk.fail_sync(1);
        assert!(matches!(store.write(key("a"), stored(6, "six")).await, Err(WriteError::Fault(_))));
        assert_eq!(*store.read(&key("a")).unwrap(), stored(5, "five"));
        assert!(running.failed.await.is_ok());
        assert!(matches!(store.write(key("a"), stored(7, "seven")).await, Err(WriteError::Stopped)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_writers_leave_the_data_of_the_highest_token() {
        let home = tempfile::tempdir().unwrap();
        let options = Options { quota_bytes: 8 << 20, ..OPTIONS };
        let (store, running) = Store::open(tenure_storage::OsDisk::default(), home.path(), options).unwrap();
        let data = |token: u64| format!("{token} {}", "x".repeat(4_000));
        let mut tasks = Vec::new();
        for writer in 0..8 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                for round in 0..100_u64 {
                    let token = round * 8 + (writer * 3 + round) % 8 + 1;
                    let _ = store.write(key("a"), stored(token, &data(token))).await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*store.read(&key("a")).unwrap(), stored(800, &data(800)));
        drop(store);
        running.join();
        let (store, _running) = Store::open(tenure_storage::OsDisk::default(), home.path(), options).unwrap();
        assert_eq!(*store.read(&key("a")).unwrap(), stored(800, &data(800)));
    }

    /// Data of many sizes until the journal has been rewritten, the power cut at a hundred different moments.
    #[tokio::test]
    async fn acknowledged_writes_survive_power_cuts() {
        for seed in 0..6 {
            let disk = MemoryDisk::new(seed);
            let mut acknowledged = 0;
            let mut attempted = 0;
            for life in 0..12 {
                disk.cut_power_at(disk.operations() + 40 + life * 31);
                // The power may go while it is opened, too.
                let Ok((store, running)) = Store::open(disk.clone(), Path::new("/data"), OPTIONS) else {
                    disk.crash();
                    continue;
                };
                if acknowledged > 0 {
                    let found = store.read(&key("a")).unwrap().token.get();
                    assert!((acknowledged..=attempted).contains(&found), "{acknowledged} {found} {attempted}");
                    let data = "y".repeat(found as usize * 37 % 5_000);
                    assert_eq!(store.read(&key("a")).unwrap().data, data, "data and bar are of one write");
                }
                loop {
                    attempted += 1;
                    let data = "y".repeat(attempted as usize * 37 % 5_000);
                    if store.write(key("a"), stored(attempted, &data)).await.is_err() {
                        break;
                    }
                    acknowledged = attempted;
                }
                drop(store);
                running.join();
                disk.crash();
            }
        }
    }
}
