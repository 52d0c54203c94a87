//! What answers show of revisions other than their own: a version of a key names the revision that wrote it, the one that
//! created it, and how many there were between them. The search for an order uses this to leave a wrong way early.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_machine::{Event, KeyValue, Revision};

#[derive(Default)]
pub struct Shown {
    written: BTreeMap<Revision, Vec<Arc<KeyValue>>>,
    created: BTreeSet<(Revision, Vec<u8>)>,
    keys: BTreeMap<Vec<u8>, OfKey>,
}

#[derive(Default)]
struct OfKey {
    versions: BTreeMap<Revision, Arc<KeyValue>>,
    /// Behind the first and up to the second nothing was written.
    quiet: BTreeSet<(Revision, Revision)>,
}

impl Shown {
    /// Somebody was shown this; with `upto`, as what was there at that revision.
    pub fn add(&mut self, kv: &Arc<KeyValue>, upto: Option<Revision>) {
        let key = kv.key.to_vec();
        let of_key = self.keys.entry(key.clone()).or_default();
        of_key.quiet.extend(upto.map(|upto| (kv.mod_revision, upto)));
        of_key.versions.insert(kv.mod_revision, Arc::clone(kv));
        self.created.insert((kv.create_revision, key));
        let written = self.written.entry(kv.mod_revision).or_default();
        if !written.contains(kv) {
            written.push(Arc::clone(kv));
        }
    }

    /// Whether a revision that did this can be the one that they were shown something of.
    pub fn fits(&self, revision: Revision, events: &[Event]) -> bool {
        let written = self.written.get(&revision).map_or(&[][..], |written| &written[..]);
        let mut created = self.created.range((revision, Vec::new())..(revision + 1, Vec::new()));
        written.iter().all(|kv| events.iter().any(|event| event.kv == *kv))
            && created.all(|(_, key)| events.iter().any(|event| event.kv.key[..] == key[..] && event.kv.version == 1))
            && events.iter().all(|event| self.leads_on(revision, event))
    }

    /// Whether what is shown of the same key later can follow.
    fn leads_on(&self, revision: Revision, event: &Event) -> bool {
        let Some(of_key) = self.keys.get(&event.kv.key[..]) else { return true };
        if of_key.quiet.iter().any(|(from, upto)| (from + 1..=*upto).contains(&revision)) {
            return false;
        }
        let later = of_key.versions.range(revision + 1..).next();
        later.is_none_or(|(_, later)| {
            let between = later.version - event.kv.version;
            later.create_revision > revision
                || (event.kv.create_revision == later.create_revision
                    && (1..=later.mod_revision - revision).contains(&between))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(value: &str, create_revision: Revision, mod_revision: Revision, version: i64) -> Arc<KeyValue> {
        let (key, value) = (b"key"[..].into(), value.as_bytes().into());
        Arc::new(KeyValue { key, value, create_revision, mod_revision, version, lease: 0 })
    }

    fn fits(shown: &Shown, kv: Arc<KeyValue>) -> bool {
        shown.fits(kv.mod_revision, &[Event { kv, prev: None }])
    }

    #[test]
    fn what_was_shown_must_have_been_written() {
        let mut shown = Shown::default();
        shown.add(&version("c", 3, 7, 3), Some(9));
        assert!(fits(&shown, version("c", 3, 7, 3)) && !fits(&shown, version("d", 3, 7, 3)));
        assert!(fits(&shown, version("a", 3, 3, 1)) && !fits(&shown, version("a", 2, 3, 2)), "it was created there");
        assert!(fits(&shown, version("b", 3, 5, 2)) && !fits(&shown, version("b", 3, 5, 3)), "one version follows");
        assert!(!fits(&shown, version("d", 3, 8, 4)) && fits(&shown, version("d", 3, 10, 4)), "it was there until 9");
    }
}
