//! What members say to each other: a byte for the kind, then raft's own encoding or ours.
//!
//! The transport carries these as bytes and looks into none. Each may be lost, come twice, late or
//! out of order. Whatever does not decode is dropped as if the network had lost it.

use bytes::Bytes;
use prost011::Message as _;
use raft::eraftpb::{Message, MessageType};
use tenure_machine::encoding::{ReadResult, Reader, put_bytes, put_signed, put_varint};
use tenure_machine::level::Level;
use tenure_machine::{Envelope, MemberId, Refusal, codec};

use crate::question::{LeaderAnswer, Question};
use crate::{Failure, LeaseStatus};

#[derive(Debug)]
pub(crate) enum PeerMessage {
    Raft(Box<Message>),
    /// A member has learnt who leads in `term`.
    Hello {
        term: u64,
        boot: u64,
    },
    /// The leader's answer: what this boot forwards under this number it will take.
    Welcome {
        term: u64,
        boot: u64,
        session: u64,
    },
    /// For the leader of `term` to propose.
    Commands {
        term: u64,
        boot: u64,
        session: u64,
        commands: Vec<Envelope>,
    },
    /// For the leader of `term` to answer.
    Questions {
        term: u64,
        boot: u64,
        questions: Vec<(u64, Question)>,
    },
    Answers {
        boot: u64,
        answers: Vec<(u64, LeaderAnswer)>,
    },
    /// The leader of `term` is to give its place to another.
    Transfer {
        term: u64,
        to: Option<MemberId>,
    },
    /// A member has heard from no leader for long, and has applied no more than this.
    Presence {
        cluster: u64,
        applied: u64,
    },
    /// To one that is no member any more, as of this index.
    Removed {
        cluster: u64,
        applied: u64,
    },
    /// The leader of `term` still led after it was asked this, see [`crate::vouch`].
    Vouch {
        term: u64,
        committed: u64,
        question: Bytes,
    },
    /// The leader of `term` asks which feature level a member supports. Earlier releases ignore it.
    AskLevel {
        term: u64,
    },
    /// The answer.
    TellLevel {
        term: u64,
        highest: Level,
    },
    /// The leader of `term` asks for the hash of a member's state at an index.
    AskHash {
        term: u64,
        index: u64,
    },
    /// The answer.
    TellHash {
        term: u64,
        index: u64,
        hash: u64,
    },
    /// The leader of `term` has not proposed these, and will not.
    Refusals {
        term: u64,
        boot: u64,
        refusals: Vec<(u64, Failure)>,
    },
}

/// The kind; a message's first byte.
mod tag {
    pub const RAFT: u8 = 0;
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const COMMANDS: u8 = 3;
    pub const REFUSALS: u8 = 4;
    pub const QUESTIONS: u8 = 5;
    pub const ANSWERS: u8 = 6;
    pub const TRANSFER: u8 = 7;
    pub const PRESENCE: u8 = 8;
    pub const REMOVED: u8 = 9;
    pub const VOUCH: u8 = 10;
    pub const ASK_LEVEL: u8 = 11;
    pub const TELL_LEVEL: u8 = 12;
    pub const ASK_HASH: u8 = 13;
    pub const TELL_HASH: u8 = 14;
}

pub(crate) fn encode_raft(message: &Message) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + message.encoded_len());
    bytes.push(tag::RAFT);
    message.encode(&mut bytes).expect("a Vec takes any length");
    bytes.into()
}

pub(crate) fn hello(term: u64, boot: u64) -> Bytes {
    encode_numbers(tag::HELLO, [term, boot]).into()
}

pub(crate) fn welcome(term: u64, boot: u64, session: u64) -> Bytes {
    encode_numbers(tag::WELCOME, [term, boot, session]).into()
}

pub(crate) fn commands<'a>(
    term: u64,
    boot: u64,
    session: u64,
    commands: impl ExactSizeIterator<Item = &'a Bytes>,
) -> Bytes {
    let mut into = encode_numbers(tag::COMMANDS, [term, boot, session, commands.len() as u64]);
    for command in commands {
        put_bytes(&mut into, command);
    }
    into.into()
}

pub(crate) fn refusals(term: u64, boot: u64, refusals: &[(u64, Failure)]) -> Bytes {
    let mut into = encode_numbers(tag::REFUSALS, [term, boot, refusals.len() as u64]);
    for (sequence, failure) in refusals {
        put_varint(&mut into, *sequence);
        into.push(failure_code(failure));
    }
    into.into()
}

pub(crate) fn questions<'a>(
    term: u64,
    boot: u64,
    questions: impl ExactSizeIterator<Item = (u64, &'a Question)>,
) -> Bytes {
    let mut into = encode_numbers(tag::QUESTIONS, [term, boot, questions.len() as u64]);
    for (number, question) in questions {
        put_varint(&mut into, number);
        match question {
            Question::KeepAlive { lease, epoch } => {
                into.push(1);
                put_signed(&mut into, *lease);
                put_varint(&mut into, *epoch);
            }
            Question::TimeToLive(lease) => {
                into.push(2);
                put_signed(&mut into, *lease);
            }
            Question::Times(leases) => {
                into.push(3);
                put_varint(&mut into, leases.len() as u64);
                leases.iter().for_each(|lease| put_signed(&mut into, *lease));
            }
        }
    }
    into.into()
}

pub(crate) fn answers(boot: u64, answers: &[(u64, LeaderAnswer)]) -> Bytes {
    let mut into = encode_numbers(tag::ANSWERS, [boot, answers.len() as u64]);
    for (number, answer) in answers {
        put_varint(&mut into, *number);
        match answer {
            LeaderAnswer::KeptAlive { ttl_ms } => {
                into.push(1);
                into.push(u8::from(ttl_ms.is_some()));
                put_varint(&mut into, ttl_ms.unwrap_or(0));
            }
            LeaderAnswer::SessionResumed => into.push(2),
            LeaderAnswer::TimeToLive(status) => {
                into.push(3);
                put_status(&mut into, status);
            }
            LeaderAnswer::Times(times) => {
                into.push(4);
                put_varint(&mut into, times.len() as u64);
                times.iter().for_each(|status| put_status(&mut into, status));
            }
        }
    }
    into.into()
}

pub(crate) fn transfer(term: u64, to: Option<MemberId>) -> Bytes {
    encode_numbers(tag::TRANSFER, [term, to.unwrap_or(raft::INVALID_ID)]).into()
}

pub(crate) fn presence(cluster: u64, applied: u64) -> Bytes {
    encode_numbers(tag::PRESENCE, [cluster, applied]).into()
}

pub(crate) fn removed(cluster: u64, applied: u64) -> Bytes {
    encode_numbers(tag::REMOVED, [cluster, applied]).into()
}

pub(crate) fn vouch(term: u64, committed: u64, question: &[u8]) -> Bytes {
    let mut into = encode_numbers(tag::VOUCH, [term, committed]);
    put_bytes(&mut into, question);
    into.into()
}

pub(crate) fn ask_level(term: u64) -> Bytes {
    encode_numbers(tag::ASK_LEVEL, [term]).into()
}

pub(crate) fn tell_level(term: u64, highest: Level) -> Bytes {
    encode_numbers(tag::TELL_LEVEL, [term, u64::from(highest)]).into()
}

pub(crate) fn ask_hash(term: u64, index: u64) -> Bytes {
    encode_numbers(tag::ASK_HASH, [term, index]).into()
}

pub(crate) fn tell_hash(term: u64, index: u64, hash: u64) -> Bytes {
    encode_numbers(tag::TELL_HASH, [term, index, hash]).into()
}

fn put_status(into: &mut Vec<u8>, status: &Option<LeaseStatus>) {
    into.push(match status {
        None => 0,
        Some(LeaseStatus { renewed: true, .. }) => 1,
        Some(LeaseStatus { renewed: false, .. }) => 2,
    });
    if let Some(LeaseStatus { lease, ttl_ms, remaining_ms, .. }) = status {
        put_signed(into, *lease);
        put_varint(into, *ttl_ms);
        put_varint(into, *remaining_ms);
    }
}

fn encode_numbers<const N: usize>(tag: u8, numbers: [u64; N]) -> Vec<u8> {
    let mut into = vec![tag];
    for number in numbers {
        put_varint(&mut into, number);
    }
    into
}

pub(crate) fn decode(bytes: &Bytes) -> Option<PeerMessage> {
    let (tag, rest) = bytes.split_first()?;
    if *tag == tag::RAFT {
        return Message::decode(bytes.slice(1..)).ok().map(|message| PeerMessage::Raft(Box::new(message)));
    }
    let mut reader = Reader::new(rest);
    let message = decode_own(*tag, &mut reader, bytes).ok()?;
    reader.finish().ok()?;
    Some(message)
}

fn decode_own(tag: u8, reader: &mut Reader, whole: &Bytes) -> ReadResult<PeerMessage> {
    Ok(match tag {
        tag::HELLO => PeerMessage::Hello { term: reader.varint()?, boot: reader.varint()? },
        tag::WELCOME => {
            PeerMessage::Welcome { term: reader.varint()?, boot: reader.varint()?, session: reader.varint()? }
        }
        tag::COMMANDS => PeerMessage::Commands {
            term: reader.varint()?,
            boot: reader.varint()?,
            session: reader.varint()?,
            commands: (0..reader.count()?).map(|_| decode_command(reader, whole)).collect::<ReadResult<_>>()?,
        },
        tag::REFUSALS => PeerMessage::Refusals {
            term: reader.varint()?,
            boot: reader.varint()?,
            refusals: (0..reader.count()?)
                .map(|_| Ok((reader.varint()?, failure_of_code(reader.byte()?)?)))
                .collect::<ReadResult<_>>()?,
        },
        tag::QUESTIONS => PeerMessage::Questions {
            term: reader.varint()?,
            boot: reader.varint()?,
            questions: (0..reader.count()?)
                .map(|_| Ok((reader.varint()?, decode_question(reader)?)))
                .collect::<ReadResult<_>>()?,
        },
        tag::ANSWERS => PeerMessage::Answers {
            boot: reader.varint()?,
            answers: (0..reader.count()?)
                .map(|_| Ok((reader.varint()?, decode_answer(reader)?)))
                .collect::<ReadResult<_>>()?,
        },
        tag::TRANSFER => PeerMessage::Transfer {
            term: reader.varint()?,
            to: Some(reader.varint()?).filter(|member| *member != raft::INVALID_ID),
        },
        tag::PRESENCE => PeerMessage::Presence { cluster: reader.varint()?, applied: reader.varint()? },
        tag::REMOVED => PeerMessage::Removed { cluster: reader.varint()?, applied: reader.varint()? },
        tag::VOUCH => PeerMessage::Vouch {
            term: reader.varint()?,
            committed: reader.varint()?,
            question: whole.slice_ref(reader.bytes()?),
        },
        tag::ASK_LEVEL => PeerMessage::AskLevel { term: reader.varint()? },
        tag::TELL_LEVEL => PeerMessage::TellLevel {
            term: reader.varint()?,
            highest: Level::try_from(reader.varint()?).map_err(|_| "a feature level beyond all")?,
        },
        tag::ASK_HASH => PeerMessage::AskHash { term: reader.varint()?, index: reader.varint()? },
        tag::TELL_HASH => {
            PeerMessage::TellHash { term: reader.varint()?, index: reader.varint()?, hash: reader.varint()? }
        }
        _ => return Err("unknown kind of message"),
    })
}

fn decode_command(reader: &mut Reader, whole: &Bytes) -> ReadResult<Envelope> {
    codec::decode(whole.slice_ref(reader.bytes()?)).map_err(|error| match error {
        codec::DecodeError::Damaged(reason) => reason,
        _ => "a command of a later release",
    })
}

fn decode_question(reader: &mut Reader) -> ReadResult<Question> {
    Ok(match reader.byte()? {
        1 => Question::KeepAlive { lease: reader.signed()?, epoch: reader.varint()? },
        2 => Question::TimeToLive(reader.signed()?),
        3 => Question::Times((0..reader.count()?).map(|_| reader.signed()).collect::<ReadResult<_>>()?),
        _ => return Err("unknown question"),
    })
}

fn decode_answer(reader: &mut Reader) -> ReadResult<LeaderAnswer> {
    Ok(match reader.byte()? {
        1 => {
            let (is_there, ttl_ms) = (reader.flag()?, reader.varint()?);
            LeaderAnswer::KeptAlive { ttl_ms: is_there.then_some(ttl_ms) }
        }
        2 => LeaderAnswer::SessionResumed,
        3 => LeaderAnswer::TimeToLive(decode_status(reader)?),
        4 => LeaderAnswer::Times((0..reader.count()?).map(|_| decode_status(reader)).collect::<ReadResult<_>>()?),
        _ => return Err("unknown answer"),
    })
}

fn decode_status(reader: &mut Reader) -> ReadResult<Option<LeaseStatus>> {
    let renewed = match reader.varint()? {
        0 => return Ok(None),
        1 => true,
        2 => false,
        _ => return Err("unknown state of a lease"),
    };
    let (lease, ttl_ms, remaining_ms) = (reader.signed()?, reader.varint()?, reader.varint()?);
    Ok(Some(LeaseStatus { lease, ttl_ms, remaining_ms, renewed }))
}

/// What a leader may refuse a forwarded command with.
const REFUSALS: [(u8, Failure); 9] = [
    (1, Failure::Refused(Refusal::NoSpace)),
    (2, Failure::Overloaded),
    (3, Failure::Refused(Refusal::MemberNotFound)),
    (4, Failure::Refused(Refusal::MemberExists)),
    (5, Failure::Refused(Refusal::PeerUrlExists)),
    (6, Failure::Refused(Refusal::NotALearner)),
    (7, Failure::LearnerNotReady),
    (8, Failure::NotEnoughMembers),
    (9, Failure::ChangeUnderWay),
];

fn failure_code(failure: &Failure) -> u8 {
    REFUSALS.iter().find(|(_, known)| known == failure).map_or(0, |(code, _)| *code)
}

fn failure_of_code(code: u8) -> ReadResult<Failure> {
    let found = REFUSALS.iter().find(|(known, _)| *known == code);
    found.map(|(_, failure)| failure.clone()).ok_or("unknown refusal")
}

/// Whether raft can take a message without losing its composure. It believes what members say and gives up on
/// what cannot be; between members of one cluster that is a fault, and a faulty message is better dropped.
pub(crate) fn is_sound(message: &Message, last_index: u64) -> bool {
    let follow_each_other = || {
        let indexes = (message.index + 1..).zip(&message.entries);
        let mut term = message.log_term;
        indexes.fold(true, |sound, (index, entry)| {
            let in_order = entry.index == index && entry.term >= term && entry.term <= message.term;
            term = entry.term;
            sound && in_order
        })
    };
    // Far from the end of the numbers, so that counting on is safe.
    if message.term > u64::MAX / 2 || message.index > u64::MAX / 2 {
        return false;
    }
    match MessageType::from_i32(message.msg_type) {
        Some(MessageType::MsgAppend) => follow_each_other(),
        Some(MessageType::MsgHeartbeat) => message.commit <= last_index,
        Some(MessageType::MsgReadIndex | MessageType::MsgReadIndexResp) => message.entries.len() == 1,
        Some(
            MessageType::MsgAppendResponse
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgTimeoutNow,
        ) => true,
        // Local to a member, or travelling in other ways: proposals are forwarded with their origin, snapshots
        // come beside, a transfer is asked for by an input.
        _ => false,
    }
}
