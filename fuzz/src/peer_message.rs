//! What other members send. A member that follows and one that leads both get it, in a world of their own each time.

use bytes::Bytes;
use tenure_machine::Machine;
use tenure_replica::{
    Boot, Config, FIRST_INDEX, FIRST_TERM, HardState, Input, Now, Output, Replica, first_configuration,
};

const MEMBERS: [u64; 3] = [1, 2, 3];

/// Messages one after the other, each behind its length in two bytes; the sender is the lowest bit of that.
pub fn run(bytes: &[u8]) {
    let mut member = Member::new();
    member.step(Vec::new());
    let mut rest = bytes;
    while let [high, low, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (message, tail) = tail.split_at(length);
        let message = Bytes::copy_from_slice(message);
        member.step(vec![Input::Message { from: 2 + u64::from(low & 1), message }]);
        rest = tail;
    }
    // It goes on, whatever it was told.
    for _ in 0..4 {
        member.now_ms += 300;
        member.step(Vec::new());
    }
}

struct Member {
    replica: Replica,
    now_ms: u64,
}

impl Member {
    fn new() -> Member {
        let mut machine = Machine::new();
        machine.skip(FIRST_INDEX, FIRST_TERM);
        let boot = Boot {
            machine,
            snapshot_index: FIRST_INDEX,
            snapshot_term: FIRST_TERM,
            configuration: first_configuration(&MEMBERS),
            snapshot_bytes: 0,
            hard_state: HardState { term: FIRST_TERM, vote: 0, commit: FIRST_INDEX },
            entries: Vec::new(),
        };
        let config = Config { quota_bytes: 0, ..Config::default() };
        let replica = Replica::boot(config, boot, now(1000)).expect("a sound beginning");
        Member { replica, now_ms: 1000 }
    }

    /// What is to be persisted is persisted at once.
    fn step(&mut self, mut inputs: Vec<Input>) {
        for _ in 0..20 {
            let mut outputs = Vec::new();
            self.replica.step(now(self.now_ms), inputs.drain(..), &mut outputs);
            inputs = outputs.iter().filter_map(persisted).collect();
            if inputs.is_empty() {
                return;
            }
        }
    }
}

fn persisted(output: &Output) -> Option<Input> {
    match output {
        Output::Persist(persist) => Some(Input::Persisted { number: persist.number }),
        // A peer may say what it likes about entries, but not stop this member by it.
        Output::Fatal(reason) => panic!("{reason}"),
        _ => None,
    }
}

fn now(monotonic_ms: u64) -> Now {
    Now { monotonic_ms, wall_ms: 1_700_000_000_000 + monotonic_ms }
}

/// What a member like this one sends when it looks for votes.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut member = Member::new();
    let mut seeds = Vec::new();
    for _ in 0..20 {
        member.now_ms += 200;
        let mut outputs = Vec::new();
        member.replica.step(now(member.now_ms), std::iter::empty(), &mut outputs);
        for output in outputs {
            let messages = match output {
                Output::Send { message, .. } => vec![message],
                Output::Persist(persist) => {
                    member.replica.step(
                        now(member.now_ms),
                        [Input::Persisted { number: persist.number }],
                        &mut Vec::new(),
                    );
                    persist.messages.into_iter().map(|(_, message)| message).collect()
                }
                _ => Vec::new(),
            };
            for message in messages {
                let length = message.len() as u16;
                seeds.push([&length.to_be_bytes()[..], &message].concat());
            }
        }
    }
    seeds.truncate(20);
    seeds
}
