//! A client that was given one endpoint learns the other members, and goes on with them when that one is gone.

mod support;

use support::cluster::Cluster;
use support::place::soon;
use tenure_client::{Client, Durations, Error, Keys, Settings, Watch};

async fn until_known(client: &Client, count: usize) {
    soon(async {
        while client.known_endpoints().len() != count {
            tokio::time::sleep(5.milliseconds()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_only_endpoint_is_killed_and_calls_go_on() {
    let mut cluster = Cluster::start(3);
    let client = Client::connect(&cluster.servers[0].address).await.unwrap();
    client.put(("a", "1")).await.unwrap();
    until_known(&client, 3).await;
    assert_eq!(client.endpoints(), [cluster.servers[0].address.as_str()], "as given");
    let mut known = client.known_endpoints();
    let mut expected: Vec<String> = cluster.servers.iter().map(|server| server.address.clone()).collect();
    known.sort();
    expected.sort();
    assert_eq!(known, expected);

    let mut watcher = client.watch(Watch::keys(Keys::prefix("n/"))).await.unwrap();
    let guard = client.lock("jobs").ttl(6.seconds()).acquire().await.unwrap();
    cluster.servers[0].kill();
    assert_eq!(soon(client.get("a")).await.expect("another member answers").pairs[0].value, "1");
    for number in 0..5 {
        soon(client.put((format!("n/{number}"), "x"))).await.unwrap();
        let events = soon(watcher.next()).await.unwrap().events;
        assert_eq!(events.iter().map(|event| event.pair.key.clone()).collect::<Vec<_>>(), [format!("n/{number}")]);
    }
    soon(guard.renewed_after(guard.deadline())).await;
    guard.check().unwrap();
    soon(guard.release()).await.unwrap();
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let mut cluster = Cluster::start(3);
    let settings = Settings { discover: false, timeout: 500.milliseconds(), ..Settings::default() };
    let client = Client::connect_with(&cluster.servers[0].address, settings).await.unwrap();
    client.put(("a", "1")).await.unwrap();
    cluster.servers[0].kill();
    match soon(client.get("a")).await.unwrap_err() {
        Error::Unreachable { attempts } => assert_eq!(attempts.len(), 1, "{attempts:?}"),
        other => panic!("{other}"),
    }
    assert_eq!(client.known_endpoints(), client.endpoints());
}

#[tokio::test]
async fn a_member_that_joins_is_learned_and_one_of_another_cluster_is_not_used() {
    let mut cluster = Cluster::start(1);
    let client = Client::connect(&cluster.servers[0].address).await.unwrap();
    client.put(("a", "1")).await.unwrap();
    cluster.join().await;
    // Over the next connection it hears of the newcomer.
    cluster.servers[0].restart();
    soon(client.get("a")).await.unwrap();
    until_known(&client, 2).await;

    // Somebody else takes the newcomer's port.
    let address = cluster.servers[1].address.clone();
    cluster.servers[1].kill();
    let mut stranger = support::Server::spawn(&cluster.directory().join("stranger"), address, &[]);
    assert!(stranger.is_ready(), "{}", stranger.stderr());
    cluster.servers[0].kill();
    let error = soon(client.get("a")).await.unwrap_err();
    assert!(error.to_string().contains("another cluster"), "{error}");
}
