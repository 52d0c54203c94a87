//! From a lease to the queue, from the queue to the grant, and from there to the end: what each answer
//! of the replica means for the place that it is about.

use std::time::Duration;

use bytes::Bytes;
use tenure_machine::lock::entry_key;
use tenure_machine::{BusyReply, Command, LeaseGrant, Lock, LockEntry, Refusal, Reply, Revision, View};
use tenure_replica::{Answered, Consistency, Failure, Input, Read};
use tokio::time::Instant;

use super::{Found, NOT_HELD, RESUMED, Session, What};
use crate::metrics::sessions::Done;
use crate::services::tenure_lock::describe::end_in_words;
use crate::services::websocket::message::{CommandType, RequestId, Told};
use crate::services::websocket::place::{PlaceId, Stage};

/// A lease may end while it is being taken over; then all begins anew, but not for ever.
const ATTEMPTS: u32 = 3;
/// After a keepalive that nobody could answer.
const RETRY: Duration = Duration::from_millis(100);

impl Session {
    pub(super) fn begin(&mut self, id: PlaceId) {
        self.set_stage(id, Stage::Entering, None);
        let Some(place) = self.places.get_mut(&id) else { return };
        place.attempts += 1;
        match (place.first.command, place.first.ttl_ms) {
            (CommandType::Acquire, Some(ttl_ms)) => {
                place.ttl_ms = ttl_ms;
                let client = Bytes::copy_from_slice(place.pair.client.as_bytes());
                let grant = LeaseGrant { lease: place.lease, ttl_ms, client };
                self.propose(id, What::Grant, Command::LeaseGrant(grant));
            }
            _ => self.look(id),
        }
    }

    fn look(&mut self, id: PlaceId) {
        let consistency = Consistency::Linearizable;
        self.call(id, What::Look, |call| Input::Read { call, read: Read::View, consistency });
    }

    pub(super) fn answer(&mut self, id: PlaceId, what: What, result: Result<Answered, Failure>) {
        match (what, result) {
            (What::Grant, Ok(_)) => self.granted_lease(id),
            (What::Grant, Err(Failure::Refused(Refusal::LeaseExists))) => self.look(id),
            (What::Look, Ok(Answered::View(view))) => self.looked(id, &view),
            (What::Resume { found }, Ok(Answered::Reply(Reply::SessionResumed { epoch, .. }))) => {
                self.resumed(id, found, epoch);
            }
            (What::Resume { .. } | What::Lock, Err(Failure::Refused(Refusal::LeaseNotFound))) => self.begin_again(id),
            (What::Lock, Ok(Answered::Lock(reply))) => {
                self.by_token.insert(reply.token, id);
                self.set_stage(id, Stage::Confirming { token: reply.token }, None);
                self.keep_alive(id, What::Confirm { sent: Instant::now() });
            }
            (What::Lock, Ok(Answered::Reply(Reply::Busy(busy)))) => self.busy(id, &busy),
            (What::Lock, Err(failure)) => self.not_granted(id, &failure),
            (What::Confirm { sent }, Ok(Answered::KeptAlive { ttl_ms: Some(_) })) => self.granted(id, sent),
            (What::KeepQueued { sent }, Ok(_)) => self.keep_on(id, sent),
            (What::Renew { id: request_id, key, sent }, Ok(Answered::KeptAlive { ttl_ms: Some(_) })) => {
                self.renewed(id, request_id.as_ref(), &key, sent);
            }
            (What::Confirm { .. }, Ok(_)) => self.end(id, "lost: its lease has expired"),
            (What::Renew { id: request_id, key, .. }, Ok(_)) => {
                self.fail(request_id.as_ref(), &key, NOT_HELD);
                self.end(id, NOT_HELD);
            }
            (What::Confirm { .. } | What::KeepQueued { .. }, Err(Failure::Refused(Refusal::SessionResumed))) => {
                self.end(id, RESUMED);
            }
            (What::Renew { id: request_id, key, .. }, Err(Failure::Refused(Refusal::SessionResumed))) => {
                self.fail(request_id.as_ref(), &key, RESUMED);
                self.end(id, RESUMED);
            }
            // A lease that has ended is told otherwise; whatever else it is may pass.
            (What::Confirm { .. } | What::KeepQueued { .. }, Err(_)) => self.set_due(id, Instant::now() + RETRY),
            (What::Renew { id: request_id, key, .. }, Err(failure)) => {
                self.fail(request_id.as_ref(), &key, &in_words(&failure));
                self.end_renewal(id);
            }
            (What::Unlock { id: request_id, key, token }, result) => {
                self.unlocked(request_id.as_ref(), &key, token, result);
                self.forget(id);
            }
            (What::Nothing, _) => {}
            (_, Err(failure)) => self.end(id, &in_words(&failure)),
            (_, Ok(other)) => {
                tracing::error!(?other, "a WebSocket session was answered with something else");
                self.end(id, "an unexpected answer");
            }
        }
    }

    /// The lease is new, so its first epoch is known before the command that begins it is answered.
    fn granted_lease(&mut self, id: PlaceId) {
        let Some(place) = self.places.get_mut(&id) else { return };
        (place.epoch, place.is_adopted) = (1, false);
        let lease = place.lease;
        self.propose(id, What::Nothing, Command::ResumeSession { lease });
        self.join(id);
    }

    /// The lease was there: an earlier connection of the client has left it.
    fn looked(&mut self, id: PlaceId, view: &View) {
        let Some(place) = self.places.get_mut(&id) else { return };
        let Some(known) = view.lease(place.lease) else {
            return match place.first.command {
                CommandType::Acquire => self.begin_again(id),
                CommandType::Release | CommandType::Renew => {
                    let error = not_held(&view.busy(place.pair.key.as_bytes()));
                    self.end(id, &error);
                }
            };
        };
        if known.client[..] != *place.pair.client.as_bytes() {
            return self.end(id, "the lease of this client and lock is in somebody else's use");
        }
        if let Some(text) = too_long(place.first.ttl_ms, known.ttl_ms) {
            return self.end(id, &text);
        }
        place.ttl_ms = known.ttl_ms;
        let entry = view.lock_entry(&entry_key(place.pair.key.as_bytes(), place.lease)).map(|(_, entry)| entry);
        let found = match entry {
            None => Found::Lease,
            Some(entry) if entry.granted_wall_ms.is_none() => Found::Waiting,
            Some(entry) => Found::Held(entry.token),
        };
        let lease = place.lease;
        self.propose(id, What::Resume { found }, Command::ResumeSession { lease });
    }

    fn resumed(&mut self, id: PlaceId, found: Found, epoch: u64) {
        let Some(place) = self.places.get_mut(&id) else { return };
        (place.epoch, place.is_adopted) = (epoch, true);
        let (first, lease) = (place.first.clone(), place.lease);
        match (first.command, found) {
            (CommandType::Acquire, _) => self.join(id),
            (_, Found::Held(token)) => {
                self.open(lease);
                self.by_token.insert(token, id);
                self.set_stage(id, Stage::Held { token, renewed_at: Instant::now(), is_renewing: false }, None);
                self.ask_settled(id, first);
                self.settle(id);
            }
            (CommandType::Release, Found::Waiting) => {
                self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
                self.confirm_release(first.id.as_ref(), &first.pair.key, 0);
                self.forget(id);
            }
            (_, Found::Waiting) => self.end(id, "not held yet: acquire it to go on waiting"),
            (_, Found::Lease) => self.end(id, NOT_HELD),
        }
    }

    fn begin_again(&mut self, id: PlaceId) {
        let attempts = self.places.get(&id).map_or(ATTEMPTS, |place| place.attempts);
        let is_acquire = self.places.get(&id).is_some_and(|place| place.first.command == CommandType::Acquire);
        match is_acquire && attempts < ATTEMPTS {
            true => self.begin(id),
            false => self.end(id, NOT_HELD),
        }
    }

    /// Takes the place in the queue, or joins the one that is there.
    fn join(&mut self, id: PlaceId) {
        let Some(place) = self.places.get(&id) else { return };
        let (lease, is_adopted) = (place.lease, place.is_adopted);
        let lock = Box::new(Lock {
            try_once: place.first.timeout_ms == Some(0),
            name: Bytes::copy_from_slice(place.pair.key.as_bytes()),
            lease,
            call: self.member.draw_call(),
            holder: Bytes::copy_from_slice(place.pair.client.as_bytes()),
            epoch: place.epoch,
            ..Lock::default()
        });
        self.open(lease);
        let Some(call) = self.call(id, What::Lock, |call| Input::Lock { call, lock }) else { return };
        self.set_stage(id, Stage::Asking { call }, None);
        if is_adopted {
            // Nobody has kept it alive for a while.
            self.keep_alive(id, What::KeepQueued { sent: Instant::now() });
        }
    }

    pub(super) fn queued(&mut self, id: PlaceId, ahead: usize) {
        let Some(place) = self.places.get(&id) else { return };
        let Stage::Asking { call } = place.stage else { return };
        let due = place.due_by(Instant::now() + place.third());
        self.set_stage(id, Stage::Queued { call }, Some(due));
        self.tell_event(id, Told { event: Some("queued"), ahead: Some(ahead), ..Told::default() });
        self.settle(id);
    }

    fn keep_on(&mut self, id: PlaceId, sent: Instant) {
        let Some(place) = self.places.get(&id) else { return };
        if let Stage::Queued { .. } = place.stage {
            let due = place.due_by(sent + place.third());
            self.set_due(id, due);
        }
    }

    fn granted(&mut self, id: PlaceId, sent: Instant) {
        let Some(place) = self.places.get(&id) else { return };
        let Stage::Confirming { token } = place.stage else { return };
        let (key, request_id) = (place.pair.key.clone(), place.request_id.clone());
        self.set_stage(id, Stage::Held { token, renewed_at: sent, is_renewing: false }, None);
        self.expect_warning(id, sent);
        self.count(Done::LockGranted);
        self.vouch(id, request_id.as_ref(), &key, token);
        self.settle(id);
    }

    /// It was not to wait, and another client is in the way.
    fn busy(&mut self, id: PlaceId, busy: &BusyReply) {
        let Some(place) = self.places.get(&id) else { return };
        let (lease, is_adopted) = (place.lease, place.is_adopted);
        if !is_adopted {
            self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
        }
        self.count(Done::LockRefused);
        let error = match &busy.holder {
            Some(holder) => format!("busy: {} holds it, {} wait", name_of_holder(holder), busy.waiting),
            None => format!("busy: {} wait", busy.waiting),
        };
        self.end(id, &error);
    }

    /// A lease that was made for this alone goes with it; one that was adopted has its own time.
    fn not_granted(&mut self, id: PlaceId, failure: &Failure) {
        if let Some(place) = self.places.get(&id)
            && !place.is_adopted
            && !matches!(failure, Failure::Refused(Refusal::SessionResumed))
        {
            let lease = place.lease;
            self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
        }
        self.count(Done::LockRefused);
        match failure {
            Failure::Refused(Refusal::SessionResumed) => self.end(id, RESUMED),
            failure => self.end(id, &in_words(failure)),
        }
    }

    /// Lost meanwhile is not renewed, whatever the lease says.
    fn renewed(&mut self, id: PlaceId, request_id: Option<&RequestId>, key: &str, sent: Instant) {
        let stage = self.places.get_mut(&id).map(|place| &mut place.stage);
        let Some(Stage::Held { token, renewed_at, .. }) = stage else { return self.fail(request_id, key, NOT_HELD) };
        *renewed_at = sent.max(*renewed_at);
        let (token, renewed_at) = (*token, *renewed_at);
        self.expect_warning(id, renewed_at);
        self.count(Done::Renewed);
        self.vouch(id, request_id, key, token);
        self.end_renewal(id);
    }

    fn end_renewal(&mut self, id: PlaceId) {
        let Some(place) = self.places.get_mut(&id) else { return };
        if let Stage::Held { is_renewing, .. } = &mut place.stage {
            *is_renewing = false;
            self.settle(id);
        }
    }

    fn unlocked(
        &mut self,
        request_id: Option<&RequestId>,
        key: &str,
        token: Revision,
        result: Result<Answered, Failure>,
    ) {
        let error = match result {
            Ok(Answered::Reply(Reply::Unlocked { released: true })) => {
                self.count(Done::Unlocked);
                return self.confirm_release(request_id, key, token);
            }
            Ok(_) | Err(Failure::Refused(Refusal::NotTheHolder)) => NOT_HELD.to_owned(),
            Err(Failure::Refused(Refusal::SessionResumed)) => RESUMED.to_owned(),
            Err(failure) => in_words(&failure),
        };
        self.count(Done::UnlockRefused);
        if request_id.is_some() {
            self.fail(request_id, key, &error);
        }
    }

    pub(super) fn lose(&mut self, id: PlaceId, cause: &'static str) {
        match self.places.get(&id).map(|place| place.stage) {
            Some(Stage::Held { .. }) => {
                self.tell_event(id, Told { event: Some("lost"), error: Some(cause), ..Told::default() });
                self.forget(id);
            }
            // It was never told that it had it.
            _ => self.end(id, &format!("lost: {cause}")),
        }
    }

    pub(super) fn warn(&mut self, id: PlaceId, renewed_at: Instant) {
        let Some(place) = self.places.get(&id) else { return };
        let ends = renewed_at + Duration::from_millis(place.ttl_ms);
        let remaining_ms = ends.saturating_duration_since(Instant::now()).as_millis() as u64;
        let remaining_ms = Some(remaining_ms);
        self.tell_event(id, Told { event: Some("warning"), remaining_ms, ..Told::default() });
    }

    fn expect_warning(&mut self, id: PlaceId, renewed_at: Instant) {
        let Some(place) = self.places.get(&id).filter(|place| place.request_id.is_some()) else { return };
        let due = renewed_at + Duration::from_millis(place.ttl_ms) - place.third();
        self.set_due(id, due);
    }
}

/// A lease lasts as long as it was granted for: a client that counts on more would be deceived.
pub(super) fn too_long(asked_ms: Option<u64>, granted_ms: u64) -> Option<String> {
    let asked_ms = asked_ms.filter(|asked_ms| *asked_ms > granted_ms)?;
    Some(format!("ttl {asked_ms} is longer than the {granted_ms} ms of its acquire: release it and acquire it again"))
}

/// What is said to a client that gives back or renews what it does not hold.
fn not_held(busy: &BusyReply) -> String {
    match &busy.holder {
        Some(holder) => format!("{NOT_HELD} by this client: {} holds it", name_of_holder(holder)),
        None => NOT_HELD.to_owned(),
    }
}

fn name_of_holder(holder: &LockEntry) -> String {
    match holder.holder.is_empty() {
        true => "another client".to_owned(),
        false => format!("{:?}", String::from_utf8_lossy(&holder.holder)),
    }
}

fn in_words(failure: &Failure) -> String {
    match failure {
        Failure::EntryEnded(cause) => format!("the place in the queue is gone: {}", end_in_words(*cause)),
        Failure::TimedOut | Failure::OutcomeUnknown => format!("{failure}: whether it was done is not known"),
        failure => failure.to_string(),
    }
}
