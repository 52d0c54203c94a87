//! What a member says of itself, for people and for health checks.

use std::sync::Arc;

use raft::eraftpb::ConfState;
use tenure_machine::level::Level;
use tenure_machine::{Alarm, MemberId, Revision};

use crate::Replica;

/// Taken after every step; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    pub cluster: u64,
    pub member: MemberId,
    /// 0 = unknown.
    pub leader: MemberId,
    pub learner: bool,
    pub term: u64,
    pub last_index: u64,
    pub commit_index: u64,
    pub applied_index: u64,
    /// The cluster's feature level, as applied here.
    pub level: Level,
    /// The latest one that this member supports.
    pub highest_level: Level,
    pub level_pin: Option<Level>,
    /// This member's state is known to differ from that of the others.
    pub is_corrupt: bool,
    /// This member waits for the leader's state, to put it in the place of its own.
    pub wants_state: bool,
    pub revision: Revision,
    pub compacted_revision: Revision,
    pub bytes: u64,
    pub bytes_live: u64,
    pub leases: u64,
    pub watches: u64,
    pub waiting_locks: u64,
    pub snapshot_index: u64,
    /// Alarms that are raised; mostly none.
    pub alarms: Vec<Alarm>,
    /// Those whose majority decides; in a joint configuration those who will.
    pub voters: Arc<[MemberId]>,
    pub learners: Arc<[MemberId]>,
    /// On the leader: how far each of the others is.
    pub peers: Arc<[PeerStatus]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerStatus {
    pub member: MemberId,
    /// The last index of which it is known that the member has it.
    pub matched: u64,
    /// Something was heard of it lately.
    pub active: bool,
    /// The latest feature level that it supports; `None` until it has said so, or while nothing depends on it.
    pub highest_level: Option<Level>,
}

/// Who votes and who learns, as a status shows it: shared by all that are taken between two changes.
#[derive(Clone, Default)]
pub(crate) struct Roles {
    voters: Arc<[MemberId]>,
    learners: Arc<[MemberId]>,
}

impl Roles {
    pub(crate) fn of(configuration: &ConfState) -> Roles {
        let sorted = |members: &[MemberId]| {
            let mut members = members.to_vec();
            members.sort_unstable();
            members.into()
        };
        Roles { voters: sorted(&configuration.voters), learners: sorted(&configuration.learners) }
    }
}

impl Replica {
    pub fn status(&self) -> Status {
        let state = self.machine.state();
        let Roles { voters, learners } = self.roles.clone();
        Status {
            cluster: self.config.cluster,
            member: self.config.member,
            leader: self.node.raft.leader_id,
            learner: learners.contains(&self.config.member),
            term: self.node.raft.term,
            last_index: self.node.raft.raft_log.last_index(),
            commit_index: self.node.raft.raft_log.committed,
            applied_index: self.machine.applied_index(),
            level: state.level(),
            highest_level: self.config.highest_level,
            level_pin: state.level_pin(),
            is_corrupt: self.is_corrupt(),
            wants_state: self.wants_state(),
            revision: state.revision(),
            compacted_revision: state.compacted_revision(),
            bytes: state.bytes(),
            bytes_live: state.bytes_live(),
            leases: state.lease_count(),
            watches: self.hub.watches(),
            waiting_locks: self.queued.len() as u64,
            snapshot_index: self.node.store().saved().index,
            alarms: state.alarms(),
            voters,
            learners,
            peers: self.peers(),
        }
    }

    fn peers(&self) -> Arc<[PeerStatus]> {
        if !self.is_leader() || self.is_alone() {
            return Arc::default();
        }
        let others = self.node.raft.prs().iter().filter(|(member, _)| **member != self.config.member);
        let mut peers: Vec<_> = others
            .map(|(member, progress)| PeerStatus {
                member: *member,
                matched: progress.matched,
                active: self.is_active(*member),
                highest_level: self.levels.supported_by(*member),
            })
            .collect();
        peers.sort_unstable_by_key(|peer| peer.member);
        peers.into()
    }
}
