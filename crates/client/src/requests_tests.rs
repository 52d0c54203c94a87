//! Every interleaving of orders, answers, lost streams and overload, for one lock and two callers in a row.
//!
//! A model of the server answers the requests. The search visits every state that can be reached, and checks in each
//! that what the requests say of themselves is true of the server.

use std::collections::VecDeque;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    /// Has not asked yet.
    Absent,
    Waits,
    /// Was told of this grant. Whether it has read it is its own business: it may still abandon its ticket.
    Granted(Token),
    Releases,
    /// Is gone, and something is owed for it.
    Gone,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Granted { number: Number, token: Token },
    Refused { number: Number, refusal: Refusal },
    Unlocked { number: Number, released: bool },
    Lost { token: Token },
}

/// The place of the session in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    token: Token,
    is_granted: bool,
    last_joiner: Number,
    ticket: Ticket,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Server {
    last_token: Token,
    rival_holds: bool,
    place: Option<Place>,
    /// Lock requests of the present stream that wait, and whether they wait only to leave.
    waiting: BTreeMap<Number, bool>,
}

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Budget {
    breaks: u32,
    overloads: u32,
    /// How often an operator takes the lock away.
    forces: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stream {
    Closed,
    Opening,
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    requests: Requests,
    callers: [Caller; 2],
    patience: Patience,
    server: Server,
    stream: Stream,
    to_server: VecDeque<Message>,
    to_client: VecDeque<Answer>,
    /// The last number that was sent over this stream.
    last_sent: Number,
    /// What each number stands for.
    meanings: BTreeMap<Number, Request>,
    budget: Budget,
}

/// How long callers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Patience {
    Unlimited,
    Limited,
    /// The time of a limited wait is up, or there was none.
    None,
}

/// A request on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    number: Number,
    request: Request,
    /// How long the caller would wait when this was sent.
    patience: Patience,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Ask(Ticket),
    Abandon(Ticket),
    Unlock(Ticket),
    Open,
    Opened,
    Break,
    Serve,
    Overload,
    Deliver,
    RivalReleases,
    TimeIsUp,
    WaitEnds(Number),
    Force,
}

fn names() -> Names {
    ["a".to_owned()].into()
}

impl World {
    fn new(patience: Patience, rival_holds: bool, budget: Budget) -> World {
        World {
            requests: Requests::default(),
            callers: [Caller::Absent; 2],
            patience,
            server: Server { rival_holds, ..Server::default() },
            stream: Stream::Closed,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            last_sent: OPEN,
            meanings: BTreeMap::new(),
            budget,
        }
    }

    fn caller(&mut self, ticket: Ticket) -> &mut Caller {
        &mut self.callers[ticket as usize - 1]
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (ticket, caller) in (1..).zip(self.callers) {
            match caller {
                // Callers of one session take turns at a name.
                Caller::Absent if ticket == 1 || self.callers[0] == Caller::Done => actions.push(Action::Ask(ticket)),
                Caller::Waits => actions.push(Action::Abandon(ticket)),
                Caller::Granted(_) => actions.extend([Action::Abandon(ticket), Action::Unlock(ticket)]),
                Caller::Absent | Caller::Releases | Caller::Gone | Caller::Done => {}
            }
        }
        match self.stream {
            Stream::Closed => actions.push(Action::Open),
            Stream::Opening => actions.push(Action::Opened),
            Stream::Open => {
                let is_lock_or_unlock =
                    |message: &Message| matches!(message.request, Request::Lock { .. } | Request::Unlock { .. });
                if !self.to_server.is_empty() {
                    actions.push(Action::Serve);
                }
                if self.budget.overloads > 0 && self.to_server.front().is_some_and(is_lock_or_unlock) {
                    actions.push(Action::Overload);
                }
                if !self.to_client.is_empty() {
                    actions.push(Action::Deliver);
                }
                let is_over = |is_brief: bool| is_brief || self.patience == Patience::None;
                let waits = self.server.waiting.iter().filter(|(_, is_brief)| is_over(**is_brief));
                actions.extend(waits.map(|(number, _)| Action::WaitEnds(*number)));
            }
        }
        if self.stream != Stream::Closed && self.budget.breaks > 0 {
            actions.push(Action::Break);
        }
        if self.patience == Patience::Limited {
            actions.push(Action::TimeIsUp);
        }
        if self.server.rival_holds {
            actions.push(Action::RivalReleases);
        }
        if self.budget.forces > 0 && self.server.place.is_some_and(|place| place.is_granted) {
            actions.push(Action::Force);
        }
        actions
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ask(ticket) => {
                *self.caller(ticket) = Caller::Waits;
                self.step(Input::Lock { ticket, names: names() });
            }
            Action::Abandon(ticket) => {
                *self.caller(ticket) = Caller::Gone;
                self.step(Input::Abandon { ticket });
            }
            Action::Unlock(ticket) => {
                let Caller::Granted(token) = std::mem::replace(self.caller(ticket), Caller::Releases) else {
                    panic!("only what is held is unlocked");
                };
                self.step(Input::Unlock { ticket, names: names(), token });
            }
            Action::Open => {
                self.stream = Stream::Opening;
                self.step(Input::Opening);
            }
            Action::Opened => {
                (self.stream, self.last_sent) = (Stream::Open, OPEN);
                let held: Vec<_> =
                    self.server.place.filter(|place| place.is_granted).map(|place| place.token).into_iter().collect();
                self.step(Input::Opened { ttl_ms: 10_000, held: tokens(&held) });
            }
            Action::Break => {
                self.budget.breaks -= 1;
                self.close();
                self.step(Input::Broken);
            }
            Action::Serve => {
                let message = self.to_server.pop_front().expect("it was there");
                self.serve(message);
            }
            Action::Overload => {
                self.budget.overloads -= 1;
                let Message { number, .. } = self.to_server.pop_front().expect("it was there");
                self.to_client.push_back(Answer::Refused { number, refusal: Refusal::Overloaded });
            }
            Action::Deliver => {
                let input = match self.to_client.pop_front().expect("it was there") {
                    Answer::Granted { number, token } => Input::Granted { number, token },
                    Answer::Refused { number, refusal } => Input::Refused { number, refusal },
                    Answer::Unlocked { number, released } => Input::Unlocked { number, released },
                    Answer::Lost { token } => Input::Lost { token, cause: Cause::Taken },
                };
                self.step(input);
            }
            Action::RivalReleases => {
                self.server.rival_holds = false;
                if let Some(place) = &mut self.server.place {
                    place.is_granted = true;
                    let token = place.token;
                    let waiting = std::mem::take(&mut self.server.waiting);
                    self.to_client.extend(waiting.into_keys().map(|number| Answer::Granted { number, token }));
                }
            }
            Action::TimeIsUp => self.patience = Patience::None,
            Action::WaitEnds(number) => self.leave(number),
            Action::Force => {
                self.budget.forces -= 1;
                let place = self.server.place.take().expect("it was held");
                if self.stream == Stream::Open {
                    self.to_client.push_back(Answer::Lost { token: place.token });
                }
            }
        }
    }

    fn close(&mut self) {
        self.stream = Stream::Closed;
        self.to_server.clear();
        self.to_client.clear();
        self.server.waiting.clear();
    }

    fn serve(&mut self, message: Message) {
        let Message { number, request, patience } = message;
        match request {
            Request::Lock { ticket, wait } => {
                let waits = wait != Wait::AsAsked || patience != Patience::None;
                let is_busy = self.server.place.map_or(self.server.rival_holds, |place| !place.is_granted);
                if is_busy && !waits {
                    // The place that an earlier request has taken stays, as at the real server.
                    return self.to_client.push_back(Answer::Refused { number, refusal: Refusal::Final });
                }
                let Server { last_token, rival_holds, place, .. } = &mut self.server;
                let place = place.get_or_insert_with(|| {
                    *last_token += 1;
                    Place { token: *last_token, is_granted: !*rival_holds, last_joiner: number, ticket }
                });
                (place.last_joiner, place.ticket) = (number, ticket);
                match place.is_granted {
                    true => self.to_client.push_back(Answer::Granted { number, token: place.token }),
                    false => drop(self.server.waiting.insert(number, wait == Wait::ToLeave)),
                }
            }
            Request::Cancel { number } => self.leave(number),
            Request::Unlock { token, .. } => {
                let released = self.server.place.is_some_and(|place| place.is_granted && place.token == token);
                if released {
                    self.server.place = None;
                }
                self.to_client.push_back(Answer::Unlocked { number, released });
            }
            Request::Renew => panic!("nothing renews here"),
        }
    }

    /// Ends a request that waits, and leaves its place unless a later request has taken it over.
    fn leave(&mut self, number: Number) {
        if self.server.waiting.remove(&number).is_some() {
            self.server.place = self.server.place.filter(|place| place.last_joiner != number);
            self.to_client.push_back(Answer::Refused { number, refusal: Refusal::Final });
        }
    }

    fn step(&mut self, input: Input) {
        for effect in self.requests.step(input) {
            match effect {
                Effect::Send { number, request } => self.send(number, request),
                Effect::Grant { ticket, token } => {
                    assert_eq!(*self.caller(ticket), Caller::Waits, "who is told has asked and is there");
                    *self.caller(ticket) = Caller::Granted(token);
                }
                Effect::Refuse { ticket } | Effect::Released { ticket, .. } => {
                    assert_ne!(*self.caller(ticket), Caller::Gone);
                    *self.caller(ticket) = Caller::Done;
                    self.assert_nothing_is_left(ticket);
                }
                Effect::Settled { ticket } => {
                    assert_eq!(*self.caller(ticket), Caller::Gone);
                    *self.caller(ticket) = Caller::Done;
                    self.assert_nothing_is_left(ticket);
                }
                Effect::Reopen => self.close(),
                Effect::TenureEnded { .. } => {}
                Effect::Confirmed { .. } | Effect::Over => panic!("{effect:?}"),
            }
        }
        let is_prompt = |asked: &Asked| !matches!(asked, Asked::Lock { .. });
        assert_eq!(self.requests.expects_an_answer(), self.requests.unanswered.values().any(is_prompt));
        let is_owed = self.callers.contains(&Caller::Gone);
        assert_eq!(self.requests.is_settled(), !is_owed, "settled means that nothing is owed");
    }

    fn send(&mut self, number: Number, request: Request) {
        assert_eq!(self.stream, Stream::Open, "nothing is sent without a stream");
        assert!(number > self.last_sent, "numbers grow");
        self.last_sent = number;
        // How long a lock waits changes with its caller.
        let meaning = match &request {
            Request::Lock { ticket, .. } => Request::Lock { ticket: *ticket, wait: Wait::AsAsked },
            request => request.clone(),
        };
        let before = self.meanings.insert(number, meaning.clone());
        assert!(before.is_none_or(|before| before == meaning), "a number stands for one request");
        if let Request::Unlock { token, .. } = &request {
            assert!(!self.callers.contains(&Caller::Granted(*token)), "what a caller holds is not unlocked for it");
        }
        self.to_server.push_back(Message { number, request, patience: self.patience });
    }

    /// Neither the server nor a message on its way knows anything of this ticket.
    fn assert_nothing_is_left(&self, ticket: Ticket) {
        assert!(self.server.place.is_none_or(|place| place.ticket != ticket), "a place is left: {self:?}");
        let is_for = |message: &Message| matches!(message.request, Request::Lock { ticket: of, .. } if of == ticket);
        assert!(!self.to_server.iter().any(is_for), "a request is on its way: {self:?}");
    }

    /// Where nothing can happen any more, everything has been given back.
    fn assert_is_over(&self) {
        assert_eq!(self.callers, [Caller::Done; 2]);
        assert!(self.requests.is_settled() && self.server.place.is_none(), "{self:?}");
        let Requests { unanswered, tenures, tickets, .. } = &self.requests;
        assert!(unanswered.is_empty() && tenures.is_empty() && tickets.is_empty(), "{self:?}");
    }
}

/// Visits every state, and gives how many there are.
fn explore(first: World) -> usize {
    let mut seen = BTreeSet::from([first.clone()]);
    let mut open = vec![first];
    let mut ends = 0;
    while let Some(world) = open.pop() {
        let actions = world.actions();
        // A break that may still come is not needed to come to an end.
        if actions.iter().all(|action| matches!(action, Action::Break)) {
            world.assert_is_over();
            ends += 1;
        }
        for action in actions {
            let mut next = world.clone();
            next.act(action);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(ends > 0, "it comes to an end");
    seen.len()
}

#[test]
fn whatever_happens_nothing_is_left_behind() {
    let mut states = 0;
    for patience in [Patience::Unlimited, Patience::Limited, Patience::None] {
        for rival_holds in [true, false] {
            for (overloads, forces) in [(0, 0), (1, 0), (0, 1)] {
                states += explore(World::new(patience, rival_holds, Budget { breaks: 2, overloads, forces }));
            }
        }
    }
    assert!(states > 10_000, "only {states} states were visited");
}

/// All names are held under each of these.
fn tokens(tokens: &[Token]) -> Held {
    tokens.iter().map(|token| (*token, names().iter().cloned().collect())).collect()
}

fn opened(requests: &mut Requests, held: &[Token]) -> Vec<Effect> {
    assert_eq!(requests.step(Input::Opening), []);
    requests.step(Input::Opened { ttl_ms: 9_000, held: tokens(held) })
}

#[test]
fn a_grant_that_is_not_read_is_unlocked() {
    let mut requests = Requests::default();
    requests.step(Input::Lock { ticket: 1, names: names() });
    opened(&mut requests, &[]);
    assert_eq!(requests.step(Input::Granted { number: 2, token: 7 }), [Effect::Grant { ticket: 1, token: 7 }]);
    let unlock = Request::Unlock { names: names(), token: 7 };
    assert_eq!(requests.step(Input::Abandon { ticket: 1 }), [Effect::Send { number: 3, request: unlock }]);
    assert!(!requests.is_settled());
    let ended = Effect::TenureEnded { token: 7, cause: Cause::Released };
    let unlocked = requests.step(Input::Unlocked { number: 3, released: true });
    assert_eq!(unlocked, [ended, Effect::Settled { ticket: 1 }]);
}

#[test]
fn what_was_never_sent_is_dropped_and_what_may_be_known_is_left() {
    let mut requests = Requests::default();
    requests.step(Input::Lock { ticket: 1, names: names() });
    assert_eq!(requests.step(Input::Abandon { ticket: 1 }), [Effect::Settled { ticket: 1 }]);
    requests.step(Input::Lock { ticket: 2, names: names() });
    opened(&mut requests, &[]);
    requests.step(Input::Broken);
    assert_eq!(requests.step(Input::Abandon { ticket: 2 }), [], "the server cannot be told now");
    let leave = Request::Lock { ticket: 2, wait: Wait::ToLeave };
    assert_eq!(opened(&mut requests, &[]), [Effect::Send { number: 3, request: leave }]);
}

#[test]
fn an_unlock_in_doubt_is_decided_by_what_is_held() {
    for (held, is_sent_again) in [(&[7][..], true), (&[], false)] {
        let mut requests = Requests::default();
        opened(&mut requests, &[]);
        requests.step(Input::Lock { ticket: 1, names: names() });
        requests.step(Input::Granted { number: 2, token: 7 });
        requests.step(Input::Unlock { ticket: 2, names: names(), token: 7 });
        requests.step(Input::Broken);
        let effects = opened(&mut requests, held);
        let unlock = Effect::Send { number: 3, request: Request::Unlock { names: names(), token: 7 } };
        assert_eq!(effects.contains(&unlock), is_sent_again);
        assert_eq!(effects.contains(&Effect::Released { ticket: 2, released: true }), !is_sent_again);
    }
}

#[test]
fn a_tenure_that_is_missing_has_ended() {
    let mut requests = Requests::default();
    opened(&mut requests, &[]);
    for (ticket, number, token) in [(1, 2, 7), (2, 3, 8)] {
        requests.step(Input::Lock { ticket, names: names() });
        requests.step(Input::Granted { number, token });
    }
    requests.step(Input::Broken);
    assert_eq!(opened(&mut requests, &[8]), [Effect::TenureEnded { token: 7, cause: Cause::Taken }]);
    assert_eq!(requests.step(Input::Abandon { ticket: 1 }), [Effect::Settled { ticket: 1 }]);
}

/// One of two locks was taken away: while the stream was broken, or over it.
#[test]
fn a_tenure_that_lost_one_of_its_locks_gives_back_the_rest() {
    for is_told in [true, false] {
        let both: Names = ["a".to_owned(), "b".to_owned()].into();
        let mut requests = Requests::default();
        opened(&mut requests, &[]);
        requests.step(Input::Lock { ticket: 1, names: both.clone() });
        requests.step(Input::Granted { number: 2, token: 7 });
        let effects = match is_told {
            true => requests.step(Input::Lost { token: 7, cause: Cause::Taken }),
            false => {
                requests.step(Input::Broken);
                requests.step(Input::Opening);
                let held = Held::from([(7, BTreeSet::from(["b".to_owned()]))]);
                requests.step(Input::Opened { ttl_ms: 9_000, held })
            }
        };
        let ended = Effect::TenureEnded { token: 7, cause: Cause::Taken };
        let unlock = |number, name: &str| {
            let request = Request::Unlock { names: [name.to_owned()].into(), token: 7 };
            Effect::Send { number, request }
        };
        assert_eq!(effects, [ended, unlock(3, "a"), unlock(4, "b")]);
        assert!(requests.expects_an_answer());
        assert_eq!(requests.step(Input::Lost { token: 7, cause: Cause::Taken }), [], "the other one, too");
        assert_eq!(requests.step(Input::Refused { number: 3, refusal: Refusal::Final }), []);
        assert_eq!(requests.step(Input::Unlocked { number: 4, released: true }), []);
        assert!(!requests.expects_an_answer());
    }
}

#[test]
fn what_is_left_of_several_locks_is_given_back_if_unlocking_all_is_refused() {
    let both: Names = ["a".to_owned(), "b".to_owned()].into();
    let mut requests = Requests::default();
    opened(&mut requests, &[]);
    requests.step(Input::Lock { ticket: 1, names: both.clone() });
    requests.step(Input::Granted { number: 2, token: 7 });
    requests.step(Input::Unlock { ticket: 2, names: both, token: 7 });
    let ended = Effect::TenureEnded { token: 7, cause: Cause::Taken };
    assert_eq!(requests.step(Input::Lost { token: 7, cause: Cause::Taken }), [ended], "it is being given back");
    let effects = requests.step(Input::Refused { number: 3, refusal: Refusal::Final });
    let unlock = |number, name: &str| {
        let request = Request::Unlock { names: [name.to_owned()].into(), token: 7 };
        Effect::Send { number, request }
    };
    assert_eq!(effects, [unlock(4, "a"), unlock(5, "b"), Effect::Refuse { ticket: 2 }]);
    assert_eq!(requests.step(Input::Refused { number: 4, refusal: Refusal::Final }), []);
    assert_eq!(requests.step(Input::Unlocked { number: 5, released: true }), []);
}

/// A session that has lost one of the locks a and b, with token 7. The requests that give both back have the numbers
/// 3 and 4.
fn with_a_rest() -> Requests {
    let mut requests = Requests::default();
    opened(&mut requests, &[]);
    requests.step(Input::Lock { ticket: 1, names: ["a".to_owned(), "b".to_owned()].into() });
    requests.step(Input::Granted { number: 2, token: 7 });
    requests.step(Input::Lost { token: 7, cause: Cause::Taken });
    requests
}

fn lock_of(number: Number, ticket: Ticket) -> Effect {
    Effect::Send { number, request: Request::Lock { ticket, wait: Wait::AsAsked } }
}

/// A member may forward a later lock before an earlier unlock. The lock would be granted the token that the unlock ends.
#[test]
fn a_name_is_asked_for_again_when_the_rest_of_a_tenure_is_given_back() {
    let only = |name: &str| -> Names { [name.to_owned()].into() };
    let mut requests = with_a_rest();
    assert_eq!(requests.step(Input::Lock { ticket: 2, names: only("b") }), [], "b is not given back yet");
    assert_eq!(
        requests.step(Input::Lock { ticket: 3, names: only("c") }),
        [lock_of(5, 3)],
        "c has nothing to do with it"
    );
    assert!(requests.expects_an_answer());
    assert_eq!(requests.step(Input::Unlocked { number: 3, released: false }), []);
    assert_eq!(requests.step(Input::Unlocked { number: 4, released: true }), [lock_of(6, 2)]);
    assert!(!requests.expects_an_answer());
    assert_eq!(requests.step(Input::Granted { number: 6, token: 9 }), [Effect::Grant { ticket: 2, token: 9 }]);
}

#[test]
fn a_lock_that_is_held_back_is_sent_when_another_stream_has_settled_the_rest() {
    let names: Names = ["b".to_owned(), "c".to_owned()].into();
    for held in [&["b"][..], &[]] {
        let mut requests = with_a_rest();
        requests.step(Input::Lock { ticket: 2, names: names.clone() });
        requests.step(Input::Lock { ticket: 3, names: ["d".to_owned()].into() });
        requests.step(Input::Broken);
        requests.step(Input::Opening);
        let held = BTreeSet::from_iter(held.iter().map(|name| (*name).to_owned()));
        let is_held = !held.is_empty();
        let held = if is_held { Held::from([(7, held)]) } else { Held::new() };
        let effects = requests.step(Input::Opened { ttl_ms: 9_000, held });
        let asked_before = Effect::Send { number: 5, request: Request::Lock { ticket: 3, wait: Wait::AMoment } };
        let unlock = |number, name: &str| {
            let request = Request::Unlock { names: [name.to_owned()].into(), token: 7 };
            Effect::Send { number, request }
        };
        match is_held {
            true => {
                assert_eq!(effects, [unlock(3, "a"), unlock(4, "b"), asked_before]);
                assert_eq!(requests.step(Input::Refused { number: 4, refusal: Refusal::Final }), [lock_of(6, 2)]);
            }
            false => assert_eq!(effects, [asked_before, lock_of(6, 2)]),
        }
    }
}

#[test]
fn a_lock_is_held_back_until_each_of_its_names_is_given_back() {
    let mut requests = with_a_rest();
    assert_eq!(requests.step(Input::Lock { ticket: 2, names: ["a".to_owned(), "b".to_owned()].into() }), []);
    assert_eq!(requests.step(Input::Unlocked { number: 3, released: false }), [], "b is not given back yet");
    assert_eq!(requests.step(Input::Unlocked { number: 4, released: true }), [lock_of(5, 2)]);
}

#[test]
fn a_caller_whose_lock_is_held_back_may_go_away() {
    let mut requests = with_a_rest();
    requests.step(Input::Lock { ticket: 2, names: ["b".to_owned()].into() });
    assert_eq!(requests.step(Input::Abandon { ticket: 2 }), [Effect::Settled { ticket: 2 }]);
    assert_eq!(requests.step(Input::Unlocked { number: 4, released: true }), []);
}

#[test]
fn an_opening_confirms_the_renewal_that_was_wanted_before_it() {
    let mut requests = Requests::default();
    assert_eq!(requests.step(Input::Renew { renewal: 1 }), []);
    let confirmed = |renewal| Effect::Confirmed { renewal, ttl_ms: 9_000 };
    assert_eq!(opened(&mut requests, &[]), [confirmed(1)]);
    let renew = |number| Effect::Send { number, request: Request::Renew };
    assert_eq!(requests.step(Input::Renew { renewal: 2 }), [renew(2)]);
    assert_eq!(requests.step(Input::Renewed { number: 2, ttl_ms: 9_000 }), [confirmed(2)]);
    assert_eq!(requests.step(Input::Renew { renewal: 3 }), [renew(3)]);
    // The lifecycle gives up waiting: another stream, and the renewal is not sent twice.
    assert_eq!(requests.step(Input::Renew { renewal: 4 }), [Effect::Reopen]);
    assert_eq!(opened(&mut requests, &[]), [confirmed(4)]);
    // A renewal that is wanted while a stream is opened is sent over it, unless one waits for the opening already.
    requests.step(Input::Broken);
    requests.step(Input::Opening);
    assert_eq!(requests.step(Input::Renew { renewal: 5 }), []);
    assert_eq!(requests.step(Input::Opened { ttl_ms: 9_000, held: tokens(&[]) }), [renew(4)]);
    requests.step(Input::Broken);
    requests.step(Input::Opening);
    assert_eq!(requests.step(Input::Renew { renewal: 6 }), [Effect::Reopen]);
}

#[test]
fn a_session_that_is_over_owes_nothing() {
    let mut requests = Requests::default();
    opened(&mut requests, &[]);
    requests.step(Input::Lock { ticket: 1, names: names() });
    requests.step(Input::Abandon { ticket: 1 });
    assert!(!requests.is_settled());
    assert_eq!(requests.step(Input::Ended), [Effect::Settled { ticket: 1 }, Effect::Over]);
    assert!(requests.is_settled());
}
