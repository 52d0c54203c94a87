//! Ten downloads, never more than three at a time, over all machines that run this.
//!
//! ```console
//! $ tenure serve &
//! $ cargo run -p tenure-client --example three_at_a_time
//! ```

use tenure_client::{Client, Durations, LockError};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let endpoints = std::env::var("TENURE_ENDPOINTS").unwrap_or_else(|_| "127.0.0.1:2379".to_owned());
    let client = Client::connect(&endpoints).await?;
    let mut downloads = JoinSet::new();
    for number in 1..=10 {
        downloads.spawn(download(client.clone(), number));
    }
    while let Some(done) = downloads.join_next().await {
        done.expect("a download does not panic")?;
    }
    Ok(())
}

async fn download(client: Client, number: u32) -> Result<(), LockError> {
    let slot = client.lock("downloads").slots(3).holder(format!("download {number}")).acquire().await?;
    println!("{number} begins in slot {}", slot.slot());
    slot.run(async |_| tokio::time::sleep(500.milliseconds()).await).await?;
    println!("{number} has ended");
    slot.release().await
}
