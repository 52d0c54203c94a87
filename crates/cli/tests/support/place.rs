//! A server with a directory of its own, and a client where one is wanted.

use std::time::Duration;

use tempfile::TempDir;
use tenure_client::Client;

use super::{PATIENCE, Server};

/// What a test at a shell needs; `shell` has the verbs.
pub struct Place {
    pub server: Server,
    pub directory: TempDir,
}

impl Place {
    pub fn start() -> Place {
        Place::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Place {
        let directory = tempfile::tempdir().unwrap();
        Place { server: Server::start_with(&directory.path().join("data"), flags), directory }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }
}

/// What a test of the client library needs.
pub struct Connected {
    pub server: Server,
    pub client: Client,
    _directory: TempDir,
}

impl Connected {
    pub async fn start() -> Connected {
        let Place { server, directory } = Place::start();
        let client = Client::connect(&server.address).await.unwrap();
        Connected { server, client, _directory: directory }
    }

    pub async fn until_waiters(&self, name: &str, waiters: usize) {
        let looking = async {
            while self.client.describe_lock(name).await.unwrap().waiters.len() != waiters {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(looking).await;
    }
}

pub async fn soon<Output>(work: impl Future<Output = Output>) -> Output {
    tokio::time::timeout(PATIENCE, work).await.expect("it comes to an end")
}
