//! What `exec`, `lock` and `elect` have in common: how a lock is asked for.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use clap::Args;
use rustix::process::getuid;
use rustix::system::uname;
use tenure_client::{Client, Error, Holder, LockDescription, LockError, LockGuard, LockRequest, Mode};

use super::people;
use crate::bytes_text::printable;
use crate::output::note;
use crate::progress::Progress;
use tenure_server::units::{format_duration, parse_duration};

const SHORTEST_TTL: Duration = Duration::from_millis(500);
/// Who waits longer than this wants to know for whom.
const TELL_AFTER: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the queue may take to say why a lock was refused. Without that, the refusal itself says enough.
const EXPLAIN_WITHIN: Duration = Duration::from_secs(2);
/// The client gives a cluster at least this long to answer at all, however short the wait is.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);
/// How much longer than the wait that was asked for an answer may take.
const ANSWER_SLACK: Duration = Duration::from_millis(500);
/// Between two attempts without a leader.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Stands before the random end of an owner that was not named.
const OWNER_MARK: char = '#';

#[derive(Args)]
pub struct Asking {
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Do not wait if it is busy
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most this long, as in 30s or 5m [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Share it with all other shared holders
    #[arg(short, long, conflicts_with = "slots")]
    shared: bool,
    /// Be one of at most N holders; all of them name the same N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// Take this lock together with the first; may be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    also: Vec<String>,
    /// How long the server keeps the lock if it hears nothing from here
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ttl)]
    pub ttl: Duration,
    /// Who holds it, for others to read [default: USER@HOST:PROCESS]
    #[arg(long, env = "TENURE_HOLDER", value_name = "TEXT")]
    holder: Option<String>,
    /// The sequential flow of work that asks; only those who name one are protected from deadlocks. `exec` names
    /// one by itself and hands it on to its command
    #[arg(long, env = "TENURE_OWNER", value_name = "TEXT")]
    pub owner: Option<String>,
    /// What it is held for, for others to read
    #[arg(long, value_name = "TEXT")]
    metadata: Option<String>,
}

impl Asking {
    pub fn request(&self, client: &Client) -> LockRequest {
        let mut request = client.lock(&self.name).ttl(self.ttl);
        if self.no_wait {
            request = request.try_once();
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        if self.shared {
            request = request.shared();
        }
        if let Some(slots) = self.slots {
            request = request.slots(slots);
        }
        for name in &self.also {
            request = request.also(name);
        }
        request = request.holder(self.holder.clone().unwrap_or_else(default_holder));
        if let Some(owner) = &self.owner {
            request = request.owner(owner);
        }
        if let Some(metadata) = &self.metadata {
            request = request.metadata(metadata.clone());
        }
        request
    }

    /// Waits for the lock, no longer than asked for.
    pub async fn acquire(&self, request: impl Fn() -> LockRequest) -> Result<LockGuard, NotAcquired> {
        within(self.wait, &self.name, || request().acquire()).await
    }

    /// See [`show_waiting`].
    pub async fn show_waiting(&self, client: &Client) {
        show_waiting(client, &self.name, Some(self.mode())).await
    }

    /// The error, and what the queue tells about it: that the slots differ, or that the caller would wait for itself.
    /// A cluster that did not answer the request is not asked about the queue either: the wait is over.
    pub async fn explain(&self, client: &Client, error: NotAcquired) -> anyhow::Error {
        let NotAcquired::Lock(refusal) = &error else { return error.into() };
        if error.is_unanswered() {
            return error.into();
        }
        let described = tokio::time::timeout(EXPLAIN_WITHIN, client.describe_lock(&self.name)).await;
        let Some(lock) = described.ok().and_then(Result::ok) else { return error.into() };
        let owner = self.owner.as_deref().unwrap_or_default();
        let is_own = |holder: &Holder| !owner.is_empty() && holder.owner == owner;
        match (refusal, lock.holders.iter().find(|holder| is_own(holder))) {
            (LockError::Deadlock { name, .. }, Some(holder)) => anyhow::anyhow!(
                "{name} is held by {}, which has the same owner and waits for this command: a deadlock",
                people::name(holder)
            ),
            _ => match difference(&self.name, &lock, self.mode()) {
                Some(difference) => anyhow::anyhow!("{error}. {difference}"),
                None => error.into(),
            },
        }
    }

    pub fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    fn mode(&self) -> Mode {
        match (self.slots, self.shared) {
            (Some(slots), _) => Mode::Semaphore { slots },
            (None, true) => Mode::Shared,
            (None, false) => Mode::Exclusive,
        }
    }
}

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum NotAcquired {
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The cluster did not even answer whether the lock is free.
    #[error("{name} was not granted within {}: {reason}; `tenure status` shows the members", format_duration(*waited))]
    Unanswered { name: String, waited: Duration, reason: String },
}

impl NotAcquired {
    /// Whether the cluster may be unable to take back what was given up, so that waiting for it is of no use.
    pub fn is_unanswered(&self) -> bool {
        match self {
            NotAcquired::Lock(error) => matches!(error, LockError::Timeout { unanswered: Some(_), .. }),
            NotAcquired::Unanswered { .. } => true,
        }
    }

    /// Whether the exit code is that of a busy lock: trying again later may help.
    pub fn is_busy(&self) -> bool {
        match self {
            NotAcquired::Lock(error) => {
                matches!(error, LockError::Busy { .. } | LockError::Timeout { .. } | LockError::Deadlock { .. })
            }
            NotAcquired::Unanswered { .. } => true,
        }
    }
}

/// Asks for no longer than `wait`, whether the cluster answers or not. Until then it asks again if there was no leader:
/// an attempt that fails leaves no place in the queue behind.
pub async fn within<Granted, Asking>(
    wait: Option<Duration>,
    name: &str,
    mut ask: impl FnMut() -> Asking,
) -> Result<Granted, NotAcquired>
where
    Asking: Future<Output = Result<Granted, LockError>>,
{
    let Some(waited) = wait else { return Ok(ask().await?) };
    let mut reason = "no member has answered".to_owned();
    let asking = async {
        loop {
            match ask().await {
                Err(LockError::Call(error @ (Error::NoLeader { .. } | Error::Timeout { .. }))) => {
                    reason = error.to_string();
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answer => return answer,
            }
        }
    };
    match tokio::time::timeout(waited.max(SHORTEST_ANSWER) + ANSWER_SLACK, asking).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(NotAcquired::Unanswered { name: name.to_owned(), waited, reason }),
    }
}

/// Shows on a terminal who is in the way, for as long as it is polled. Elsewhere it says only once, and only to those
/// who ask for slots, that the holders have another number of them: such a wait may never end.
pub async fn show_waiting(client: &Client, name: &str, asked: Option<Mode>) {
    let is_terminal = io::stderr().is_terminal();
    if !is_terminal && !matches!(asked, Some(Mode::Semaphore { .. })) {
        return std::future::pending().await;
    }
    tokio::time::sleep(TELL_AFTER).await;
    let described = client.describe_lock(name).await;
    if let Some(difference) = described.ok().and_then(|lock| difference(name, &lock, asked?)) {
        note(&difference);
    }
    if !is_terminal {
        return std::future::pending().await;
    }
    let progress = Progress::new();
    loop {
        if let Ok(lock) = client.describe_lock(name).await
            && let Some(holder) = lock.holders.first()
        {
            let held = age(holder.granted, lock.now).map_or_else(String::new, |age| format!(" for {age}"));
            progress.show(&format!("waiting for {name}: {} has held it{held}", people::name(holder)));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How the holders' way to share the lock differs from what was asked for. Semaphores count only those who name the
/// same number of slots.
fn difference(name: &str, lock: &LockDescription, asked: Mode) -> Option<String> {
    let held = lock.holders.first()?.mode;
    let is_semaphore = |mode| matches!(mode, Mode::Semaphore { .. });
    if held == asked || !(is_semaphore(held) || is_semaphore(asked)) {
        return None;
    }
    let name = printable(name.as_bytes());
    let held_text = match held {
        Mode::Semaphore { slots } => format!("{name} has {slots} slots for its holders"),
        Mode::Exclusive => format!("{name} is held by one holder alone"),
        Mode::Shared => format!("{name} is shared by its holders"),
        Mode::Barrier { parties } => format!("{name} is a barrier of {parties}"),
    };
    let asked_text = match asked {
        Mode::Semaphore { slots } if is_semaphore(held) => format!("{slots} were asked for"),
        Mode::Semaphore { slots } => format!("one of {slots} slots was asked for"),
        Mode::Shared => "a share of it was asked for".to_owned(),
        Mode::Exclusive | Mode::Barrier { .. } => "the whole lock was asked for".to_owned(),
    };
    Some(format!("{held_text}, and {asked_text}"))
}

/// `USER@HOST:PROCESS`: enough to find who it is.
pub fn default_holder() -> String {
    let named =
        ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = named.unwrap_or_else(|| match getuid() {
        user if user.is_root() => "root".to_owned(),
        user => user.as_raw().to_string(),
    });
    format!("{user}@{}:{}", uname().nodename().to_string_lossy(), std::process::id())
}

/// An owner that no other flow of work has: process ids repeat, in containers soon.
pub fn new_owner() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{}{OWNER_MARK}{:08x}", default_holder(), random as u32)
}

/// Whether an owner was made by [`new_owner`]: it says no more than who holds the lock.
pub fn is_made_up(owner: &str) -> bool {
    let mark = owner.rsplit_once(OWNER_MARK).map(|(_, random)| random);
    mark.is_some_and(|random| random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Says so if a new leader's election may cost the lock.
pub fn warn_of_short_ttl(is_failover_safe: bool, ttl: Duration) {
    if !is_failover_safe {
        let ttl = format_duration(ttl);
        note(format_args!("a TTL of {ttl} is not failover-safe: the lock may be lost while a new leader is elected"));
    }
}

/// How long ago something was, by the leader's clock, as people say it.
pub fn age(since: Option<SystemTime>, now: Option<SystemTime>) -> Option<String> {
    Some(short(now?.duration_since(since?).unwrap_or_default()))
}

/// `38s`, `7.2s`, `5m12s`, `3h5m`: two figures are enough.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

pub fn parse_name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a lock has a name".to_owned()),
        text => Ok(text.to_owned()),
    }
}

pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(ttl) if ttl < SHORTEST_TTL => Err(format!("the shortest is {}", format_duration(SHORTEST_TTL))),
        Ok(ttl) => Ok(ttl),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_readable() {
        for (ms, text) in [(7_250, "7.2s"), (38_000, "38s"), (312_000, "5m12s"), (11_100_000, "3h5m")] {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
        assert_eq!(short(Duration::from_secs(90_000)), "1d1h");
        assert_eq!(age(None, Some(SystemTime::now())), None);
    }

    #[test]
    fn a_wait_that_ends_without_an_answer_is_told_from_one_behind_a_holder() {
        let timeout = |unanswered| {
            let (name, holder, waited) = ("a".to_owned(), String::new(), Duration::from_millis(500));
            NotAcquired::from(LockError::Timeout { name, waited, holder, since: None, waiting: 0, unanswered })
        };
        let no_leader = Error::NoLeader { endpoint: "a:1".to_owned(), unknown: false };
        let (unanswered, busy) = (timeout(Some(Box::new(no_leader))), timeout(None));
        assert!(unanswered.is_busy() && unanswered.is_unanswered());
        assert!(busy.is_busy() && !busy.is_unanswered());
        assert!(unanswered.to_string().contains("within 0.5 s"), "{unanswered}");
    }

    #[test]
    fn the_shortest_ttl_is_told() {
        assert_eq!(parse_ttl("500ms"), Ok(SHORTEST_TTL));
        assert!(parse_ttl("499ms").unwrap_err().contains("500ms"));
    }
}
