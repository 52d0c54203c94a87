//! Single-key puts and gets on random keys of a bounded key space.
//!
//! All requests are encoded before the run, up to some number: beyond it, keys repeat sooner than
//! the key space would have them, which no server can tell.

use std::sync::Arc;

use bytes::Bytes;
use tenure_api::etcdserverpb::{PutRequest, RangeRequest};

use super::{Random, value};
use crate::drive::Operation;
use crate::plan::Plan;
use crate::wire::{Connection, Failure, Method, frame};

const ENCODED_AT_MOST: u64 = 16_384;

pub fn key(prefix: &str, number: u64) -> Bytes {
    format!("{prefix}{number:010}").into()
}

pub fn put(prefix: &str, number: u64, value: Bytes) -> Bytes {
    frame(&PutRequest { key: key(prefix, number), value, ..PutRequest::default() })
}

pub fn puts(plan: &Plan, prefix: &str) -> Vec<Bytes> {
    let value: Bytes = value(plan.value_bytes, 1).into();
    numbers(plan).map(|number| put(prefix, number, value.clone())).collect()
}

pub fn gets(plan: &Plan, prefix: &str) -> Vec<Bytes> {
    let get =
        |number| RangeRequest { key: key(prefix, number), serializable: plan.serializable, ..RangeRequest::default() };
    numbers(plan).map(|number| frame(&get(number))).collect()
}

/// Numbers of the keys that are used, spread evenly over the key space.
fn numbers(plan: &Plan) -> impl Iterator<Item = u64> {
    let (keys, encoded) = (plan.keys, plan.keys.min(ENCODED_AT_MOST));
    (0..encoded).map(move |number| (u128::from(number) * u128::from(keys) / u128::from(encoded)) as u64)
}

/// Sends random ones of the prepared requests.
pub struct Client {
    connection: Connection,
    method: Method,
    requests: Arc<Vec<Bytes>>,
    random: Random,
}

impl Client {
    pub async fn prepare(
        connection: Connection,
        path: &'static str,
        requests: Arc<Vec<Bytes>>,
        number: usize,
    ) -> Result<Client, Failure> {
        let method = connection.method(path);
        Ok(Client { connection, method, requests, random: Random::new(number as u64 + 1) })
    }
}

impl Operation for Client {
    async fn once(&mut self) -> Result<(), Failure> {
        let request = &self.requests[(self.random.next() % self.requests.len() as u64) as usize];
        self.connection.call(&self.method, request.clone()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_spread_over_the_key_space_and_stay_within_it() {
        for keys in [1, 10, 16_384, 1_000_000, u64::MAX] {
            let plan = Plan { keys, ..Plan::default() };
            let numbers: Vec<u64> = numbers(&plan).collect();
            assert_eq!(numbers.len() as u64, keys.min(ENCODED_AT_MOST));
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(*numbers.last().unwrap() < keys);
        }
    }
}
