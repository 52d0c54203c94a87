//! Lock and unlock over Tenure's session stream: each client is one stream with several cycles of
//! lock and unlock in flight, each on a name of its own.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use prost::Message;
use tenure_api::tenure::v1::session_request::Request as Asked;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{SessionClose, SessionLock, SessionOpen, SessionRequest, SessionResponse, SessionUnlock};

use crate::drive::Operation;
use crate::wire::{Connection, Failure, Replies, Requests, frame_into};

const TTL_MS: i64 = 600_000;

pub struct Client {
    requests: Requests,
    replies: Replies,
    names: Vec<String>,
    started: Vec<Instant>,
    /// The request of each cycle that is under way. They are few: to look through them costs less than to hash.
    asked: Vec<u64>,
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
            asked: vec![0; depth],
            number: 0,
            took: Duration::ZERO,
            unsent: BytesMut::new(),
        };
        let open = SessionOpen { session_id: 0, ttl_ms: TTL_MS, client_id: format!("bench {number}") };
        client.ask(Asked::Open(open));
        let Told::Opened(_) = client.hear().await?.1 else {
            return Err(Failure::Wrong("the session was not opened".to_owned()));
        };
        for cycle in 0..depth {
            client.start(cycle);
        }
        Ok(client)
    }

    fn start(&mut self, cycle: usize) {
        self.started[cycle] = Instant::now();
        let lock = SessionLock { name: self.names[cycle].clone(), ..SessionLock::default() };
        self.asked[cycle] = self.ask(Asked::Lock(lock));
    }

    /// Gives the request's number.
    fn ask(&mut self, request: Asked) -> u64 {
        self.number += 1;
        frame_into(&mut self.unsent, &SessionRequest { number: self.number, request: Some(request) });
        self.number
    }

    async fn hear(&mut self) -> Result<(u64, Told), Failure> {
        if self.replies.is_drained() && !self.unsent.is_empty() {
            self.requests.send(self.unsent.split().freeze())?;
        }
        let message = self.replies.next().await?.ok_or_else(|| Failure::Wrong("the session has ended".to_owned()))?;
        let response = SessionResponse::decode(&message[..]).map_err(|error| Failure::Decode(error.to_string()))?;
        let told = response.response.ok_or_else(|| Failure::Decode("an empty answer".to_owned()))?;
        Ok((response.number, told))
    }
}

impl Operation for Client {
    /// Until the next cycle is complete; another begins in its place.
    async fn once(&mut self) -> Result<(), Failure> {
        loop {
            let (number, told) = self.hear().await?;
            let cycle = self.asked.iter().position(|asked| *asked == number);
            match (told, cycle) {
                (Told::Granted(granted), Some(cycle)) => {
                    let name = self.names[cycle].clone();
                    let unlock = SessionUnlock { name, more_names: Vec::new(), fencing_token: granted.fencing_token };
                    self.asked[cycle] = self.ask(Asked::Unlock(unlock));
                }
                (Told::Unlocked(_), Some(cycle)) => {
                    self.took = self.started[cycle].elapsed();
                    self.start(cycle);
                    return Ok(());
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
        self.ask(Asked::Close(SessionClose {}));
        while !matches!(self.hear().await, Ok((_, Told::Closed(_))) | Err(_)) {}
    }
}
