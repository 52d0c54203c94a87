//! What a member says of itself, for people and for health checks.

use tenure_machine::{MemberId, Revision};

/// Taken after every step; cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    pub revision: Revision,
    pub compacted_revision: Revision,
    pub bytes: u64,
    pub bytes_live: u64,
    pub leases: u64,
    pub watches: u64,
    pub waiting_locks: u64,
    pub snapshot_index: u64,
}
