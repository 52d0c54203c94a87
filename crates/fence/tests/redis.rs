//! The Redis adapter against a real Redis.

mod servers;

use std::convert::Infallible;
use std::thread;

use servers::{RedisServer, Resp, Value, left_out};
use tenure_fence::redis::{Redis, Reply, WRITE, WRITE_SHA1, WriteError, bar_key, write};
use tenure_fence::{Admitted, Digest, Equal, Fence, Key, Refusal, Token};

struct Client(Resp);

impl Redis for Client {
    type Error = Infallible;

    fn run(&mut self, command: &[&[u8]]) -> Result<Reply, Infallible> {
        Ok(match self.0.command(command) {
            Value::List(values) => Reply::Texts(
                values.into_iter().map(|value| if let Value::Text(text) = value { text } else { Vec::new() }).collect(),
            ),
            Value::Error(error) => Reply::Error(error),
            _ => Reply::Other,
        })
    }
}

impl Client {
    fn write(&mut self, equal: Equal, name: &str, value: u64, data: &str) -> Result<Admitted, Refusal> {
        let (key, token) = (Key::parse(name).unwrap(), Token::new(value).unwrap());
        write(self, equal, &key, token, &format!("{{{name}}}"), data.as_bytes()).map_err(|error| match error {
            WriteError::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        })
    }

    fn data(&mut self, name: &str) -> Value {
        self.0.command(&[b"GET", format!("{{{name}}}").as_bytes()])
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn every_policy_is_what_the_fence_in_memory_says() {
    if left_out() {
        return;
    }
    let server = RedisServer::start(&["--save", "", "--appendonly", "no"]);
    let mut client = Client(server.connect());
    assert_eq!(client.0.command(&[b"SCRIPT", b"LOAD", WRITE.as_bytes()]), text(WRITE_SHA1));
    assert_eq!(client.0.command(&[b"SCRIPT", b"FLUSH"]), text("OK"));
    let beyond_doubles = (1 << 53) + 1;
    let steps = [
        (5, "a"),
        (5, "a"),
        (5, "b"),
        (4, "a"),
        (10, "c"),
        (9, "c"),
        (10, "c"),
        (beyond_doubles, "d"),
        (beyond_doubles - 1, "e"),
        (beyond_doubles + 1, "f"),
        (beyond_doubles, "g"),
        (i64::MAX as u64, "h"),
    ];
    for (number, equal) in [Equal::Allow, Equal::Identical, Equal::Refuse].into_iter().enumerate() {
        let mut fence = Fence::new(equal);
        let name = format!("lock#{number}");
        let mut last = "";
        for (value, data) in steps {
            let (key, token) = (Key::parse(&name).unwrap(), Token::new(value).unwrap());
            let expected = fence.admit(&key, token, Some(Digest::of(data.as_bytes())));
            let found = client.write(equal, &name, value, data);
            assert_eq!(found.clone().map(drop), expected.map(drop), "{equal:?} {value} {data}");
            last = if found.is_ok() { data } else { last };
            assert_eq!(client.data(&name), text(last));
        }
    }
    assert_eq!(client.write(Equal::Allow, "lock#shared", 1, ""), Err(Refusal::Shared));
    let bar = bar_key(&Key::parse("lock#0").unwrap());
    assert_eq!(client.0.command(&[b"TTL", bar.as_bytes()]), Value::Number(-1), "a bar never expires");
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn concurrent_connections_leave_the_data_of_the_highest_token() {
    if left_out() {
        return;
    }
    let server = RedisServer::start(&["--save", "", "--appendonly", "no"]);
    thread::scope(|scope| {
        for writer in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut client = Client(server.connect());
                for round in 0..300 {
                    let value = round * 8 + (writer * 3 + round) % 8 + 1;
                    match client.write(Equal::Refuse, "a", value, &value.to_string()) {
                        Ok(_) | Err(Refusal::Stale { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let mut client = Client(server.connect());
    assert_eq!(client.data("a"), text("2400"));
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn an_append_only_file_that_is_always_synced_keeps_the_bar_over_a_kill() {
    if left_out() {
        return;
    }
    let mut server = RedisServer::start(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    assert!(Client(server.connect()).write(Equal::Allow, "a", 5, "five").is_ok());
    server.kill_and_restart();
    let mut client = Client(server.connect());
    let (token, highest) = (Token::new(4).unwrap(), Token::new(5).unwrap());
    assert_eq!(client.write(Equal::Allow, "a", 4, "stale"), Err(Refusal::Stale { token, highest }));
    assert_eq!(client.data("a"), text("five"));
}

/// Not a wish but a warning: this is what the settings decide.
#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn without_an_append_only_file_a_kill_takes_bar_and_data() {
    if left_out() {
        return;
    }
    let mut server = RedisServer::start(&["--save", "", "--appendonly", "no"]);
    assert!(Client(server.connect()).write(Equal::Allow, "a", 5, "five").is_ok());
    server.kill_and_restart();
    assert!(Client(server.connect()).write(Equal::Allow, "a", 4, "stale").is_ok());
}
