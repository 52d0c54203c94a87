//! A schema migration that must run once, however many instances of a program start together.
//!
//! ```console
//! $ tenure serve &
//! $ cargo run -p tenure-client --example migration & cargo run -p tenure-client --example migration
//! ```
//!
//! One of them migrates, the others wait and find that nothing is left to do. The schema's version
//! is a key of the same server here; the write of it is a transaction that checks the lock's key, so
//! that an instance that was stopped in between cannot write it any more.

use tenure_client::{Client, Compare, Durations, Held, LockError, Operation, Txn};

const NEWEST: u32 = 3;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Lost(#[from] tenure_client::Lost),
    #[error(transparent)]
    Call(#[from] tenure_client::Error),
    #[error("the lock's key is gone: somebody else migrates")]
    Fenced,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let endpoints = std::env::var("TENURE_ENDPOINTS").unwrap_or_else(|_| "127.0.0.1:2379".to_owned());
    let client = Client::connect(&endpoints).await?;
    let guard = client.lock("schema/migration").ttl(10.seconds()).wait(2.minutes()).acquire().await?;
    guard.run(async |held| migrate(&client, held).await).await??;
    guard.release().await?;
    Ok(())
}

async fn migrate(client: &Client, held: &Held) -> Result<(), Failure> {
    let found = client.get("schema/version").await?.pairs;
    let version = found.first().and_then(|pair| std::str::from_utf8(&pair.value).ok()?.parse().ok()).unwrap_or(0);
    if version == NEWEST {
        println!("the schema is at version {version} already");
    }
    for version in version + 1..=NEWEST {
        println!("migrating to version {version} with token {}", held.token());
        tokio::time::sleep(1.seconds()).await;
        let written = client
            .txn(Txn {
                when: vec![Compare::created_at(held.key().to_owned(), held.token())],
                then: vec![Operation::Put(("schema/version", version.to_string()).into())],
                ..Txn::default()
            })
            .await?;
        if !written.succeeded {
            return Err(Failure::Fenced);
        }
    }
    Ok(())
}
