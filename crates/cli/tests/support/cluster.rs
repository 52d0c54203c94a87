//! Several real server processes that are one cluster.

use std::path::Path;

use tempfile::TempDir;
use tenure_client::Client;

use super::{Release, Server, own_address};

pub struct Cluster {
    pub servers: Vec<Server>,
    peers: Vec<String>,
    directory: TempDir,
}

impl Cluster {
    /// Members n1, n2, …, which have a leader.
    pub fn start(members: usize) -> Cluster {
        Cluster::start_as(members, &Release::default())
    }

    /// With these flags for each of them, beside their own.
    pub fn start_with(members: usize, flags: &[&str]) -> Cluster {
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        Cluster::start_as(members, &Release { flags, ..Release::default() })
    }

    /// All of one release.
    pub fn start_as(members: usize, release: &Release) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let peers: Vec<String> = (0..members).map(|_| own_address()).collect();
        let entries = peers.iter().enumerate().map(|(index, peer)| format!("n{}={peer}", index + 1));
        let cluster = entries.collect::<Vec<_>>().join(",");
        let start = |(index, peer): (usize, &String)| {
            let name = format!("n{}", index + 1);
            let flags = ["--name", &name, "--peer-listen", peer, "--cluster", &cluster];
            Server::spawn_release(release, &directory.path().join(&name), own_address(), &flags)
        };
        let mut servers: Vec<Server> = peers.iter().enumerate().map(start).collect();
        for server in &mut servers {
            assert!(server.is_ready(), "a member did not start:\n{}", server.stderr());
        }
        Cluster { servers, peers, directory }
    }

    /// One more member, which votes when this returns.
    pub async fn join(&mut self) {
        let (name, peer) = (format!("n{}", self.servers.len() + 1), own_address());
        let flags = ["--name", &name, "--peer-listen", &peer, "--join", &self.peers[0]];
        let mut server = Server::spawn(&self.directory.path().join(&name), own_address(), &flags);
        assert!(server.is_ready(), "a member did not join:\n{}", server.stderr());
        let client = self.client().await;
        super::place::soon(async {
            while !client.members().await.unwrap().members.iter().any(|known| known.name == name && !known.is_learner) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
        self.servers.push(server);
        self.peers.push(peer);
    }

    /// One more member, which nothing is known of yet.
    pub fn spawn_joining(&self, release: &Release) -> Server {
        let (name, peer) = (format!("n{}", self.servers.len() + 1), own_address());
        let flags = ["--name", &name, "--peer-listen", &peer, "--join", &self.peers[0]];
        Server::spawn_release(release, &self.directory.path().join(&name), own_address(), &flags)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where the other members find this one.
    pub fn peer(&self, index: usize) -> String {
        self.peers[index].clone()
    }

    pub fn endpoints(&self) -> String {
        self.servers.iter().map(|server| server.address.as_str()).collect::<Vec<_>>().join(",")
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.endpoints()).await.unwrap()
    }

    /// The place of the member that the others follow.
    pub async fn leader(&self) -> usize {
        loop {
            for (index, server) in self.servers.iter().enumerate() {
                let Ok(client) = Client::connect(&server.address).await else { continue };
                if client.status().await.is_ok_and(|status| status.is_leader()) {
                    return index;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Panics unless all members have the same state when they have applied equally much.
    pub async fn assert_equal(&self) {
        let addresses: Vec<String> = self.servers.iter().map(|server| server.address.clone()).collect();
        super::state::assert_equal(&addresses).await;
    }
}
