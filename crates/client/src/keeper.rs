//! Runs the lifecycles of a client's leases, on two threads of its own: one that watches the
//! deadlines and does nothing else, and one that sends renewals and gives back what was dropped.
//! So neither work that blocks the caller's runtime nor a suspended machine hides a deadline, and
//! a lease outlives a runtime that is busy or already gone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use tokio::sync::{OwnedMutexGuard, mpsc, watch};

use crate::clock::{self, Alarm};
use crate::connections::Connections;
use crate::lifecycle::{CancelAt, Cause, Effect, Input, Lifecycle, WallClock};
use crate::session_stream::{Order, SessionStream};
use crate::{Client, Deadline, Error, LeaseId};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The two threads; they end when the last client and the last lease are gone.
pub(crate) struct Keeper {
    schedule: Arc<Schedule>,
    jobs: mpsc::UnboundedSender<Job>,
    /// Whose connections live on the keeper's own runtime.
    client: Client,
    /// How many things that were dropped are still to be given back.
    owed: watch::Sender<usize>,
}

/// Which lease has to be stepped when.
struct Schedule {
    due: Mutex<Due>,
    alarm: Alarm,
}

#[derive(Default)]
struct Due {
    by_time: BTreeMap<(u64, LeaseId), Weak<HeldLease>>,
    ended: bool,
}

impl Keeper {
    pub fn start(connections: &Connections) -> Result<Arc<Keeper>, Error> {
        Keeper::try_start(connections).map(Arc::new).map_err(|error| Error::Local { reason: error.to_string() })
    }

    fn try_start(connections: &Connections) -> std::io::Result<Keeper> {
        let schedule = Arc::new(Schedule { due: Mutex::default(), alarm: Alarm::new()? });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = {
            let _inside = runtime.enter();
            Client::over(connections.anew())
        };
        let (jobs, mut arriving) = mpsc::unbounded_channel::<Job>();
        thread::Builder::new().name("tenure-renew".to_owned()).spawn(move || {
            runtime.block_on(async {
                let mut running = tokio::task::JoinSet::new();
                while let Some(job) = arriving.recv().await {
                    running.spawn(job);
                    while running.try_join_next().is_some() {}
                }
                running.join_all().await;
            });
        })?;
        let watched = schedule.clone();
        thread::Builder::new().name("tenure-deadline".to_owned()).spawn(move || watched.run())?;
        Ok(Keeper { schedule, jobs, client, owed: watch::Sender::new(0) })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs work on the keeper's runtime, whatever becomes of the caller's.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // The thread ends only after the keeper has.
        let _ = self.jobs.send(Box::pin(work));
    }

    /// As [`Keeper::spawn`], for what [`Client::settled`] waits for.
    pub fn owe(self: &Arc<Keeper>, work: impl Future<Output = ()> + Send + 'static) {
        let owed = self.owed(Vec::new());
        self.spawn(async move {
            work.await;
            drop(owed);
        });
    }

    /// Something has to be given back before these turns are somebody else's; and [`Client::settled`] waits for it.
    pub fn owed(self: &Arc<Keeper>, turns: Vec<OwnedMutexGuard<()>>) -> Owed {
        self.owed.send_modify(|owed| *owed += 1);
        Owed { keeper: self.clone(), turns }
    }

    pub async fn settled(&self) {
        // The sender lives as long as we do.
        let _ = self.owed.subscribe().wait_for(|owed| *owed == 0).await;
    }
}

/// Dropped when it is paid.
pub(crate) struct Owed {
    keeper: Arc<Keeper>,
    turns: Vec<OwnedMutexGuard<()>>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        // The turns go first: a caller that waits until all is settled looks next which names are in use.
        self.turns.clear();
        self.keeper.owed.send_modify(|owed| *owed -= 1);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.schedule.lock().ended = true;
        self.schedule.alarm.set(Some(0));
    }
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            self.alarm.wait();
            let due = {
                let mut due = self.lock();
                if due.ended {
                    return;
                }
                let later = due.by_time.split_off(&(clock::now_ms() + 1, LeaseId::MIN));
                let due_now = std::mem::replace(&mut due.by_time, later);
                self.alarm.set(due.by_time.keys().next().map(|(at_ms, _)| *at_ms));
                due_now
            };
            for lease in due.into_values().filter_map(|lease| lease.upgrade()) {
                lease.step(Input::Tick);
            }
        }
    }

    fn put(&self, id: LeaseId, before_ms: Option<u64>, at_ms: Option<u64>, lease: &Weak<HeldLease>) {
        let mut due = self.lock();
        if let Some(before_ms) = before_ms {
            due.by_time.remove(&(before_ms, id));
        }
        if let Some(at_ms) = at_ms {
            due.by_time.insert((at_ms, id), lease.clone());
        }
        if !due.ended {
            self.alarm.set(due.by_time.keys().next().map(|(at_ms, _)| *at_ms));
        }
    }
}

/// What everybody may know of a lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub warned: bool,
    pub cancelled: bool,
    pub lost: Option<Cause>,
}

/// A lease that is kept alive until it is ended or lost.
pub(crate) struct HeldLease {
    pub id: LeaseId,
    life: Mutex<Life>,
    state: watch::Sender<State>,
    orders: mpsc::UnboundedSender<Order>,
    keeper: Arc<Keeper>,
    itself: Weak<HeldLease>,
}

struct Life {
    lifecycle: Lifecycle,
    wall_clock: WallClock,
    scheduled_ms: Option<u64>,
}

impl HeldLease {
    /// Keeps a lease that was asked for at `sent_ms` and granted for `ttl_ms`.
    pub fn keep(keeper: &Arc<Keeper>, id: LeaseId, cancel_at: CancelAt, sent_ms: u64, ttl_ms: u64) -> Arc<HeldLease> {
        let (orders, arriving) = mpsc::unbounded_channel();
        let lifecycle = Lifecycle::new(cancel_at, sent_ms, ttl_ms);
        let wall_clock = WallClock::new(clock::now_ms(), clock::wall_ms());
        let lease = Arc::new_cyclic(|itself| HeldLease {
            id,
            life: Mutex::new(Life { lifecycle, wall_clock, scheduled_ms: None }),
            state: watch::Sender::default(),
            orders,
            keeper: keeper.clone(),
            itself: itself.clone(),
        });
        keeper.spawn(SessionStream::new(keeper.client().clone(), Arc::downgrade(&lease), id, arriving).run());
        lease.step(Input::Tick);
        lease
    }

    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Orders something of the session. If it is over, the order is dropped, and its caller learns that there is no
    /// answer.
    pub fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Anybody may step it, at any time: the clock is read here.
    pub fn step(&self, input: Input) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let Life { lifecycle, wall_clock, .. } = &mut *life;
        let now_ms = clock::now_ms();
        let mut effects = Vec::new();
        if wall_clock.has_jumped(now_ms, clock::wall_ms(), lifecycle.ttl_ms()) {
            effects = lifecycle.step(now_ms, Input::Doubt);
        }
        effects.extend(lifecycle.step(now_ms, input));
        for effect in effects {
            match effect {
                Effect::SendRenewal { number } => self.order(Order::Renew(number)),
                Effect::Confirmed => self.publish(|state| state.warned = false),
                Effect::Warn => self.publish(|state| state.warned = true),
                Effect::Cancel => self.publish(|state| state.cancelled = true),
                Effect::Lost(cause) => {
                    self.publish(|state| state.lost = Some(cause));
                    self.order(Order::End);
                }
            }
        }
        let next_ms = life.lifecycle.next_step_ms();
        // The next step is always later than this one, so an equal time is still in the schedule.
        if life.scheduled_ms != next_ms {
            self.keeper.schedule.put(self.id, life.scheduled_ms, next_ms, &self.itself);
            life.scheduled_ms = next_ms;
        }
    }

    fn publish(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    /// As it is now, by the clock: does not depend on any thread having been in time.
    pub fn state(&self) -> State {
        self.step(Input::Tick);
        *self.state.borrow()
    }

    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub fn deadline(&self) -> Deadline {
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        Deadline::at_ms(life.lifecycle.deadline_ms())
    }

    /// How long ago the last renewal that was confirmed has been sent.
    pub fn unconfirmed_ms(&self) -> u64 {
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        clock::now_ms().saturating_sub(life.lifecycle.confirmed_ms())
    }

    /// Ends it on this side, without telling the server.
    pub fn end(&self, cause: Cause) {
        self.step(Input::Ended(cause));
    }

    pub async fn lost(&self) -> Cause {
        let mut state = self.subscribe();
        loop {
            if let Some(cause) = self.state().lost {
                return cause;
            }
            // The sender is ours.
            let _ = state.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[tokio::test]
    async fn who_is_settled_holds_no_turn_any_more() {
        let endpoints = crate::endpoint::parse_list("127.0.0.1:1").unwrap();
        let keeper = Keeper::start(&Connections::new(endpoints, Settings::default())).unwrap();
        // The two threads meet often enough that the wrong order is seen.
        for _ in 0..2000 {
            let turn = Arc::new(tokio::sync::Mutex::new(()));
            let owed = keeper.owed(vec![turn.clone().try_lock_owned().unwrap()]);
            keeper.spawn(async move { drop(owed) });
            keeper.settled().await;
            assert!(turn.try_lock().is_ok(), "nothing is owed, and yet somebody is at it");
        }
    }
}
