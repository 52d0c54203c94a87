//! The names in a data directory.

/// Held for as long as the directory is open.
pub(crate) const LOCK: &str = "LOCK";
/// Format version and identity; written last, so that its presence says "initialised".
pub(crate) const STAMP: &str = "STAMP";
/// Its presence without a stamp says "initialising was interrupted": everything may be begun anew.
pub(crate) const STAMP_TEMPORARY: &str = "STAMP.tmp";
/// The data directories of the other members.
pub(crate) const PEERS: &str = "PEERS";
pub(crate) const PEERS_TEMPORARY: &str = "PEERS.tmp";
/// Where this member listens and is found.
pub(crate) const ADDRESSES: &str = "ADDRESSES";
pub(crate) const ADDRESSES_TEMPORARY: &str = "ADDRESSES.tmp";
/// Its presence says that this member is to become a voter.
pub(crate) const CANDIDATE: &str = "CANDIDATE";
const TEMPORARY: &str = ".tmp";

/// What a name in the directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Lock,
    Stamp,
    StampTemporary,
    Peers,
    Candidate,
    Addresses,
    Segment { sequence: u64 },
    Snapshot { index: u64, term: u64 },
    Temporary,
    Foreign,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        match name {
            LOCK => return Self::Lock,
            STAMP => return Self::Stamp,
            STAMP_TEMPORARY => return Self::StampTemporary,
            PEERS => return Self::Peers,
            CANDIDATE => return Self::Candidate,
            ADDRESSES => return Self::Addresses,
            PEERS_TEMPORARY | ADDRESSES_TEMPORARY => return Self::Temporary,
            _ => {}
        }
        let (stem, temporary) = match name.strip_suffix(TEMPORARY) {
            Some(stem) => (stem, true),
            None => (name, false),
        };
        let parsed = if let Some(rest) = stem.strip_prefix("log-") {
            parse_number(rest).map(|sequence| Self::Segment { sequence })
        } else if let Some(rest) = stem.strip_prefix("snapshot-") {
            // A temporary one carries a number, so that two writers never share a file.
            let rest = if temporary { rest.split('.').next().unwrap_or(rest) } else { rest };
            rest.split_once('-').and_then(|(index, term)| {
                Some(Self::Snapshot { index: parse_number(index)?, term: parse_number(term)? })
            })
        } else {
            None
        };
        match parsed {
            Some(_) if temporary => Self::Temporary,
            Some(name) => name,
            None => Self::Foreign,
        }
    }
}

pub(crate) fn segment_name(sequence: u64) -> String {
    format!("log-{sequence:016x}")
}

pub(crate) fn segment_temporary_name(sequence: u64) -> String {
    format!("log-{sequence:016x}{TEMPORARY}")
}

pub(crate) fn snapshot_name(index: u64, term: u64) -> String {
    format!("snapshot-{index:016x}-{term:016x}")
}

pub(crate) fn snapshot_temporary_name(index: u64, term: u64, number: u64) -> String {
    format!("snapshot-{index:016x}-{term:016x}.{number}{TEMPORARY}")
}

fn parse_number(text: &str) -> Option<u64> {
    let canonical = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if canonical { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        assert_eq!(Name::parse(&segment_name(0xabc)), Name::Segment { sequence: 0xabc });
        assert_eq!(Name::parse(&segment_temporary_name(7)), Name::Temporary);
        assert_eq!(Name::parse(&snapshot_name(9, 2)), Name::Snapshot { index: 9, term: 2 });
        assert_eq!(Name::parse(&snapshot_temporary_name(9, 2, 31)), Name::Temporary);
        assert_eq!(Name::parse(STAMP), Name::Stamp);
        assert_eq!(Name::parse(PEERS), Name::Peers);
        assert_eq!(Name::parse(CANDIDATE), Name::Candidate);
        assert_eq!(Name::parse(ADDRESSES), Name::Addresses);
        assert_eq!(Name::parse(ADDRESSES_TEMPORARY), Name::Temporary);
        assert_eq!(Name::parse(PEERS_TEMPORARY), Name::Temporary);
        assert_eq!(Name::parse(STAMP_TEMPORARY), Name::StampTemporary);
    }

    #[test]
    fn only_our_own_spelling_counts() {
        for name in ["log-1", "log-000000000000000G", "log-+00000000000001f", "notes.tmp", "snapshot-1-2", "log-"] {
            assert_eq!(Name::parse(name), Name::Foreign, "{name}");
        }
    }
}
