//! Lock and unlock over Tenure's session stream: each client is one stream with several cycles of
//! lock and unlock in flight, each on a name of its own.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenure_api::tenure::v1::session_request::Request as Asked;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{SessionClose, SessionLock, SessionOpen, SessionRequest, SessionResponse, SessionUnlock};

use crate::drive::Operation;
use crate::wire::{Connection, Failure, Replies, Requests, decode, frame};

const TTL_MS: i64 = 600_000;

pub struct Client {
    requests: Requests,
    replies: Replies,
    names: Vec<String>,
    started: Vec<Instant>,
    /// Which cycle a request belongs to.
    asked: HashMap<u64, usize>,
    number: u64,
    took: Duration,
    /// Requests that go out together, as soon as all that has come is answered.
    unsent: BytesMut,
}

impl Client {
    pub async fn prepare(connection: Connection, number: usize, depth: usize) -> Result<Client, Failure> {
        let method = connection.method("/tenure.v1.LockService/Session");
        let (requests, replies) = connection.stream(&method).await?;
        let names: Vec<_> = (0..depth).map(|cycle| format!("bench/session/{number}/{cycle}")).collect();
        let started = vec![Instant::now(); depth];
        let mut client = Client {
            requests,
            replies,
            names,
            started,
            asked: HashMap::new(),
            number: 0,
            took: Duration::ZERO,
            unsent: BytesMut::new(),
        };
        let open = SessionOpen { session_id: 0, ttl_ms: TTL_MS, client_id: format!("bench {number}") };
        client.ask(Asked::Open(open), usize::MAX)?;
        let Told::Opened(_) = client.hear().await?.1 else {
            return Err(Failure::Wrong("the session was not opened".to_owned()));
        };
        for cycle in 0..depth {
            client.start(cycle)?;
        }
        Ok(client)
    }

    fn start(&mut self, cycle: usize) -> Result<(), Failure> {
        self.started[cycle] = Instant::now();
        let lock = SessionLock { name: self.names[cycle].clone(), ..SessionLock::default() };
        self.ask(Asked::Lock(lock), cycle)
    }

    fn ask(&mut self, request: Asked, cycle: usize) -> Result<(), Failure> {
        self.number += 1;
        self.asked.insert(self.number, cycle);
        self.unsent.extend_from_slice(&frame(&SessionRequest { number: self.number, request: Some(request) }));
        Ok(())
    }

    async fn hear(&mut self) -> Result<(u64, Told), Failure> {
        if self.replies.is_drained() && !self.unsent.is_empty() {
            self.requests.send(self.unsent.split().freeze())?;
        }
        let message = self.replies.next().await?.ok_or_else(|| Failure::Wrong("the session has ended".to_owned()))?;
        let response: SessionResponse = decode(message)?;
        let told = response.response.ok_or_else(|| Failure::Decode("an empty answer".to_owned()))?;
        Ok((response.number, told))
    }
}

impl Operation for Client {
    /// Until the next cycle is complete; another begins in its place.
    async fn once(&mut self) -> Result<(), Failure> {
        loop {
            let (number, told) = self.hear().await?;
            let cycle = self.asked.get(&number).copied();
            match (told, cycle) {
                (Told::Granted(granted), Some(cycle)) => {
                    self.asked.remove(&number);
                    let name = self.names[cycle].clone();
                    let unlock = SessionUnlock { name, more_names: Vec::new(), fencing_token: granted.fencing_token };
                    self.ask(Asked::Unlock(unlock), cycle)?;
                }
                (Told::Unlocked(_), Some(cycle)) => {
                    self.asked.remove(&number);
                    self.took = self.started[cycle].elapsed();
                    return self.start(cycle);
                }
                (Told::Refused(refused), _) => return Err(Failure::Wrong(refused.message)),
                (Told::Lost(lost), _) => return Err(Failure::Wrong(format!("{} was lost", lost.name))),
                _ => {}
            }
        }
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }

    async fn finish(mut self) {
        // What it holds goes with it.
        let closing = self.ask(Asked::Close(SessionClose {}), usize::MAX);
        while closing.is_ok() && !matches!(self.hear().await, Ok((_, Told::Closed(_))) | Err(_)) {}
    }
}
