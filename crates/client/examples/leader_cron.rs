//! A job that runs every few seconds on exactly one of many machines: the one that is elected.
//!
//! Start a server (`tenure serve`) and this example in two terminals:
//!
//! ```console
//! $ cargo run -p tenure-client --example leader_cron -- node-1
//! ```
//!
//! End the one that leads with Ctrl-C: the other one goes on at once. Kill it: within its TTL. Who leads shows
//! `tenure elect --observe cron/leader`.

use std::time::Duration;

use tenure_client::{Client, Durations, LockError, Lost};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "somebody".to_owned());
    let endpoints = std::env::var("TENURE_ENDPOINTS").unwrap_or_else(|_| "127.0.0.1:2379".to_owned());
    let client = Client::connect(&endpoints).await?;
    loop {
        println!("{name} waits to be elected");
        let leadership = client.campaign("cron/leader", name.clone()).holder(&name).ttl(10.seconds()).lead().await?;
        println!("{name} leads, with token {}", leadership.token());
        tokio::select! {
            // Ends only if the leadership may be lost: then somebody else may begin, and we stand again.
            Err(Lost { cause, .. }) = leadership.run(async |held| run_every(2.seconds(), held.token()).await) => {
                println!("{name} does not lead any more: {cause}");
            }
            _ = tokio::signal::ctrl_c() => return leadership.resign().await,
        }
    }
}

/// The job itself. It is dropped where it waits when the leadership may be lost.
async fn run_every(period: Duration, token: i64) -> std::convert::Infallible {
    loop {
        println!("the job runs; its effects carry token {token}");
        tokio::time::sleep(period).await;
    }
}
