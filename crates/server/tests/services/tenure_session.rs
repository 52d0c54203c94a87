//! One stream for all lock traffic of a client.

use std::collections::VecDeque;

use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::session_request::Request as Asked;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{
    ForceReleaseRequest, LeaderRequest, LeaseRevokeRequest, ListSessionsRequest, Mode, SessionCancel, SessionClose,
    SessionLock, SessionOpen, SessionOpened, SessionRenew, SessionRequest, SessionResponse, SessionUnlock, WatchCancel,
    WatchCreate, WatchRequest,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::harness::*;
use crate::tenure_lock::{client, describe, signing_server};

struct Session {
    requests: mpsc::Sender<SessionRequest>,
    responses: Streaming<SessionResponse>,
    number: u64,
    opened: SessionOpened,
    /// What came while something else was waited for.
    kept: VecDeque<SessionResponse>,
}

async fn start(server: &Server, first: Asked) -> Result<Session, Status> {
    let (requests, receiver) = mpsc::channel(100);
    requests.send(SessionRequest { number: 1, request: Some(first) }).await.unwrap();
    let mut responses = client(server).session(ReceiverStream::new(receiver)).await?.into_inner();
    let response = timeout(PATIENCE, responses.message()).await.expect("in time")?.expect("an answer");
    let Some(Told::Opened(opened)) = response.response else { panic!("{response:?}") };
    Ok(Session { requests, responses, number: 1, opened: *opened, kept: VecDeque::new() })
}

async fn open(server: &Server, client_id: &str) -> Session {
    let asked = SessionOpen { session_id: 0, ttl_ms: 60_000, client_id: client_id.to_owned() };
    start(server, Asked::Open(asked)).await.unwrap()
}

async fn resume(server: &Server, session_id: i64) -> Result<Session, Status> {
    start(server, Asked::Open(SessionOpen { session_id, ..SessionOpen::default() })).await
}

fn lock(name: &str) -> Asked {
    Asked::Lock(SessionLock { name: name.to_owned(), ..SessionLock::default() })
}

fn unlock(name: &str, fencing_token: i64) -> Asked {
    Asked::Unlock(SessionUnlock { name: name.to_owned(), more_names: Vec::new(), fencing_token })
}

impl Session {
    async fn ask(&mut self, request: Asked) -> u64 {
        self.number += 1;
        self.requests.send(SessionRequest { number: self.number, request: Some(request) }).await.unwrap();
        self.number
    }

    async fn next(&mut self) -> Result<Option<SessionResponse>, Status> {
        timeout(PATIENCE, self.responses.message()).await.expect("in time")
    }

    /// The next thing that is said about this request (0: about none).
    async fn hear(&mut self, number: u64) -> Told {
        if let Some(position) = self.kept.iter().position(|response| response.number == number) {
            return self.kept.remove(position).unwrap().response.unwrap();
        }
        loop {
            let response = self.next().await.unwrap().expect("the stream goes on");
            if response.number == number {
                return response.response.unwrap();
            }
            self.kept.push_back(response);
        }
    }

    /// It may have waited before.
    async fn granted(&mut self, number: u64) -> i64 {
        loop {
            match self.hear(number).await {
                Told::Queued(_) => {}
                Told::Granted(granted) => return granted.fencing_token,
                other => panic!("{other:?}"),
            }
        }
    }

    /// It may have waited before.
    async fn refused(&mut self, number: u64) -> (i32, String) {
        loop {
            match self.hear(number).await {
                Told::Queued(_) => {}
                Told::Refused(refused) => return (refused.code, refused.message),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn requests_are_answered_by_number_as_they_are_ready() {
    let server = Server::start().await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let first = ada.ask(lock("jobs")).await;
    let token = ada.granted(first).await;
    let waiting = bob.ask(lock("jobs")).await;
    let Told::Queued(queued) = bob.hear(waiting).await else { panic!("it has to wait") };
    assert_eq!(queued.ahead, 1);
    // What comes later need not wait for it.
    let other = bob.ask(lock("other")).await;
    bob.granted(other).await;
    let released = ada.ask(unlock("jobs", token)).await;
    assert_eq!(ada.hear(released).await, Told::Unlocked(tenure_api::tenure::v1::SessionUnlocked { released: true }));
    assert!(bob.granted(waiting).await > token);
    let again = ada.ask(unlock("jobs", token)).await;
    assert_eq!(ada.refused(again).await, (Code::FailedPrecondition.into(), "not the holder".to_owned()));
    let renewal = ada.ask(Asked::Renew(SessionRenew {})).await;
    let Told::Renewed(renewed) = ada.hear(renewal).await else { panic!("not renewed") };
    assert_eq!(renewed.ttl_ms, 60_000);
}

#[tokio::test]
async fn many_in_flight() {
    let server = Server::start().await;
    let mut session = open(&server, "busy").await;
    let mut numbers = Vec::new();
    for index in 0..50 {
        numbers.push((index, session.ask(lock(&format!("lock/{index}"))).await));
    }
    for (index, number) in numbers {
        let token = session.granted(number).await;
        session.ask(unlock(&format!("lock/{index}"), token)).await;
    }
}

#[tokio::test]
async fn a_renewal_needs_no_number() {
    let server = Server::start().await;
    let mut session = open(&server, "ada").await;
    let first = session.ask(lock("jobs")).await;
    session.granted(first).await;
    for _ in 0..2 {
        let request = Some(Asked::Renew(SessionRenew {}));
        session.requests.send(SessionRequest { number: 0, request }).await.unwrap();
        assert!(matches!(session.hear(0).await, Told::Renewed(_)));
    }
    // The numbers of other requests still count from the last one that had a number.
    let next = session.ask(lock("other")).await;
    session.granted(next).await;
    session.requests.send(SessionRequest { number: 0, request: Some(lock("third")) }).await.unwrap();
    let status = session.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn a_session_signs_what_its_entry_records_for_as_long_as_its_lease_lasts() {
    let (server, keyring, _directory) = signing_server().await;
    let asked = SessionOpen { session_id: 0, ttl_ms: 5000, client_id: "ada".to_owned() };
    let mut session = start(&server, Asked::Open(asked)).await.unwrap();
    let book =
        |mode: Mode| Asked::Lock(SessionLock { name: "book".to_owned(), mode: mode.into(), ..SessionLock::default() });
    let shared = session.ask(book(Mode::Shared)).await;
    let Told::Granted(_) = session.hear(shared).await else { panic!("not granted") };
    let alone = session.ask(book(Mode::Exclusive)).await;
    match session.hear(alone).await {
        Told::Granted(granted) => assert_eq!(granted.signature, "", "a shared lock fences no writes"),
        Told::Refused(refused) => assert_eq!(refused.code, i32::from(Code::FailedPrecondition)),
        other => panic!("{other:?}"),
    }
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    for is_renewed in [false, true] {
        let number = session.ask(lock("jobs")).await;
        let Told::Granted(granted) = session.hear(number).await else { panic!("not granted") };
        assert_eq!(granted.renewed, is_renewed);
        let described = describe(&mut client(&server), "jobs").await;
        let ends = described.holders[0].lease.as_ref().unwrap().expiry_unix_ms as u64;
        let claim = keyring.open(&granted.signature).unwrap();
        assert_eq!(claim.holder(), "ada");
        assert!(claim.expires_at_ms() <= ends, "{} after {ends}", claim.expires_at_ms());
    }
}

#[tokio::test]
async fn losses_are_told_without_being_asked_for() {
    let server = Server::start().await;
    let mut session = open(&server, "ada").await;
    let number = session.ask(lock("jobs")).await;
    let token = session.granted(number).await;
    let force = ForceReleaseRequest { name: "jobs".to_owned(), fencing_token: token };
    client(&server).force_release(force).await.unwrap();
    let Told::Lost(lost) = session.hear(0).await else { panic!("not told") };
    assert_eq!((lost.name.as_str(), lost.fencing_token, lost.cause()), ("jobs", token, End::Forced));

    let number = session.ask(lock("jobs")).await;
    let token = session.granted(number).await;
    client(&server).lease_revoke(LeaseRevokeRequest { id: session.opened.session_id }).await.unwrap();
    let Told::Lost(lost) = session.hear(0).await else { panic!("not told") };
    assert_eq!((lost.fencing_token, lost.cause()), (token, End::Revoked));
    session.ask(Asked::Renew(SessionRenew {})).await;
    assert_eq!(session.next().await.unwrap_err().code(), Code::NotFound, "the session is over");
}

#[tokio::test]
async fn a_wait_ends_in_time_or_when_nobody_wants_it_any_more() {
    let server = Server::start().await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let held = ada.ask(lock("jobs")).await;
    let token = ada.granted(held).await;
    let at_once = SessionLock { name: "jobs".to_owned(), timeout_ms: Some(0), ..SessionLock::default() };
    let busy = bob.ask(Asked::Lock(at_once.clone())).await;
    let Told::Refused(refused) = bob.hear(busy).await else { panic!("it is busy") };
    assert_eq!((refused.code, refused.message.as_str()), (Code::Aborted.into(), "busy"));
    assert_eq!(refused.holder.unwrap().fencing_token, token);
    let soon = bob.ask(Asked::Lock(SessionLock { timeout_ms: Some(20), ..at_once })).await;
    assert_eq!(bob.refused(soon).await.0, i32::from(Code::DeadlineExceeded));
    let given_up = bob.ask(lock("jobs")).await;
    let Told::Queued(_) = bob.hear(given_up).await else { panic!("it waits") };
    bob.ask(Asked::Cancel(SessionCancel { number: given_up })).await;
    assert_eq!(bob.refused(given_up).await.0, i32::from(Code::Cancelled));
    // Its places are gone: the next one to ask is the next one to get it.
    let last = bob.ask(lock("jobs")).await;
    ada.ask(unlock("jobs", token)).await;
    bob.granted(last).await;
}

#[tokio::test]
async fn a_candidate_stands_on_a_session_and_keeps_its_place_when_its_stream_breaks() {
    let server = Server::start().await;
    let stand = |value: &'static str| {
        Asked::Lock(SessionLock { name: "boss".to_owned(), value: Some(value.into()), ..SessionLock::default() })
    };
    let leader = async || {
        let request = LeaderRequest { name: "boss".to_owned() };
        let found = client(&server).leader(request).await.unwrap().into_inner();
        (found.leader.unwrap().fencing_token, text(&found.value).to_owned())
    };
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let won = ada.ask(stand("one")).await;
    let token = ada.granted(won).await;
    assert_eq!(leader().await, (token, "one".to_owned()));
    let waiting = bob.ask(stand("two")).await;
    assert!(matches!(bob.hear(waiting).await, Told::Queued(_)));
    let mut cleo = open(&server, "cleo").await;
    let behind = cleo.ask(lock("boss")).await;
    assert!(matches!(cleo.hear(behind).await, Told::Queued(_)));
    let lease = bob.opened.session_id;
    drop(bob);
    let mut bob = resume(&server, lease).await.unwrap();
    let released = ada.ask(unlock("boss", token)).await;
    ada.hear(released).await;
    let again = bob.ask(stand("zwei")).await;
    let token = bob.granted(again).await;
    assert_eq!(leader().await, (token, "zwei".to_owned()), "asked again: the same place, the new value");
    for wrong in [
        SessionLock { mode: Mode::Shared.into(), ..SessionLock::default() },
        SessionLock { more_names: vec!["more".to_owned()], ..SessionLock::default() },
    ] {
        let wrong = SessionLock { name: "other".to_owned(), value: Some("x".into()), ..wrong };
        let number = bob.ask(Asked::Lock(wrong)).await;
        let (code, text) = bob.refused(number).await;
        assert_eq!(code, i32::from(Code::InvalidArgument));
        assert!(text.contains("only an exclusive lock of one name has a value"), "{text}");
    }
}

#[tokio::test]
async fn a_session_goes_on_elsewhere_and_its_older_stream_can_do_nothing() {
    let server = Server::start().await;
    let mut old = open(&server, "ada").await;
    let number = old.ask(lock("jobs")).await;
    let token = old.granted(number).await;
    let mut new = resume(&server, old.opened.session_id).await.unwrap();
    assert!(new.opened.epoch > old.opened.epoch);
    let [held] = &new.opened.held[..] else { panic!("{:?}", new.opened) };
    assert_eq!((held.name.as_str(), held.fencing_token), ("jobs", token));

    let stale = old.ask(unlock("jobs", token)).await;
    assert_eq!(old.refused(stale).await, (Code::Aborted.into(), "session was resumed elsewhere".to_owned()));
    let stale = old.ask(lock("other")).await;
    assert_eq!(old.refused(stale).await.0, i32::from(Code::Aborted));
    old.ask(Asked::Renew(SessionRenew {})).await;
    assert_eq!(old.next().await.unwrap_err().code(), Code::Aborted);

    // To ask again for what one has is to learn its token.
    let again = new.ask(lock("jobs")).await;
    assert_eq!(new.granted(again).await, token);
    let released = new.ask(unlock("jobs", token)).await;
    assert!(matches!(new.hear(released).await, Told::Unlocked(unlocked) if unlocked.released));
    assert_eq!(resume(&server, 4711).await.err().unwrap().code(), Code::NotFound);
}

/// Another client's put takes the lease off the key of a place. The place stays.
#[tokio::test]
async fn a_session_that_comes_back_holds_what_others_have_overwritten() {
    use tenure_api::etcdserverpb::PutRequest;
    let server = Server::start().await;
    let (mut ada, bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let (lease, other) = (ada.opened.session_id, bob.opened.session_id);
    let mut expected = Vec::new();
    for (name, put) in [("kept", None), ("none", Some(0)), ("other", Some(other))] {
        let number = ada.ask(lock(name)).await;
        expected.push((name.to_owned(), ada.granted(number).await));
        if let Some(lease_now) = put {
            let key = format!("{name}/{lease:x}");
            let put = PutRequest { key: key.into(), value: "mine".into(), lease: lease_now, ..PutRequest::default() };
            server.kv().put(put).await.unwrap();
        }
    }
    let listed = async || {
        let sessions =
            client(&server).list_sessions(ListSessionsRequest::default()).await.unwrap().into_inner().sessions;
        let held = |id| sessions.iter().find(|of| of.lease.as_ref().unwrap().id == id).map(|of| of.locks_held);
        (held(lease), held(other))
    };
    assert_eq!(listed().await, (Some(3), Some(0)));
    let held = async |session_id| {
        let session = resume(&server, session_id).await.unwrap();
        let mut held: Vec<_> = session.opened.held.iter().map(|held| (held.name.clone(), held.fencing_token)).collect();
        held.sort();
        held
    };
    assert_eq!(held(lease).await, expected);
    assert_eq!(held(other).await, [], "its lease on the key makes it no holder");
}

#[tokio::test]
async fn a_request_for_several_locks_leaves_all_of_them() {
    let server = Server::start().await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let held = ada.ask(lock("c")).await;
    ada.granted(held).await;
    let more_names = vec!["b".to_owned(), "c".to_owned()];
    let all = bob.ask(Asked::Lock(SessionLock { name: "a".to_owned(), more_names, ..SessionLock::default() })).await;
    let Told::Queued(_) = bob.hear(all).await else { panic!("ada holds c") };
    // A later request has the first of them.
    let first = bob.ask(lock("a")).await;
    bob.granted(first).await;
    bob.ask(Asked::Cancel(SessionCancel { number: all })).await;
    assert_eq!(bob.refused(all).await.0, i32::from(Code::Cancelled));
    let mut client = client(&server);
    let queue = async |client: &mut _, name| {
        let described = describe(client, name).await;
        (described.holders.len(), described.waiters.len())
    };
    assert_eq!(queue(&mut client, "a").await, (1, 0));
    assert_eq!(queue(&mut client, "b").await, (0, 0));
    assert_eq!(queue(&mut client, "c").await, (1, 0));
    let renewal = bob.ask(Asked::Renew(SessionRenew {})).await;
    assert!(matches!(bob.hear(renewal).await, Told::Renewed(_)), "the stream goes on");
}

#[tokio::test]
async fn a_broken_stream_gives_nothing_up_and_a_closed_one_everything() {
    let server = Server::start().await;
    let mut ada = open(&server, "ada").await;
    let number = ada.ask(lock("jobs")).await;
    let token = ada.granted(number).await;
    let session_id = ada.opened.session_id;
    drop(ada);
    let mut bob = open(&server, "bob").await;
    let waiting = bob.ask(lock("jobs")).await;
    let Told::Queued(_) = bob.hear(waiting).await else { panic!("ada holds it still") };
    let mut ada = resume(&server, session_id).await.unwrap();
    assert_eq!(ada.opened.held[0].fencing_token, token);
    let closing = ada.ask(Asked::Close(SessionClose {})).await;
    assert!(matches!(ada.hear(closing).await, Told::Lost(_) | Told::Closed(_)));
    assert!(bob.granted(waiting).await > token);
}

#[tokio::test]
async fn connected_sessions_are_listed_with_their_address() {
    let server = Server::start().await;
    let session = open(&server, "ada").await;
    let listed = client(&server).list_sessions(ListSessionsRequest::default()).await.unwrap().into_inner().sessions;
    let [found] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((found.client_id.as_str(), found.lease.as_ref().unwrap().id), ("ada", session.opened.session_id));
    assert!(found.address.starts_with("127.0.0.1:"), "{found:?}");
    assert!(found.connected_since_unix_ms > 0);
}

#[tokio::test]
async fn the_watches_of_a_session_s_connection_are_counted() {
    use tenure_api::etcdserverpb as etcd;
    use tenure_api::tenure::v1::watch_request::Request as WatchAsked;
    let server = Server::start().await;
    let _session = open(&server, "ada").await;
    let watches = async || {
        let listed = client(&server).list_sessions(ListSessionsRequest::default()).await.unwrap();
        listed.into_inner().sessions[0].watches
    };
    let until = async |count: u64| {
        let looking = async {
            while watches().await != count {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, looking).await.expect("in time");
    };
    assert_eq!(watches().await, 0);
    let (requests, receiver) = mpsc::channel(4);
    let ask = |request| requests.send(WatchRequest { request: Some(request) });
    for watch_id in [1, 2] {
        ask(WatchAsked::Create(WatchCreate { key: "a".to_owned(), watch_id, ..WatchCreate::default() })).await.unwrap();
    }
    let stream = client(&server).watch(ReceiverStream::new(receiver)).await.unwrap();
    until(2).await;
    let create = etcd::WatchCreateRequest { key: "k".into(), ..Default::default() };
    let create = etcd::watch_request::RequestUnion::CreateRequest(create);
    let create = etcd::WatchRequest { request_union: Some(create) };
    let (of_etcd, receiver) = mpsc::channel(1);
    of_etcd.send(create).await.unwrap();
    let etcds = server.watch().watch(ReceiverStream::new(receiver)).await.unwrap();
    until(3).await;
    ask(WatchAsked::Cancel(WatchCancel { watch_id: 1 })).await.unwrap();
    until(2).await;
    drop((stream, etcds, requests, of_etcd));
    until(0).await;
}

#[tokio::test]
async fn what_is_no_session_is_refused() {
    let server = Server::start().await;
    let status = start(&server, lock("jobs")).await.err().unwrap();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "a session begins with open"));
    let short = SessionOpen { session_id: 0, ttl_ms: 10, client_id: String::new() };
    assert_eq!(start(&server, Asked::Open(short)).await.err().unwrap().code(), Code::OutOfRange);
    let mut session = open(&server, "ada").await;
    let bad = session.ask(lock("")).await;
    assert_eq!(session.refused(bad).await, (Code::InvalidArgument.into(), "name is missing".to_owned()));
    session.requests.send(SessionRequest { number: 1, request: Some(lock("jobs")) }).await.unwrap();
    let status = session.next().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "request 1 comes after 2: numbers must grow")
    );
}

#[tokio::test]
async fn however_many_locks_are_waited_for_renewals_are_heard() {
    let server = Server::start().await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    // More than the requests that may be under way at once.
    for number in 0..4_200 {
        ada.ask(lock(&format!("jobs/{number}"))).await;
        bob.ask(lock(&format!("jobs/{number}"))).await;
    }
    let (ada_renews, bob_renews) =
        (ada.ask(Asked::Renew(SessionRenew {})).await, bob.ask(Asked::Renew(SessionRenew {})).await);
    for (session, renewal) in [(&mut ada, ada_renews), (&mut bob, bob_renews)] {
        assert!(matches!(session.hear(renewal).await, Told::Renewed(_)));
    }
}

#[tokio::test]
async fn a_session_cannot_wait_for_more_locks_than_are_allowed() {
    let server = Server::start_with(|config| config.limits.leases_per_client = 2).await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    for name in ["a", "b"] {
        let number = ada.ask(lock(name)).await;
        ada.granted(number).await;
        let number = bob.ask(lock(name)).await;
        assert!(matches!(bob.hear(number).await, Told::Queued(_)));
    }
    let third = bob.ask(lock("c")).await;
    let (code, text) = bob.refused(third).await;
    assert_eq!(code, i32::from(Code::ResourceExhausted), "{text}");
    let free = ada.ask(lock("c")).await;
    assert!(ada.granted(free).await > 0, "what it holds does not count");
}

#[tokio::test]
async fn sessions_meet_at_a_barrier() {
    let server = Server::start().await;
    let (mut ada, mut bob) = (open(&server, "ada").await, open(&server, "bob").await);
    let arrive = |slots| {
        let mode = Mode::Barrier.into();
        Asked::Lock(SessionLock { name: "gate".to_owned(), mode, slots, ..SessionLock::default() })
    };
    let impossible = ada.ask(arrive(0)).await;
    assert_eq!(ada.refused(impossible).await.0, i32::from(Code::InvalidArgument));
    let early = ada.ask(arrive(2)).await;
    let Told::Queued(queued) = ada.hear(early).await else { panic!("it has to wait") };
    assert_eq!(queued.ahead, 0, "for nobody who is there");
    let late = bob.ask(arrive(2)).await;
    let (first, second) = (ada.granted(early).await, bob.granted(late).await);
    assert!(first < second);
}
