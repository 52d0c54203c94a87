//! What `exec`, `lock` and `elect` have in common: how a lock is asked for.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use clap::Args;
use tenure_client::{Client, LockRequest};

use crate::output::note;
use crate::progress::Progress;
use tenure_server::units::{format_duration, parse_duration};

const SHORTEST_TTL: Duration = Duration::from_millis(500);
/// Who waits longer than this wants to know for whom.
const TELL_AFTER: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct Asking {
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Do not wait if it is busy
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most so long, as in 30s or 5m [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Share it with all who ask for the same
    #[arg(short, long, conflicts_with = "slots")]
    shared: bool,
    /// Be one of at most N holders
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// Take this lock together with the first; may be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    also: Vec<String>,
    /// How long the server keeps the lock if it hears nothing from here
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ttl)]
    pub ttl: Duration,
    /// Who holds it, for others to read [default: host and process]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,
    /// The sequential flow of work that asks; only those who name one are protected from deadlocks
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
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
        if let Some(holder) = &self.holder {
            request = request.holder(holder);
        }
        if let Some(owner) = &self.owner {
            request = request.owner(owner);
        }
        if let Some(metadata) = &self.metadata {
            request = request.metadata(metadata.clone());
        }
        request
    }
}

/// Shows on a terminal who is in the way, for as long as it is polled. Where nobody looks, waiting costs the server
/// nothing.
pub async fn show_waiting(client: &Client, name: &str) {
    if !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    tokio::time::sleep(TELL_AFTER).await;
    let progress = Progress::new();
    loop {
        if let Ok(lock) = client.describe_lock(name).await
            && let Some(holder) = lock.holders.first()
        {
            let held = age(holder.granted, lock.now).map_or_else(String::new, |age| format!(" for {age}"));
            progress.show(&format!("waiting for {name}: {} has held it{held}", holder.id));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
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
        Ok(ttl) if ttl < SHORTEST_TTL => Err(format!("{} is the shortest there is", format_duration(SHORTEST_TTL))),
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
    fn the_shortest_ttl_is_told() {
        assert_eq!(parse_ttl("500ms"), Ok(SHORTEST_TTL));
        assert!(parse_ttl("499ms").unwrap_err().contains("500ms"));
    }
}
