//! What goes into a member and comes out of it, as a line of the trace: enough to tell two runs apart, and
//! for people to follow.

use bytes::Bytes;
use tenure_machine::{MemberId, codec};
use tenure_replica::{Input, Output};

use crate::trace::{Trace, hash_of};

pub fn input(trace: &mut Trace, now_us: u64, member: MemberId, input: &Input) {
    match input {
        Input::Message { from, message } => {
            let (kind, length, hash) = (message.first(), message.len(), hash_of(message));
            trace.note(now_us, format_args!("{member} -> from {from}: kind {kind:?}, {length} bytes, {hash:016x}"));
        }
        Input::SnapshotReceived { from, machine, bytes, .. } => {
            let index = machine.applied_index();
            trace.note(now_us, format_args!("{member} -> snapshot at {index} from {from}, {bytes} bytes"));
        }
        other => trace.note(now_us, format_args!("{member} -> {other:?}")),
    }
}

pub fn output(trace: &mut Trace, now_us: u64, member: MemberId, output: &Output) {
    match output {
        Output::Send { to, message } => {
            let (kind, length, hash) = (message.first(), message.len(), hash_of(message));
            trace.note(now_us, format_args!("{member} <- to {to}: kind {kind:?}, {length} bytes, {hash:016x}"));
        }
        Output::SendSnapshot { to, index, .. } => {
            trace.note(now_us, format_args!("{member} <- snapshot at {index} to {to}"));
        }
        Output::Persist(persist) => {
            let (number, snapshot, state) = (persist.number, persist.snapshot, persist.hard_state);
            let messages = persist.messages.len();
            let line = format_args!("{member} <- persist {number}: {snapshot:?} {state:?}, {messages} messages");
            trace.note(now_us, line);
            for entry in &persist.entries {
                let (index, term, kind, hash) = (entry.index, entry.term, entry.kind, hash_of(&entry.data));
                trace.note(now_us, format_args!("{member} <- entry {index} of term {term}, kind {kind}, {hash:016x}"));
                if trace.is_kept() {
                    trace.remark(now_us, format_args!("     {}", command(&entry.data, &entry.context)));
                }
            }
        }
        other => trace.note(now_us, format_args!("{member} <- {other:?}")),
    }
}

/// For people only.
fn command(data: &Bytes, context: &Bytes) -> String {
    let encoded = if context.is_empty() { data } else { context };
    match codec::decode(encoded.clone()) {
        Ok(envelope) => format!("{:?} {:?}", envelope.command, envelope.origin),
        Err(_) => "nothing".to_owned(),
    }
}
