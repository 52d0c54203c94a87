//! Splitting a response that a client could not take in one piece.
//!
//! Only for a watch that asked for it. The pieces are as large as etcd's: each stays below what a
//! request may be, but holds one event at least; all but the last say that more follows.

use prost::Message;
use prost::encoding::{encoded_len_varint, key_len};
use tenure_api::etcdserverpb::WatchResponse;

/// The number of the field `events`.
const EVENTS: u32 = 11;
/// The field `fragment`, set.
const FRAGMENT_BYTES: usize = 2;

pub fn fragments(mut response: WatchResponse, limit: usize) -> Vec<WatchResponse> {
    if response.events.len() < 2 || response.encoded_len() < limit {
        return vec![response];
    }
    let events = std::mem::take(&mut response.events);
    let bare = response.encoded_len() + FRAGMENT_BYTES;
    let mut pieces: Vec<WatchResponse> = Vec::new();
    let mut size = bare;
    for event in events {
        let length = event.encoded_len();
        let bytes = key_len(EVENTS) + encoded_len_varint(length as u64) + length;
        match pieces.last_mut().filter(|_| size + bytes < limit) {
            Some(piece) => piece.events.push(event),
            None => {
                let piece = WatchResponse { events: vec![event], fragment: true, ..response.clone() };
                pieces.push(piece);
                size = bare;
            }
        }
        size += bytes;
    }
    if let Some(last) = pieces.last_mut() {
        last.fragment = false;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::etcdserverpb::ResponseHeader;
    use tenure_api::mvccpb;

    fn response(sizes: &[usize]) -> WatchResponse {
        let event = |(number, size): (usize, &usize)| mvccpb::Event {
            r#type: 0,
            kv: Some(mvccpb::KeyValue {
                key: number.to_string().into(),
                value: vec![0; *size].into(),
                mod_revision: 7,
                ..Default::default()
            }),
            prev_kv: None,
        };
        let header = ResponseHeader { cluster_id: u64::MAX, member_id: 1, revision: 7, raft_term: 2 };
        WatchResponse {
            header: Some(header),
            watch_id: 3,
            events: sizes.iter().enumerate().map(event).collect(),
            ..Default::default()
        }
    }

    fn counts(pieces: &[WatchResponse]) -> Vec<usize> {
        pieces.iter().map(|piece| piece.events.len()).collect()
    }

    #[test]
    fn what_fits_stays_whole() {
        let whole = response(&[100, 100]);
        assert_eq!(fragments(whole.clone(), 1000), [whole]);
        let single = response(&[5000]);
        assert_eq!(fragments(single.clone(), 1000), [single]);
    }

    #[test]
    fn pieces_stay_below_the_limit_and_lose_nothing() {
        let whole = response(&[300; 10]);
        let pieces = fragments(whole.clone(), 1000);
        assert_eq!(counts(&pieces), [3, 3, 3, 1]);
        assert!(pieces.iter().all(|piece| piece.encoded_len() < 1000));
        assert!(pieces.iter().all(|piece| piece.header == whole.header && piece.watch_id == 3));
        let more: Vec<bool> = pieces.iter().map(|piece| piece.fragment).collect();
        assert_eq!(more, [true, true, true, false]);
        let events: Vec<_> = pieces.into_iter().flat_map(|piece| piece.events).collect();
        assert_eq!(events, whole.events);
    }

    #[test]
    fn an_event_beyond_the_limit_has_a_piece_of_its_own() {
        assert_eq!(counts(&fragments(response(&[100, 5000, 100, 100]), 1000)), [1, 1, 2]);
    }
}
