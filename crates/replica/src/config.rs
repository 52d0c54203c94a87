//! What a replica is told when it starts.

use bytes::Bytes;
use tenure_machine::level::{self, Level};
use tenure_machine::{Command, Machine, Member, MemberChange, MemberId, codec};

use crate::members::each;
use crate::{HardState, LogEntry};

#[derive(Debug, Clone)]
pub struct Config {
    pub cluster: u64,
    pub member: MemberId,
    /// Drawn anew each time the process starts.
    pub boot: u64,
    /// The latest feature level that this member takes part in; no more than [`level::HIGHEST`].
    pub highest_level: Level,
    /// All of this replica's randomness follows from it.
    pub seed: u64,
    pub tick_ms: u64,
    pub heartbeat_ms: u64,
    pub election_min_ms: u64,
    pub election_max_ms: u64,
    /// A call that could not be answered for so long is told that it timed out.
    pub call_timeout_ms: u64,
    /// How long a place behind others in a queue may wait for a command to be proposed with. 0 = not at all.
    pub join_patience_ms: u64,
    /// No snapshot before the log has grown by this much, however small the data.
    pub snapshot_floor_bytes: u64,
    /// Applied entries kept in memory for members that lag a little.
    pub log_tail_bytes: u64,
    /// More of them are kept, up to this, while a member catches up.
    pub catch_up_bytes: u64,
    /// Proposals not yet committed; beyond it new ones are refused at once.
    pub inflight_bytes: u64,
    /// What a stream of watches may have undelivered before its watches read on from history.
    pub watch_buffer_bytes: usize,
    /// Over it the store raises the alarm and takes no more. 0 = no quota.
    pub quota_bytes: u64,
    /// History older than this is compacted. 0 = kept.
    pub history_age_ms: u64,
    /// History beyond this is compacted. 0 = kept.
    pub history_bytes: u64,
    /// A range of more keys than this is answered with a view, to be read on another thread.
    pub range_budget: usize,
    /// How often the members' states are compared; less often where hashing a state takes long. 0 = never.
    pub compare_interval_ms: u64,
    /// Leases and keys that one command may end; what is due beyond that ends by the next one.
    pub expiry_budget: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cluster: 1,
            member: 1,
            boot: 1,
            highest_level: level::HIGHEST,
            seed: 1,
            tick_ms: 10,
            heartbeat_ms: 50,
            election_min_ms: 500,
            election_max_ms: 1000,
            call_timeout_ms: 7000,
            join_patience_ms: 5,
            snapshot_floor_bytes: 64 << 20,
            log_tail_bytes: 4 << 20,
            catch_up_bytes: 256 << 20,
            inflight_bytes: 64 << 20,
            watch_buffer_bytes: 1 << 20,
            quota_bytes: 8 << 30,
            history_age_ms: 60 * 60 * 1000,
            history_bytes: 1 << 30,
            range_budget: 128,
            compare_interval_ms: 60_000,
            expiry_budget: 2000,
        }
    }
}

/// What the storage gave back: the newest snapshot's state and the log behind it.
pub struct Boot {
    pub machine: Machine,
    pub snapshot_index: u64,
    pub snapshot_term: u64,
    /// As [`first_configuration`] or [`crate::SaveSnapshot`] gave it.
    pub configuration: Bytes,
    pub snapshot_bytes: u64,
    pub hard_state: HardState,
    /// Contiguous, from `snapshot_index + 1` on.
    pub entries: Vec<LogEntry>,
}

impl Boot {
    /// Of a member that joins a cluster which is there already: it knows nothing until it is sent a snapshot.
    pub fn joining() -> Boot {
        Boot {
            machine: Machine::new(),
            snapshot_index: 0,
            snapshot_term: 0,
            configuration: first_configuration(&[]),
            snapshot_bytes: 0,
            hard_state: HardState::default(),
            entries: Vec::new(),
        }
    }

    /// Who belongs to the cluster, and where they are, as far as the log says: what it holds is not applied before it
    /// is known to be committed, and by then a member must have its addresses.
    pub fn members(&self) -> Vec<Member> {
        let mut members = self.machine.state().members();
        for entry in &self.entries {
            // Changes of raft's configuration carry the command along.
            let data = if entry.context.is_empty() { &entry.data } else { &entry.context };
            let Ok(envelope) = codec::decode(data.clone()) else { continue };
            match envelope.command {
                Command::Publish(member) => list(&mut members, &MemberChange::Update { member }),
                Command::ChangeMembers(change) => each(&change).iter().for_each(|change| list(&mut members, change)),
                _ => {}
            }
        }
        members
    }
}

fn list(members: &mut Vec<Member>, change: &MemberChange) {
    match change {
        MemberChange::Add { member } | MemberChange::Update { member } => {
            members.retain(|known| known.id != member.id);
            members.push(member.clone());
        }
        MemberChange::Remove { id, .. } => members.retain(|known| known.id != *id),
        MemberChange::Promote { .. } | MemberChange::Together(_) => {}
    }
}

/// The index and term of the state that a new cluster starts from: raft needs the first
/// configuration to stand in a snapshot, or a learner that joins later finds no voters.
pub const FIRST_INDEX: u64 = 1;
pub const FIRST_TERM: u64 = 1;

/// The configuration of a new cluster with these voters.
pub fn first_configuration(voters: &[MemberId]) -> Bytes {
    encode_configuration(&raft::eraftpb::ConfState { voters: voters.to_vec(), ..Default::default() })
}

pub(crate) fn encode_configuration(configuration: &raft::eraftpb::ConfState) -> Bytes {
    prost011::Message::encode_to_vec(configuration).into()
}

pub(crate) fn decode_configuration(bytes: &[u8]) -> Option<raft::eraftpb::ConfState> {
    prost011::Message::decode(bytes).ok()
}

#[cfg(test)]
mod tests {
    use tenure_machine::Envelope;

    use super::*;

    fn member(id: MemberId, address: &str) -> Member {
        Member { id, name: format!("n{id}"), peer_urls: vec![address.to_owned()], client_urls: vec![], learner: false }
    }

    fn encoded(command: Command) -> Bytes {
        let mut bytes = Vec::new();
        codec::encode(&Envelope { wall_ms: 0, origin: None, command }, &mut bytes);
        bytes.into()
    }

    #[test]
    fn members_are_as_the_log_has_them() {
        let mut boot = Boot::joining();
        let publish = |id, address| encoded(Command::Publish(member(id, address)));
        let change = |change| encoded(Command::ChangeMembers(change));
        let entries = [
            (publish(1, "a:1"), Bytes::new()),
            (publish(2, "b:1"), Bytes::new()),
            (Bytes::from_static(b"of raft"), change(MemberChange::Add { member: member(3, "c:1") })),
            (change(MemberChange::Update { member: member(2, "b:2") }), Bytes::new()),
            (Bytes::from_static(b"of raft"), change(MemberChange::Remove { id: 1, force: false })),
            (Bytes::from_static(b"no command"), Bytes::new()),
        ];
        let entry = |(index, (data, context))| LogEntry { index, term: 1, kind: 0, data, context };
        boot.entries = (1..).zip(entries).map(entry).collect();
        let mut members = boot.members();
        members.sort_by_key(|member| member.id);
        assert_eq!(members, [member(2, "b:2"), member(3, "c:1")]);
    }
}
