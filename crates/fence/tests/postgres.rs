//! The PostgreSQL adapter against a real PostgreSQL.

mod servers;

use std::cell::RefCell;
use std::sync::Barrier;
use std::thread;

use servers::{Postgres, Psql, left_out};
use tenure_fence::postgres::{AdmitError, HIGHEST, RAISE_ALL, SCHEMA, admit, guard, guarded};
use tenure_fence::{Admitted, Digest, Equal, Key, Refusal, Token};

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

/// A statement with its parameters filled in, for a client that has none.
fn filled(statement: &str, parameters: &[&str]) -> String {
    let numbered = parameters.iter().enumerate().rev();
    numbered.fold(statement.to_owned(), |statement, (position, value)| {
        statement.replace(&format!("${}", position + 1), value)
    })
}

fn prepared(postgres: &Postgres) -> Psql {
    let mut psql = postgres.connect();
    psql.run("SET client_min_messages = warning");
    psql.run(SCHEMA);
    psql.run("CREATE TABLE IF NOT EXISTS writes (number bigserial, key text, token bigint)");
    psql.run("CREATE TABLE IF NOT EXISTS counters (key text PRIMARY KEY, value bigint, token bigint)");
    psql
}

fn admit_through(psql: &mut Psql, equal: Equal, name: &str, value: u64, data: &[u8]) -> Result<Admitted, Refusal> {
    let key = Key::parse(name).unwrap();
    let psql = RefCell::new(psql);
    let outcome = admit(equal, &key, token(value), Some(Digest::of(data)), |statement, key, token, digest| {
        let digest = digest.map_or("NULL".to_owned(), |digest| {
            format!("'\\x{}'", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        });
        let statement = filled(statement, &[&format!("'{key}'"), &token.to_string(), &digest]);
        Ok::<_, String>(psql.borrow_mut().run(&statement).first().map(|row| row.parse().unwrap()))
    });
    outcome.map_err(|error| match error {
        AdmitError::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    })
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn every_policy_is_what_the_fence_in_memory_says() {
    if left_out() {
        return;
    }
    let postgres = Postgres::start();
    let mut psql = prepared(&postgres);
    for (number, equal) in [Equal::Allow, Equal::Identical, Equal::Refuse].into_iter().enumerate() {
        let mut fence = tenure_fence::Fence::new(equal);
        let name = format!("lock#{number}");
        for (value, data) in
            [(5, "a"), (5, "a"), (5, "b"), (4, "a"), (9, "c"), (8, "c"), (9, "c"), (i64::MAX as u64, "d"), (10, "d")]
        {
            let key = Key::parse(&name).unwrap();
            let expected = fence.admit(&key, token(value), Some(Digest::of(data.as_bytes())));
            let found = admit_through(&mut psql, equal, &name, value, data.as_bytes());
            assert_eq!(found.map(drop), expected.map(drop), "{equal:?} {value} {data}");
        }
    }
    assert_eq!(admit_through(&mut psql, Equal::Allow, "lock#shared", 1, b""), Err(Refusal::Shared));
    psql.run(&filled(RAISE_ALL, &["77"]));
    assert_eq!(psql.run(&filled(HIGHEST, &["'lock#1'"])), [i64::MAX.to_string()]);
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn whoever_comes_second_is_judged_by_what_the_first_one_did() {
    if left_out() {
        return;
    }
    let postgres = Postgres::start();
    let (mut first, mut second, mut observer) = (prepared(&postgres), prepared(&postgres), prepared(&postgres));
    let write = guarded(Equal::Allow, "INSERT INTO writes (key, token) SELECT $1, $2 FROM bar").unwrap();
    for (name, before, held, ended, waiting, outcome) in [
        ("new", None, 6, "COMMIT", 5, ",0"),
        ("older", Some(1), 6, "COMMIT", 5, ",0"),
        ("newer", Some(1), 6, "COMMIT", 7, "7,1"),
        ("equal", Some(1), 6, "COMMIT", 6, "6,1"),
        ("undone", Some(1), 6, "ROLLBACK", 5, "5,1"),
        ("new and undone", None, 6, "ROLLBACK", 5, "5,1"),
    ] {
        let key = format!("'{name}'");
        if let Some(before) = before {
            first.run(&filled(guard(Equal::Allow), &[&key, &i32::to_string(&before), "NULL"]));
        }
        first.run("BEGIN");
        assert_eq!(first.run(&filled(&write, &[&key, &i32::to_string(&held), "NULL"])), [format!("{held},1")]);
        let identity = second.run("SELECT pg_backend_pid()").remove(0);
        second.begin(&filled(&write, &[&key, &i32::to_string(&waiting), "NULL"]));
        // Not before it really waits.
        let waits = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {identity}");
        while observer.run(&waits) != ["Lock"] {
            thread::yield_now();
        }
        first.run(ended);
        assert_eq!(second.end(), [outcome], "{name}");
    }
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn concurrent_connections_never_write_behind_a_higher_token() {
    if left_out() {
        return;
    }
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 150;
    let postgres = Postgres::start();
    let mut psql = prepared(&postgres);
    psql.run("INSERT INTO counters VALUES ('a', 0, 0)");
    // The number is drawn after the bar's row is locked, so it tells the order in which the writes were admitted.
    let log = guarded(Equal::Allow, "INSERT INTO writes (key, token) SELECT $1, $2 FROM bar").unwrap();
    let count = guarded(
        Equal::Allow,
        "UPDATE counters SET value = value + 1, token = $2 WHERE key = $1 AND EXISTS (SELECT FROM bar)",
    )
    .unwrap();
    let round_begins = Barrier::new(WRITERS as usize);
    let admitted: u64 = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (postgres, log, count, round_begins) = (&postgres, &log, &count, &round_begins);
                scope.spawn(move || {
                    let mut psql = postgres.connect();
                    let mut admitted = 0;
                    for round in 0..ROUNDS {
                        // All of them near each other, in another order each time, so that they meet. The highest
                        // of each round is higher than all before it, so at least that one is admitted.
                        round_begins.wait();
                        let value = (round * 3 + (writer * 5 + round) % WRITERS + 1).to_string();
                        let written = psql.run(&filled(log, &["'log'", &value, "NULL"]));
                        assert!(written == [format!("{value},1")] || written == [",0"], "{written:?}");
                        let written = psql.run(&filled(count, &["'a'", &value, "NULL"]));
                        assert!(written == [format!("{value},1")] || written == [",0"], "{written:?}");
                        admitted += u64::from(written != [",0"]);
                    }
                    admitted
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    let order: Vec<u64> =
        psql.run("SELECT token FROM writes ORDER BY number").iter().map(|row| row.parse().unwrap()).collect();
    assert!(order.is_sorted(), "a write with a lower token came after one with a higher token: {order:?}");
    assert!(order.len() >= ROUNDS as usize, "hardly anything was written");
    let highest = psql.run(&filled(HIGHEST, &["'a'"])).remove(0);
    assert_eq!(psql.run("SELECT value, token FROM counters"), [format!("{admitted},{highest}")], "no update was lost");
}

#[test]
#[ignore = "needs PostgreSQL and Redis; .ci/run runs it"]
fn the_bar_and_the_write_survive_a_crash_together() {
    if left_out() {
        return;
    }
    let mut postgres = Postgres::start();
    let write = guarded(Equal::Allow, "INSERT INTO writes (key, token) SELECT $1, $2 FROM bar").unwrap();
    let mut psql = prepared(&postgres);
    assert_eq!(psql.run(&filled(&write, &["'a'", "6", "NULL"])), ["6,1"]);
    psql.run("BEGIN");
    assert_eq!(psql.run(&filled(&write, &["'a'", "9", "NULL"])), ["9,1"]);
    drop(psql);
    postgres.crash();
    let mut psql = postgres.connect();
    assert_eq!(psql.run(&filled(HIGHEST, &["'a'"])), ["6"], "what was not committed raised nothing");
    assert_eq!(psql.run(&filled(&write, &["'a'", "5", "NULL"])), [",0"]);
    assert_eq!(psql.run("SELECT token FROM writes"), ["6"]);
}
