//! What a session tells its client, as bytes that go out together.
//!
//! Grants and releases are nearly all of it and a few bytes each: they are put together here, all others by prost.

use bytes::{Bytes, BytesMut};
use prost::Message;
use prost::encoding::encoded_len_varint;
use tenure_api::tenure::v1::session_response::Response;
use tenure_api::tenure::v1::{SessionGranted, SessionResponse, SessionUnlocked};

use crate::services::framed::FRAME_BYTES;

/// Responses that wait to be sent, each with its frame.
#[derive(Default)]
pub struct Told {
    buffer: BytesMut,
}

// The numbers of the fields, as lock.proto has them, with the kind of their values.
const NUMBER: u8 = 1 << 3;
const GRANTED: u8 = 4 << 3 | 2;
const GRANTED_TOKEN: u8 = 1 << 3;
const UNLOCKED: u8 = 6 << 3 | 2;
const UNLOCKED_RELEASED: u8 = 1 << 3;

impl Told {
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub fn take(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    pub fn add(&mut self, number: u64, response: Response) {
        match response {
            Response::Granted(SessionGranted {
                fencing_token: token @ 1..,
                renewed: false,
                slot: 0,
                ref signature,
            }) if signature.is_empty() => {
                self.add_short(number, GRANTED, Some((GRANTED_TOKEN, token as u64)));
            }
            Response::Unlocked(SessionUnlocked { released }) => {
                self.add_short(number, UNLOCKED, released.then_some((UNLOCKED_RELEASED, 1)));
            }
            response => self.add_message(&SessionResponse { number, response: Some(response) }),
        }
    }

    /// A response that is one number, if that.
    fn add_short(&mut self, number: u64, kind: u8, field: Option<(u8, u64)>) {
        let mut message = Short::default();
        if number != 0 {
            message.put(NUMBER);
            message.put_varint(number);
        }
        message.put(kind);
        message.put(field.map_or(0, |(_, value)| 1 + encoded_len_varint(value) as u8));
        if let Some((key, value)) = field {
            message.put(key);
            message.put_varint(value);
        }
        self.buffer.extend_from_slice(message.framed());
    }

    fn add_message(&mut self, message: &SessionResponse) {
        let length = message.encoded_len();
        self.buffer.reserve(FRAME_BYTES + length);
        self.buffer.extend_from_slice(&[0]);
        // The longest there is, an opened session with all its locks, is far below four gigabytes.
        self.buffer.extend_from_slice(&(length as u32).to_be_bytes());
        message.encode_raw(&mut self.buffer);
    }
}

/// A message of two numbers at most, behind its frame.
struct Short {
    bytes: [u8; Short::BYTES],
    length: usize,
}

impl Default for Short {
    fn default() -> Short {
        Short { bytes: [0; Short::BYTES], length: FRAME_BYTES }
    }
}

impl Short {
    const BYTES: usize = FRAME_BYTES + 2 * (1 + 10) + 2;

    fn put(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(value as u8 | 0x80);
            value >>= 7;
        }
        self.put(value as u8);
    }

    fn framed(&mut self) -> &[u8] {
        self.bytes[FRAME_BYTES - 1] = (self.length - FRAME_BYTES) as u8;
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::tenure::v1::{SessionQueued, SessionRefused};

    #[test]
    fn what_is_told_reads_as_its_messages() {
        let granted = |fencing_token, renewed, slot, signature: &str| {
            Response::Granted(SessionGranted { fencing_token, renewed, slot, signature: signature.to_owned() })
        };
        let refused = SessionRefused { code: 5, message: "no".repeat(300), ..SessionRefused::default() };
        let responses = [
            granted(1, false, 0, ""),
            granted(i64::MAX, false, 0, ""),
            granted(0, false, 0, ""),
            granted(5, true, 0, ""),
            granted(5, false, 2, ""),
            granted(5, false, 0, "signed"),
            Response::Unlocked(SessionUnlocked { released: true }),
            Response::Unlocked(SessionUnlocked { released: false }),
            Response::Queued(SessionQueued { ahead: 3 }),
            Response::Refused(Box::new(refused)),
        ];
        let (mut told, mut expected) = (Told::default(), Vec::new());
        for (response, number) in responses.into_iter().zip([0, 1, 127, 128, u64::MAX].into_iter().cycle()) {
            told.add(number, response.clone());
            let message = SessionResponse { number, response: Some(response) }.encode_to_vec();
            expected.extend([&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat());
        }
        assert_eq!(told.len(), expected.len());
        assert_eq!(told.take(), expected);
        assert!(told.is_empty());
    }
}
