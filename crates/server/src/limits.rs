//! What a client may ask of a member, in one place.
//!
//! A limit exists so that no single client can take memory, threads or descriptors from the others,
//! and it is checked before the memory is taken. The figures below are defaults: all but those marked
//! as fixed can be set in the `[limits]` table of the configuration. How they relate to each other
//! is asserted at compile time; what the replicated state itself enforces is in
//! [`tenure_machine::limits`] and is no setting.

use serde::{Deserialize, Serialize};
use tenure_machine::limits as machine;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The largest request that is carried out.
pub const REQUEST_BYTES: usize = MIB + MIB / 2;
/// Fixed. What a gRPC message may be larger than a request: such a message is still read, so that it
/// can be refused by name and not by a broken stream.
pub const MESSAGE_OVERHEAD_BYTES: usize = 512 * KIB;
/// Fixed. How much longer a request may be in JSON: base64 takes a third, names and nesting the rest.
pub const JSON_FACTOR: usize = 2;
pub const TRANSACTION_OPERATIONS: usize = machine::TXN_OPERATIONS;

pub const STREAMS_PER_CONNECTION: u32 = 1_000;
pub const HEADER_LIST_BYTES: u32 = 16 * KIB as u32;
/// Streams that a client opened and reset before they were looked at (the "rapid reset" attack).
pub const PENDING_RESETS: usize = 20;
pub const CONNECTIONS_PER_ADDRESS: usize = 1_000;
/// Fixed. Flow control: what a client may send ahead on a stream, and on a connection.
pub const STREAM_WINDOW_BYTES: u32 = 2 * MIB as u32;
pub const CONNECTION_WINDOW_BYTES: u32 = 8 * MIB as u32;
/// Fixed. What hyper may hold of a response that its stream cannot send yet.
pub const STREAM_SEND_BYTES: usize = 256 * KIB;

/// A connection on which nothing moves is pinged this often, and closed if it does not answer.
pub const KEEPALIVE_INTERVAL_MS: u64 = 30_000;
pub const KEEPALIVE_TIMEOUT_MS: u64 = 10_000;
/// Fixed. No setting makes the server ping more often than this.
pub const KEEPALIVE_INTERVAL_MIN_MS: u64 = 5_000;
/// Fixed. How long a new connection may take to say what it wants.
pub const FIRST_BYTE_TIMEOUT_MS: u64 = 30_000;
pub const HEADER_TIMEOUT_MS: u64 = 10_000;
/// How long calls may still run once the member was told to stop.
pub const DRAIN_MS: u64 = 5_000;

/// Fixed. The longest message of a WebSocket session: a key and a client id, however they are escaped.
pub const WEBSOCKET_MESSAGE_BYTES: usize = 16 * KIB;
/// Fixed. A client's own name for one of its requests.
pub const REQUEST_ID_BYTES: usize = 256;
/// Fixed. What a WebSocket may hold that its client does not read; replies that do not fit wait unwritten.
pub const WEBSOCKET_SEND_BYTES: usize = 64 * KIB;

/// Fixed. Messages that wait for a peer; beyond either of these the oldest are dropped.
pub const PEER_QUEUE_BYTES: usize = 32 * MIB;
pub const PEER_QUEUE_MESSAGES: usize = 4_096;
/// Fixed. Messages are sent to a peer together up to this size; a longer one goes alone.
pub const PEER_BATCH_BYTES: usize = MIB;
/// Fixed. A snapshot travels in pieces of this size.
pub const PEER_CHUNK_BYTES: usize = 256 * KIB;

/// Also the locks that one WebSocket connection may hold and wait for: each has a lease.
pub const LEASES_PER_CLIENT: usize = 100_000;
/// The shortest TTL of the native API; etcd's API counts in seconds and follows the election timeout.
pub const LEASE_TTL_MIN_MS: u64 = 500;
pub const WATCH_BUFFER_BYTES: usize = MIB;
/// Proposals that are not yet committed.
pub const INFLIGHT_BYTES: u64 = 64 * MIB as u64;

// A request that is just too large must still be readable, or the client sees a broken stream.
const _: () = assert!(MESSAGE_OVERHEAD_BYTES > 0);
// Base64 alone makes 4 bytes of 3.
const _: () = assert!(JSON_FACTOR * 3 > 4);
// One message fits into a stream's window without a pause, and several streams into the connection's.
const _: () = assert!(STREAM_WINDOW_BYTES as usize >= REQUEST_BYTES + MESSAGE_OVERHEAD_BYTES);
const _: () = assert!(CONNECTION_WINDOW_BYTES >= 2 * STREAM_WINDOW_BYTES);
// A full transaction must be able to name its keys within one request.
const _: () = assert!(REQUEST_BYTES / TRANSACTION_OPERATIONS >= machine::LOCK_NAME_BYTES);
const _: () = assert!(machine::LOCK_NAME_BYTES + machine::LOCK_METADATA_BYTES < REQUEST_BYTES);
// Several of the largest requests can be under way at once.
const _: () = assert!(INFLIGHT_BYTES as usize > 8 * REQUEST_BYTES);
const _: () = assert!(PENDING_RESETS < STREAMS_PER_CONNECTION as usize);
const _: () = assert!(KEEPALIVE_INTERVAL_MIN_MS <= KEEPALIVE_INTERVAL_MS);
const _: () = assert!(KEEPALIVE_TIMEOUT_MS >= 1_000);
const _: () = assert!(HEADER_TIMEOUT_MS <= FIRST_BYTE_TIMEOUT_MS);
const _: () = assert!(LEASE_TTL_MIN_MS < machine::LEASE_TTL_MS);
// A full batch, and a batch of one message with what is around it, are read by whoever reads the message.
const _: () = assert!(PEER_BATCH_BYTES <= PEER_QUEUE_BYTES);
const _: () = assert!(PEER_CHUNK_BYTES < PEER_BATCH_BYTES);
// JSON may write each byte of a string in six.
const _: () = assert!(WEBSOCKET_MESSAGE_BYTES > 6 * (2 * machine::LOCK_NAME_BYTES + REQUEST_ID_BYTES) + KIB);
// Whatever is told about a request is not much longer than the request itself.
const _: () = assert!(WEBSOCKET_SEND_BYTES >= 4 * WEBSOCKET_MESSAGE_BYTES);

/// The limits that an operator may set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    #[serde(with = "crate::units::size_usize")]
    pub request_bytes: usize,
    pub transaction_operations: usize,
    pub streams_per_connection: u32,
    #[serde(with = "crate::units::size_u32")]
    pub header_list_bytes: u32,
    pub pending_resets: usize,
    pub connections_per_address: usize,
    pub leases_per_client: usize,
    #[serde(with = "crate::units::size_usize")]
    pub watch_buffer_bytes: usize,
    #[serde(with = "crate::units::size_u64")]
    pub inflight_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: REQUEST_BYTES,
            transaction_operations: TRANSACTION_OPERATIONS,
            streams_per_connection: STREAMS_PER_CONNECTION,
            header_list_bytes: HEADER_LIST_BYTES,
            pending_resets: PENDING_RESETS,
            connections_per_address: CONNECTIONS_PER_ADDRESS,
            leases_per_client: LEASES_PER_CLIENT,
            watch_buffer_bytes: WATCH_BUFFER_BYTES,
            inflight_bytes: INFLIGHT_BYTES,
        }
    }
}

impl Limits {
    /// What services give tonic as the largest message to decode.
    pub fn message_bytes(&self) -> usize {
        self.request_bytes + MESSAGE_OVERHEAD_BYTES
    }

    /// The longest message between members: nothing that is replicated in one piece is longer than all that
    /// may be under way.
    pub fn peer_message_bytes(&self) -> usize {
        usize::try_from(self.inflight_bytes).unwrap_or(usize::MAX).saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    /// The longest batch of messages between members.
    pub fn peer_batch_bytes(&self) -> usize {
        self.peer_message_bytes().max(PEER_BATCH_BYTES).saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    /// The longest body, or the longest object of a streamed body, that the JSON gateway reads.
    pub fn json_bytes(&self) -> usize {
        self.message_bytes() * JSON_FACTOR
    }
}
