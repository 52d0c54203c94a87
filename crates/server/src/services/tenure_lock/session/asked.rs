//! What a client asks on its session, from the bytes of a message.
//!
//! Nearly all are locks and unlocks, so those are read where they lie, straight into the command that they become.
//! Whatever is unusual in them (fields that this version does not know, text that is no text, a request twice in one
//! message) is left to prost, as are all other requests: what they mean is its to say, and the two agree.

use bytes::Bytes;
use prost::Message;
use tenure_api::tenure::v1::session_request::Request;
use tenure_api::tenure::v1::{SessionLock, SessionRequest, SessionUnlock};
use tenure_machine::{Lock, Unlock};
use tonic::Status;

use crate::services::tenure_lock::request::AskedLock;

pub struct Asked {
    pub number: u64,
    pub what: AskedFor,
}

pub enum AskedFor {
    Lock(AskedLock),
    /// Unchecked, and of no epoch.
    Unlock(Unlock),
    /// Boxed: these are rare, and large beside the others.
    Other(Box<Option<Request>>),
}

/// `message` lies in `whole`, and so do the names of what is asked for: they keep it in memory.
pub fn decode(whole: &Bytes, message: &[u8]) -> Result<Asked, Status> {
    match decode_usual(whole, message) {
        Ok(asked) => Ok(asked),
        Err(Unusual) => {
            let asked = SessionRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
            Ok(Asked::from(asked))
        }
    }
}

impl From<SessionRequest> for Asked {
    fn from(SessionRequest { number, request }: SessionRequest) -> Asked {
        let what = match request {
            Some(Request::Lock(lock)) => AskedFor::Lock(lock.into()),
            Some(Request::Unlock(SessionUnlock { name, more_names, fencing_token })) => {
                let names = std::iter::once(name).chain(more_names).map(Bytes::from).collect();
                AskedFor::Unlock(Unlock { names, token: fencing_token, epoch: 0 })
            }
            other => AskedFor::Other(Box::new(other)),
        };
        Asked { number, what }
    }
}

impl From<SessionLock> for AskedLock {
    fn from(asked: SessionLock) -> AskedLock {
        let SessionLock { name, more_names, metadata, timeout_ms, mode, slots, holder_id, owner, value } = asked;
        let lock = Box::new(Lock {
            name: name.into(),
            more_names: more_names.into_iter().map(Bytes::from).collect(),
            metadata,
            holder: holder_id.into(),
            owner: owner.into(),
            ..Lock::default()
        });
        let mut asked = AskedLock { lock, mode, slots, timeout_ms };
        if let Some(value) = value {
            asked.stand(value);
        }
        asked
    }
}

/// Not for the short way.
#[derive(Debug)]
struct Unusual;

// The numbers of the fields, as lock.proto has them.
const NUMBER: u64 = 1;
const LOCK: u64 = 3;
const UNLOCK: u64 = 4;

fn decode_usual(whole: &Bytes, message: &[u8]) -> Result<Asked, Unusual> {
    let (mut number, mut what) = (0, None);
    let mut fields = Fields { rest: message };
    while let Some((field, value)) = fields.next()? {
        match (field, value, &what) {
            (NUMBER, Value::Number(value), _) => number = value,
            (LOCK, Value::Bytes(lock), None) => what = Some(AskedFor::Lock(decode_lock(whole, lock)?)),
            (UNLOCK, Value::Bytes(unlock), None) => what = Some(AskedFor::Unlock(decode_unlock(whole, unlock)?)),
            _ => return Err(Unusual),
        }
    }
    Ok(Asked { number, what: what.ok_or(Unusual)? })
}

fn decode_lock(whole: &Bytes, message: &[u8]) -> Result<AskedLock, Unusual> {
    let mut asked = AskedLock::default();
    let mut fields = Fields { rest: message };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(name)) => asked.lock.name = text(whole, name)?,
            (2, Value::Bytes(name)) => asked.lock.more_names.push(text(whole, name)?),
            (3, Value::Bytes(metadata)) => asked.lock.metadata = whole.slice_ref(metadata),
            (4, Value::Number(timeout_ms)) => asked.timeout_ms = Some(timeout_ms as i64),
            (5, Value::Number(mode)) => asked.mode = mode as i32,
            (6, Value::Number(slots)) => asked.slots = slots as u32,
            (7, Value::Bytes(holder)) => asked.lock.holder = text(whole, holder)?,
            (8, Value::Bytes(owner)) => asked.lock.owner = text(whole, owner)?,
            (9, Value::Bytes(value)) => asked.stand(whole.slice_ref(value)),
            _ => return Err(Unusual),
        }
    }
    Ok(asked)
}

fn decode_unlock(whole: &Bytes, message: &[u8]) -> Result<Unlock, Unusual> {
    let mut unlock = Unlock { names: vec![Bytes::new()], token: 0, epoch: 0 };
    let mut fields = Fields { rest: message };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(name)) => unlock.names[0] = text(whole, name)?,
            (2, Value::Bytes(name)) => unlock.names.push(text(whole, name)?),
            (3, Value::Number(token)) => unlock.token = token as i64,
            _ => return Err(Unusual),
        }
    }
    Ok(unlock)
}

fn text(whole: &Bytes, bytes: &[u8]) -> Result<Bytes, Unusual> {
    // Names are short and nearly always plain, which is seen sooner.
    match bytes.is_ascii() || std::str::from_utf8(bytes).is_ok() {
        true => Ok(whole.slice_ref(bytes)),
        false => Err(Unusual),
    }
}

/// The fields of a protobuf message.
struct Fields<'a> {
    rest: &'a [u8],
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Unusual> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            2 => {
                let length = usize::try_from(self.number()?).map_err(|_| Unusual)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Unusual)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            _ => return Err(Unusual),
        };
        Ok(Some((key >> 3, value)))
    }

    /// Of up to nine bytes: what takes more is negative or wrong.
    fn number(&mut self) -> Result<u64, Unusual> {
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0;
        for (place, byte) in self.rest.iter().take(9).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return Ok(number);
            }
        }
        Err(Unusual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::tenure::v1::{SessionCancel, SessionOpen, SessionRenew};

    fn locks() -> Vec<SessionLock> {
        let plain = SessionLock { name: "job/ä".to_owned(), ..SessionLock::default() };
        let full = SessionLock {
            more_names: vec!["b".to_owned(), String::new()],
            metadata: Bytes::from_static(b"\xff\0"),
            timeout_ms: Some(0),
            mode: 2,
            slots: 3,
            holder_id: "me".to_owned(),
            owner: "flow".to_owned(),
            value: Some(Bytes::new()),
            ..plain.clone()
        };
        let negative = SessionLock { timeout_ms: Some(-1), mode: -7, ..plain.clone() };
        vec![SessionLock::default(), plain, full, negative]
    }

    fn requests() -> Vec<SessionRequest> {
        let unlock = |name: &str, more: &[&str], fencing_token| SessionUnlock {
            name: name.to_owned(),
            more_names: more.iter().map(|name| (*name).to_owned()).collect(),
            fencing_token,
        };
        let unlocks = [unlock("", &[], 0), unlock("a", &[], i64::MAX), unlock("a", &["b", "c"], -1)];
        let others = [
            Request::Open(SessionOpen { session_id: 7, ttl_ms: 1000, client_id: "c".to_owned() }),
            Request::Renew(SessionRenew {}),
            Request::Cancel(SessionCancel { number: 3 }),
        ];
        let locks = locks().into_iter().map(Request::Lock);
        let all = locks.chain(unlocks.map(Request::Unlock)).chain(others).map(Some).chain([None]);
        let numbers = [0, 1, 127, 128, u64::MAX].into_iter().cycle();
        all.zip(numbers).map(|(request, number)| SessionRequest { number, request }).collect()
    }

    /// As if they were compared themselves.
    fn described(asked: &Asked) -> String {
        match &asked.what {
            AskedFor::Lock(AskedLock { lock, mode, slots, timeout_ms }) => {
                format!("{} {lock:?} {mode} {slots} {timeout_ms:?}", asked.number)
            }
            AskedFor::Unlock(unlock) => format!("{} {unlock:?}", asked.number),
            AskedFor::Other(other) => format!("{} {other:?}", asked.number),
        }
    }

    fn check(message: Vec<u8>) {
        let whole = Bytes::from(message);
        match SessionRequest::decode(&whole[..]) {
            Ok(expected) => {
                let asked = decode(&whole, &whole).expect("prost reads it");
                assert_eq!(described(&asked), described(&Asked::from(expected)), "{whole:?}");
            }
            Err(_) => assert_eq!(decode(&whole, &whole).err().map(|status| status.code()), Some(tonic::Code::Internal)),
        }
    }

    #[test]
    fn the_short_way_reads_what_prost_reads() {
        for request in requests() {
            check(request.encode_to_vec());
        }
        for [first, second] in requests().windows(2).map(|pair| [&pair[0], &pair[1]]) {
            // One after the other they are one message, in which the later request counts or is joined.
            check([first.encode_to_vec(), second.encode_to_vec()].concat());
        }
    }

    #[test]
    fn damaged_messages_are_refused_or_read_as_prost_reads_them() {
        for message in requests().iter().map(Message::encode_to_vec) {
            for place in 0..message.len() {
                check(message[..place].to_vec());
                for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                    let mut damaged = message.clone();
                    damaged[place] ^= flip;
                    check(damaged);
                }
            }
        }
    }

    #[test]
    fn locks_and_unlocks_take_the_short_way() {
        let short = |request: &SessionRequest| {
            let whole = Bytes::from(request.encode_to_vec());
            decode_usual(&whole, &whole).is_ok()
        };
        let lock = Request::Lock(locks()[2].clone());
        assert!(short(&SessionRequest { number: 5, request: Some(lock) }));
        let unlock = SessionUnlock { name: "a".to_owned(), more_names: Vec::new(), fencing_token: 1 << 40 };
        assert!(short(&SessionRequest { number: 5, request: Some(Request::Unlock(unlock)) }));
    }
}
