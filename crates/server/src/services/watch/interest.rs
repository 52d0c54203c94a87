//! What a watch wants to see, and how much of it goes into one response.
//!
//! A commit is everything that one revision changed, for everybody; here it is narrowed down to one
//! watch. Responses hold whole revisions: a client that has seen a part of one could not say where to
//! go on.

use std::borrow::Borrow;
use std::iter::Peekable;

use tenure_api::etcdserverpb::WatchCreateRequest;
use tenure_api::etcdserverpb::watch_create_request::FilterType;
use tenure_api::mvccpb;
use tenure_machine::{Commit, Event, EventKind, Keys, Refusal, Revision, View};

use super::super::answer;

/// A response takes no further revision beyond so many events, or so many bytes.
const BATCH_EVENTS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// About what an event takes beside its keys and values.
const EVENT_OVERHEAD: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interest {
    pub keys: Keys,
    pub puts: bool,
    pub deletes: bool,
    pub prev_kv: bool,
}

impl Interest {
    pub fn new(keys: Keys, request: &WatchCreateRequest) -> Interest {
        let without = |filter: FilterType| request.filters.contains(&filter.into());
        Interest {
            keys,
            puts: !without(FilterType::Noput),
            deletes: !without(FilterType::Nodelete),
            prev_kv: request.prev_kv,
        }
    }

    /// All that happens to these keys.
    pub fn everything(keys: Keys) -> Interest {
        Interest { keys, puts: true, deletes: true, prev_kv: false }
    }

    fn concerns(&self, event: &Event) -> bool {
        let wanted = match event.kind() {
            EventKind::Put => self.puts,
            EventKind::Delete => self.deletes,
        };
        wanted && self.covers(&event.kv.key)
    }

    fn covers(&self, key: &[u8]) -> bool {
        match &self.keys {
            Keys::One(one) => one[..] == *key,
            Keys::Span { from, to } => from[..] <= *key && to.as_ref().is_none_or(|to| to[..] > *key),
        }
    }

    fn bytes(&self, event: &Event) -> usize {
        let prev = event.prev.as_ref().filter(|_| self.prev_kv);
        EVENT_OVERHEAD + event.kv.key.len() + event.kv.value.len() + prev.map_or(0, |kv| kv.key.len() + kv.value.len())
    }

    /// The next response's worth of events; None = nothing more concerns this watch.
    pub fn next_batch<C: Borrow<Commit>>(&self, commits: &mut Peekable<impl Iterator<Item = C>>) -> Option<Batch> {
        let mut batch = Batch { events: Vec::new(), revision: 0 };
        let mut bytes = 0;
        while let Some(commit) = commits.peek() {
            let commit: &Commit = commit.borrow();
            let concerned = || commit.events.iter().filter(|event| self.concerns(event));
            let (count, size) = concerned().fold((0, 0), |(count, size), event| (count + 1, size + self.bytes(event)));
            let full = batch.events.len() + count > BATCH_EVENTS || bytes + size > BATCH_BYTES;
            if count > 0 && full && !batch.events.is_empty() {
                break;
            }
            if count > 0 {
                batch.events.extend(concerned().map(|event| answer::event(event, self.prev_kv)));
                batch.revision = commit.revision;
                bytes += size;
            }
            commits.next();
        }
        Some(batch).filter(|batch| !batch.events.is_empty())
    }

    /// Reads one response's worth of history. Walks all of it, perhaps: not for a network thread.
    pub fn read(&self, view: &View, from: Revision) -> Result<History, Refusal> {
        let mut commits = view.commits(from)?.peekable();
        let batch = self.next_batch(&mut commits);
        let next = commits.peek().map_or(view.revision() + 1, |commit| commit.revision);
        Ok(History { batch, next, revision: view.revision() })
    }
}

/// Events of whole revisions, in order.
#[derive(Debug, PartialEq)]
pub struct Batch {
    pub events: Vec<mvccpb::Event>,
    /// That of the last event.
    pub revision: Revision,
}

pub struct History {
    pub batch: Option<Batch>,
    /// The first revision that was not read.
    pub next: Revision,
    /// The store's, when it was read.
    pub revision: Revision,
}

impl History {
    pub fn is_whole(&self) -> bool {
        self.next > self.revision
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use super::*;
    use tenure_machine::KeyValue;

    pub fn kv(key: &str, revision: Revision, value: &[u8]) -> Arc<KeyValue> {
        Arc::new(KeyValue {
            key: key.as_bytes().into(),
            value: value.into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 0,
        })
    }

    fn put(key: &str, revision: Revision) -> Event {
        Event { kv: kv(key, revision, b"new"), prev: Some(kv(key, revision - 1, b"old")) }
    }

    fn delete(key: &str, revision: Revision) -> Event {
        let kv = Arc::new(KeyValue {
            key: key.as_bytes().into(),
            value: b""[..].into(),
            create_revision: 0,
            mod_revision: revision,
            version: 0,
            lease: 0,
        });
        Event { kv, prev: Some(self::kv(key, revision - 1, b"old")) }
    }

    fn commit(revision: Revision, events: Vec<Event>) -> Commit {
        Commit { revision, events: events.into() }
    }

    fn span(from: &'static str, to: Option<&'static str>) -> Keys {
        Keys::Span { from: from.into(), to: to.map(Into::into) }
    }

    fn batches(interest: &Interest, commits: &[Commit]) -> Vec<(Revision, usize)> {
        let mut commits = commits.iter().peekable();
        std::iter::from_fn(|| interest.next_batch(&mut commits))
            .map(|batch| (batch.revision, batch.events.len()))
            .collect()
    }

    fn seen(interest: &Interest, commits: &[Commit]) -> Vec<String> {
        let batch = interest.next_batch(&mut commits.iter().peekable());
        let describe = |event: mvccpb::Event| {
            let kv = event.kv.expect("every event has a key");
            let kind = if event.r#type == 0 { "put" } else { "delete" };
            let prev = event.prev_kv.map(|kv| format!(" was {}", String::from_utf8_lossy(&kv.value)));
            format!("{kind} {}{}", String::from_utf8_lossy(&kv.key), prev.unwrap_or_default())
        };
        batch.into_iter().flat_map(|batch| batch.events).map(describe).collect()
    }

    #[test]
    fn only_events_of_the_watched_keys_are_seen() {
        let commits = [commit(5, vec![put("a", 5), delete("b", 5), put("c", 5)]), commit(6, vec![put("d", 6)])];
        let one = |key: &'static str| Interest::everything(Keys::One(key.into()));
        assert_eq!(seen(&one("b"), &commits), ["delete b"]);
        assert_eq!(seen(&one("bb"), &commits), [""; 0]);
        let spanned = |from, to| Interest::everything(span(from, to));
        assert_eq!(seen(&spanned("b", Some("d")), &commits), ["delete b", "put c"]);
        assert_eq!(seen(&spanned("b", None), &commits), ["delete b", "put c", "put d"]);
        assert_eq!(seen(&spanned("\0", None), &commits), ["put a", "delete b", "put c", "put d"]);
    }

    #[test]
    fn filters_and_previous_versions_are_as_asked_for() {
        let commits = [commit(5, vec![put("a", 5), delete("b", 5)])];
        let of = |filters: Vec<FilterType>, prev_kv| {
            let filters = filters.into_iter().map(Into::into).collect();
            Interest::new(span("a", None), &WatchCreateRequest { filters, prev_kv, ..Default::default() })
        };
        assert_eq!(seen(&of(vec![], false), &commits), ["put a", "delete b"]);
        assert_eq!(seen(&of(vec![], true), &commits), ["put a was old", "delete b was old"]);
        assert_eq!(seen(&of(vec![FilterType::Noput], false), &commits), ["delete b"]);
        assert_eq!(seen(&of(vec![FilterType::Nodelete], false), &commits), ["put a"]);
        assert_eq!(seen(&of(vec![FilterType::Noput, FilterType::Nodelete], false), &commits), [""; 0]);
    }

    #[test]
    fn a_delete_names_key_and_revision_and_nothing_else() {
        let commits = [commit(5, vec![delete("b", 5)])];
        let interest = Interest::everything(Keys::One("b".into()));
        let batch = interest.next_batch(&mut commits.iter().peekable()).expect("a batch");
        let kv = mvccpb::KeyValue { key: "b".into(), mod_revision: 5, ..Default::default() };
        assert_eq!(batch.events, [mvccpb::Event { r#type: 1, kv: Some(kv), prev_kv: None }]);
    }

    #[test]
    fn batches_hold_whole_revisions_up_to_a_thousand_events() {
        let all = Interest::everything(span("\0", None));
        let of = |revision, count: usize| {
            commit(revision, (0..count).map(|number| put(&number.to_string(), revision)).collect())
        };
        let commits: Vec<_> = (1..=1500).map(|revision| of(revision, 1)).collect();
        assert_eq!(batches(&all, &commits), [(1000, 1000), (1500, 500)]);
        assert_eq!(batches(&all, &[of(1, 600), of(2, 400), of(3, 1)]), [(2, 1000), (3, 1)]);
        assert_eq!(batches(&all, &[of(1, 600), of(2, 500)]), [(1, 600), (2, 500)]);
        assert_eq!(batches(&all, &[of(1, 1), of(2, 5000), of(3, 1)]), [(1, 1), (2, 5000), (3, 1)]);
        assert_eq!(batches(&all, &[]), []);
    }

    #[test]
    fn batches_are_bounded_in_bytes_too() {
        let value = vec![0; BATCH_BYTES / 3];
        let of = |revision| {
            let event = Event { kv: kv("a", revision, &value), prev: None };
            commit(revision, vec![event])
        };
        let all = Interest::everything(span("\0", None));
        assert_eq!(batches(&all, &[of(1), of(2), of(3), of(4)]), [(2, 2), (4, 2)]);
    }
}
