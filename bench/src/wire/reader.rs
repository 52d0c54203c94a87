//! Understands what a server sends: the frames one after the other, each passed on to its stream.

use std::borrow::Cow;

use super::frame::{self, Broken, Head};
use super::hpack::Decoder;
use super::streams::Streams;
use super::{Failure, check_status};

/// A head in more pieces than one is put together up to this size.
const MOST_HEAD_BYTES: usize = 256 << 10;
/// What is shown of a server's parting words.
const MOST_DEBUG_BYTES: usize = 200;

pub struct Reader {
    decoder: Decoder,
    has_settings: bool,
    /// A head that goes on in the next frame: its stream, whether it is the end of it, and the block so far.
    unfinished: Option<(u32, bool)>,
    block: Vec<u8>,
}

/// What is wanted of a head.
#[derive(Default)]
pub struct Fields {
    pub status: Option<u16>,
    pub code: Option<Cow<'static, str>>,
    pub message: String,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { decoder: Decoder::new(), has_settings: false, unfinished: None, block: Vec::new() }
    }

    /// Takes all whole frames and gives how many bytes they were.
    pub fn read(&mut self, streams: &mut Streams, input: &[u8]) -> Result<usize, Broken> {
        let mut used = 0;
        while let Some(head) = frame::head(&input[used..]) {
            if !self.has_settings && (head.kind != frame::SETTINGS || head.has(frame::ACK)) {
                return Err(frame::protocol("the server does not speak HTTP/2"));
            }
            let Some(payload) = frame::payload(&head, &input[used..])? else { break };
            self.frame(streams, &head, payload)?;
            used += frame::HEAD_BYTES + head.length;
        }
        Ok(used)
    }

    fn frame(&mut self, streams: &mut Streams, head: &Head, payload: &[u8]) -> Result<(), Broken> {
        if let Some((stream, _)) = self.unfinished
            && (head.kind != frame::CONTINUATION || head.stream != stream)
        {
            return Err(frame::protocol("a head is interrupted"));
        }
        match head.kind {
            frame::DATA => {
                let content = frame::content(head, payload)?;
                streams.data(head.stream, payload.len(), content)?;
                if streams.stream(head.stream)?.is_some_and(|stream| !stream.has_head) {
                    streams.refuse(head.stream, "the answer comes before its head");
                } else if head.has(frame::END_STREAM) {
                    streams.received_end(head.stream);
                }
            }
            frame::HEADERS => {
                streams.stream(head.stream)?;
                let content = frame::content(head, payload)?;
                if head.has(frame::END_HEADERS) {
                    return self.headers(streams, head.stream, head.has(frame::END_STREAM), content);
                }
                self.unfinished = Some((head.stream, head.has(frame::END_STREAM)));
                self.block.clear();
                self.block.extend_from_slice(content);
            }
            frame::CONTINUATION => {
                let (stream, is_end) = self.unfinished.ok_or(frame::protocol("nothing is there to go on with"))?;
                if self.block.len() + payload.len() > MOST_HEAD_BYTES {
                    return Err(Broken { code: frame::ENHANCE_YOUR_CALM, text: "a head is far too large" });
                }
                self.block.extend_from_slice(payload);
                if head.has(frame::END_HEADERS) {
                    self.unfinished = None;
                    let block = std::mem::take(&mut self.block);
                    return self.headers(streams, stream, is_end, &block);
                }
            }
            frame::RST_STREAM => {
                let code = frame::code_name(frame::number(payload)?);
                streams.stream(head.stream)?;
                streams.reset(head.stream, Failure::Transport(format!("the server reset the stream: {code}")));
            }
            frame::SETTINGS => self.settings(streams, head, payload)?,
            frame::PUSH_PROMISE => return Err(frame::protocol("the server pushes what nobody asked for")),
            frame::PING => {
                if payload.len() != 8 || head.stream != 0 {
                    return Err(frame::frame_size("a ping is not as it has to be"));
                }
                if !head.has(frame::ACK) {
                    frame::put_head(&mut streams.out, payload.len(), frame::PING, frame::ACK, 0);
                    streams.out.extend_from_slice(payload);
                }
            }
            frame::GOAWAY => {
                let (numbers, words) = payload.split_at_checked(8).ok_or(frame::frame_size("a farewell is cut off"))?;
                let last = frame::number(&numbers[..4])? & 0x7fff_ffff;
                let code = frame::code_name(frame::number(&numbers[4..])?);
                let words = String::from_utf8_lossy(&words[..words.len().min(MOST_DEBUG_BYTES)]);
                let text = format!("the server is going away: {code} {words}");
                streams.go_away(last, Failure::Transport(text.trim_end().to_owned()));
            }
            frame::WINDOW_UPDATE => streams.widen(head.stream, frame::number(payload)? & 0x7fff_ffff)?,
            // Priorities are only for servers, and kinds that are not known are to be passed over.
            _ => {}
        }
        Ok(())
    }

    fn settings(&mut self, streams: &mut Streams, head: &Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream != 0 {
            return Err(frame::protocol("settings are for a stream"));
        }
        if head.has(frame::ACK) {
            return Ok(());
        }
        let mut most_streams = None;
        for (setting, value) in frame::settings(payload)? {
            match setting {
                frame::SETTING_HEADER_TABLE_SIZE => streams.encoder.set_limit(value),
                frame::SETTING_MAX_CONCURRENT_STREAMS => most_streams = Some(value),
                frame::SETTING_INITIAL_WINDOW_SIZE => streams.set_first_send_window(value)?,
                frame::SETTING_MAX_FRAME_SIZE => {
                    if !(frame::DEFAULT_PAYLOAD_BYTES..1 << 24).contains(&(value as usize)) {
                        return Err(frame::protocol("the largest frame has an impossible size"));
                    }
                    streams.most_payload = value as usize;
                }
                _ => {}
            }
        }
        // A server that does not limit its streams says nothing about it in its first settings.
        let is_first = !std::mem::replace(&mut self.has_settings, true);
        if let Some(most) = most_streams.or(is_first.then_some(u32::MAX)) {
            streams.set_most_streams(most);
        }
        frame::put_head(&mut streams.out, 0, frame::SETTINGS, frame::ACK, 0);
        Ok(())
    }

    /// Every head is decoded, whether anybody waits for it or not: later ones refer to it.
    fn headers(&mut self, streams: &mut Streams, number: u32, is_end: bool, block: &[u8]) -> Result<(), Broken> {
        let mut fields = Fields::default();
        let decoded = self.decoder.decode(block, |name, value| fields.add(name, value));
        decoded.map_err(|_| Broken { code: frame::COMPRESSION_ERROR, text: "a head cannot be decoded" })?;
        let Some(stream) = streams.stream(number)? else { return Ok(()) };
        if stream.has_head {
            if !is_end {
                streams.refuse(number, "the answer has two heads");
                return Ok(());
            }
            stream.finish(check_status(&fields));
        } else {
            match fields.status {
                // Not yet the answer, only a word before it.
                Some(100..200) if !is_end => return Ok(()),
                Some(200) if is_end || fields.code.is_some() => stream.finish(check_status(&fields)),
                Some(200) => {}
                Some(other) => {
                    let code = http::StatusCode::from_u16(other).map_or(other.to_string(), |code| code.to_string());
                    stream.finish(Err(Failure::Status { code, message: String::new() }));
                }
                None => {
                    streams.refuse(number, "the answer has no HTTP status");
                    return Ok(());
                }
            }
            stream.has_head = true;
        }
        if is_end {
            streams.received_end(number);
        }
        Ok(())
    }
}

impl Fields {
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b":status" => self.status = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()),
            b"grpc-status" if value == b"0" => self.code = Some(Cow::Borrowed("0")),
            b"grpc-status" => self.code = Some(Cow::Owned(String::from_utf8_lossy(value).into_owned())),
            b"grpc-message" => self.message = String::from_utf8_lossy(value).into_owned(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::wire::stream::{Delivery, STREAM_WINDOW_BYTES};

    const OK_HEAD: &[u8] = &[0x88];
    /// "grpc-status: 0", not to be kept.
    const OK_TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

    fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame::put_head(out, payload.len(), kind, flags, stream);
        out.extend_from_slice(payload);
    }

    /// One call that has started on a connection whose server has said hello.
    fn started(delivery: Delivery) -> (Reader, Streams) {
        let (mut reader, mut streams) = (Reader::new(), Streams::new("localhost:1"));
        let mut settings = Vec::new();
        put(&mut settings, frame::SETTINGS, 0, 0, &[]);
        assert_eq!(reader.read(&mut streams, &settings), Ok(settings.len()));
        assert_eq!(streams.start("/a/B", delivery).unwrap(), 1);
        streams.send(1, Bytes::from_static(b"question"), true).unwrap();
        streams.out.clear();
        (reader, streams)
    }

    fn whole(streams: &mut Streams) -> Poll<Result<Vec<u8>, Failure>> {
        streams.poll_whole(1, &Context::from_waker(Waker::noop())).map_ok(|(bytes, _)| bytes.to_vec())
    }

    #[test]
    fn an_answer_with_all_that_may_come_beside_it_is_understood_however_it_is_cut() {
        let mut answer = Vec::new();
        put(&mut answer, frame::PING, 0, 0, b"12345678");
        put(&mut answer, frame::HEADERS, frame::PADDED | frame::END_HEADERS, 1, b"\x02\x88\0\0");
        put(&mut answer, 0xbe, 0xff, 1, b"nobody knows this kind");
        put(&mut answer, frame::DATA, frame::PADDED, 1, b"\x03answ\0\0\0");
        put(&mut answer, 2, 0, 1, &[0; 5]);
        put(&mut answer, frame::DATA, 0, 1, b"er");
        put(&mut answer, frame::HEADERS, frame::END_STREAM | frame::HAS_PRIORITY, 1, b"\0\0\0\0\x10\x00\x0bgrpc-");
        put(&mut answer, frame::CONTINUATION, 0, 1, b"sta");
        put(&mut answer, frame::CONTINUATION, frame::END_HEADERS, 1, b"tus\x010");
        for cut in 0..=answer.len() {
            let (mut reader, mut streams) = started(Delivery::Whole);
            let used = reader.read(&mut streams, &answer[..cut]).unwrap();
            assert_eq!(whole(&mut streams).is_ready(), cut == answer.len());
            if cut < answer.len() {
                assert_eq!(reader.read(&mut streams, &answer[used..]), Ok(answer.len() - used));
                assert!(matches!(whole(&mut streams), Poll::Ready(Ok(bytes)) if bytes == b"answer"));
            }
            assert_eq!(streams.out, [&[0, 0, 8, frame::PING, frame::ACK, 0, 0, 0, 0][..], b"12345678"].concat());
            streams.out.clear();
            streams.forget(1);
            assert!(streams.out.is_empty(), "what has ended is not cancelled");
        }
    }

    #[test]
    fn what_breaks_the_rules_breaks_the_connection() {
        let code = |kind, flags, stream, payload: &[u8]| {
            let (mut reader, mut streams) = started(Delivery::Whole);
            let mut bytes = Vec::new();
            put(&mut bytes, kind, flags, stream, payload);
            reader.read(&mut streams, &bytes).unwrap_err().code
        };
        assert_eq!(code(frame::DATA, 0, 0, b""), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::DATA, 0, 3, b""), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::DATA, frame::PADDED, 1, b"\x09"), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::HEADERS, frame::END_HEADERS, 1, &[0xff]), frame::COMPRESSION_ERROR);
        assert_eq!(code(frame::CONTINUATION, 0, 1, b""), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::PUSH_PROMISE, 0, 1, b""), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::PING, 0, 0, b"short"), frame::FRAME_SIZE_ERROR);
        assert_eq!(code(frame::RST_STREAM, 0, 1, b"short"), frame::FRAME_SIZE_ERROR);
        assert_eq!(code(frame::SETTINGS, 0, 0, b"short"), frame::FRAME_SIZE_ERROR);
        assert_eq!(code(frame::GOAWAY, 0, 0, b"short"), frame::FRAME_SIZE_ERROR);
        assert_eq!(code(frame::WINDOW_UPDATE, 0, 0, &[0; 4]), frame::PROTOCOL_ERROR);
        assert_eq!(code(frame::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), frame::FLOW_CONTROL_ERROR);
        assert_eq!(code(frame::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), frame::FLOW_CONTROL_ERROR);
        assert_eq!(code(frame::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), frame::PROTOCOL_ERROR);
    }

    #[test]
    fn a_server_that_ignores_the_window_is_stopped() {
        let (mut reader, mut streams) = started(Delivery::Pieces);
        let mut head = Vec::new();
        put(&mut head, frame::HEADERS, frame::END_HEADERS, 1, OK_HEAD);
        reader.read(&mut streams, &head).unwrap();
        let mut data = Vec::new();
        put(&mut data, frame::DATA, 0, 1, &[0; frame::DEFAULT_PAYLOAD_BYTES]);
        for _ in 0..STREAM_WINDOW_BYTES as usize / frame::DEFAULT_PAYLOAD_BYTES {
            reader.read(&mut streams, &data).unwrap();
        }
        assert!(streams.out.is_empty(), "nobody has read anything");
        assert_eq!(reader.read(&mut streams, &data).unwrap_err().code, frame::FLOW_CONTROL_ERROR);
    }

    #[test]
    fn no_status_a_reset_and_a_farewell_are_failures() {
        let failure = |frames: &[(u8, u8, u32, &[u8])]| {
            let (mut reader, mut streams) = started(Delivery::Whole);
            let mut bytes = Vec::new();
            for (kind, flags, stream, payload) in frames {
                put(&mut bytes, *kind, *flags, *stream, payload);
            }
            assert_eq!(reader.read(&mut streams, &bytes), Ok(bytes.len()));
            let Poll::Ready(outcome) = whole(&mut streams) else { panic!("still waiting") };
            outcome.unwrap_err().to_string()
        };
        let head = (frame::HEADERS, frame::END_HEADERS, 1, OK_HEAD);
        assert!(failure(&[head, (frame::DATA, frame::END_STREAM, 1, b"x")]).contains("no status"));
        assert!(failure(&[(frame::DATA, 0, 1, b"x")]).contains("before its head"));
        assert!(failure(&[head, head]).contains("two heads"));
        assert!(failure(&[(frame::RST_STREAM, 0, 1, &[0, 0, 0, 7])]).contains("REFUSED_STREAM"));
        assert!(failure(&[(frame::GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x0btoo_many_pings")]).contains("too_many_pings"));
        let mut fields = Fields::default();
        Decoder::new().decode(OK_TRAILERS, |name, value| fields.add(name, value)).unwrap();
        assert!(check_status(&fields).is_ok());
    }

    #[test]
    fn after_a_farewell_what_was_asked_is_still_answered() {
        let (mut reader, mut streams) = started(Delivery::Whole);
        let mut bytes = Vec::new();
        put(&mut bytes, frame::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        put(&mut bytes, frame::HEADERS, frame::END_HEADERS, 1, OK_HEAD);
        put(&mut bytes, frame::DATA, 0, 1, b"answer");
        put(&mut bytes, frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1, OK_TRAILERS);
        assert_eq!(reader.read(&mut streams, &bytes), Ok(bytes.len()));
        assert!(matches!(whole(&mut streams), Poll::Ready(Ok(bytes)) if bytes == b"answer"));
        let failure = streams.start("/a/B", Delivery::Whole).unwrap_err();
        assert_eq!(failure.to_string(), "the connection broke: the server is going away: NO_ERROR");
    }
}
