//! Clients that name the server by a URL.
//!
//! etcd's client up to 3.4, which `etcdctl endpoint status --cluster` is, sends an endpoint such as `http://host:2379`
//! as it is for the `:authority` of its calls. That is no authority, and HTTP/2 libraries that look at it refuse the
//! call; Go's, which etcd is built with, does not look. So the first header block of a connection is looked at here,
//! before the library sees it, and the scheme is overwritten with as many letters that are allowed: `httpx--host:2379`;
//! so is a slash at its end. Nobody reads the name. Its length must not change, in bytes and after decompression,
//! because both sides count what is in the table of headers.
//!
//! A connection whose first call is well named is not looked at any further.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// What a frame may have unless more was agreed on, which it is not here.
const FRAME_BYTES_MAX: usize = 16 << 10;
const READ_BYTES: usize = 4 << 10;

const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Where `:authority` stands in HPACK's static table.
const AUTHORITY: usize = 1;

/// A connection whose calls may be named by a URL.
pub struct Named<S> {
    stream: S,
    /// None = all that comes passes as it is.
    looking: Option<Box<Looking>>,
}

impl<S> Named<S> {
    pub fn new(stream: S) -> Named<S> {
        Named { stream, looking: Some(Box::default()) }
    }
}

/// Looks at what comes in, frame by frame.
#[derive(Default)]
struct Looking {
    part: Part,
    /// What has been looked at and is to be read.
    seen: Vec<u8>,
    /// How much of it was read.
    read: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// So many bytes of it have come.
    Preface(usize),
    FrameHeader(Vec<u8>),
    /// So many bytes of a frame that is of no interest are still to come.
    Passing(usize),
    /// A frame of headers, with its own header, up to this length: held back until it is whole.
    Block(Vec<u8>, usize),
    /// Nothing is looked at any more.
    Over,
}

impl Default for Part {
    fn default() -> Part {
        Part::Preface(0)
    }
}

impl Looking {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.take_some(bytes);
            bytes = &bytes[taken..];
        }
    }

    /// Gives how many bytes were taken.
    fn take_some(&mut self, bytes: &[u8]) -> usize {
        match &mut self.part {
            Part::Over => self.pass(bytes, bytes.len()),
            Part::Passing(rest) => {
                let taken = bytes.len().min(*rest);
                *rest -= taken;
                if *rest == 0 {
                    self.part = Part::FrameHeader(Vec::new());
                }
                self.pass(bytes, taken)
            }
            Part::Preface(matched) => {
                let taken = bytes.len().min(PREFACE.len() - *matched);
                let is_http2 = bytes[..taken] == PREFACE[*matched..*matched + taken];
                *matched += taken;
                match is_http2 {
                    true if *matched == PREFACE.len() => self.part = Part::FrameHeader(Vec::new()),
                    true => {}
                    false => self.part = Part::Over,
                }
                self.pass(bytes, taken)
            }
            Part::FrameHeader(header) => {
                let taken = bytes.len().min(FRAME_HEADER_BYTES - header.len());
                header.extend_from_slice(&bytes[..taken]);
                if header.len() == FRAME_HEADER_BYTES {
                    let header = std::mem::take(header);
                    self.begin_frame(header);
                }
                taken
            }
            Part::Block(frame, length) => {
                let taken = bytes.len().min(*length - frame.len());
                frame.extend_from_slice(&bytes[..taken]);
                if frame.len() == *length {
                    let mut frame = std::mem::take(frame);
                    // Whoever has named its first call well goes on to do so.
                    self.part = if rename(&mut frame) { Part::FrameHeader(Vec::new()) } else { Part::Over };
                    self.seen.extend_from_slice(&frame);
                }
                taken
            }
        }
    }

    fn pass(&mut self, bytes: &[u8], count: usize) -> usize {
        self.seen.extend_from_slice(&bytes[..count]);
        count
    }

    fn begin_frame(&mut self, header: Vec<u8>) {
        let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        self.part = match length {
            0 => Part::FrameHeader(Vec::new()),
            1..=FRAME_BYTES_MAX if header[3] == HEADERS => Part::Block(header.clone(), FRAME_HEADER_BYTES + length),
            1..=FRAME_BYTES_MAX => Part::Passing(length),
            _ => Part::Over,
        };
        if !matches!(self.part, Part::Block(..)) {
            self.seen.extend_from_slice(&header);
        }
    }

    fn is_over(&self) -> bool {
        self.part == Part::Over && self.read == self.seen.len()
    }
}

/// Overwrites the scheme of the authority in a frame of headers; false = there was none.
fn rename(frame: &mut [u8]) -> bool {
    let flags = frame[4];
    let mut at = FRAME_HEADER_BYTES;
    let mut end = frame.len();
    if flags & PADDED != 0 {
        end = end.saturating_sub(usize::from(frame[at]));
        at += 1;
    }
    if flags & PRIORITY != 0 {
        at += 5;
    }
    let Some(block) = frame.get_mut(at..end) else { return false };
    rename_in(block).unwrap_or(false)
}

/// None = the block ends in the middle of something: it goes on elsewhere, or is broken.
fn rename_in(block: &mut [u8]) -> Option<bool> {
    let mut at = 0;
    while at < block.len() {
        let first = block[at];
        let (prefix_bits, has_value) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, next) = integer(block, at, prefix_bits)?;
        at = next;
        if !has_value {
            continue;
        }
        if index == 0 {
            at = text(block, at)?.1;
        }
        let (is_packed, end) = text(block, at)?;
        if index == AUTHORITY {
            let start = integer(block, at, 7)?.1;
            let value = &mut block[start..end];
            let is_url = overwrite_scheme(value, is_packed);
            if is_url {
                overwrite_last_slash(value, is_packed);
            }
            return Some(is_url);
        }
        at = end;
    }
    Some(false)
}

/// A text that begins here: whether it is packed by Huffman's code, and where it ends.
fn text(block: &[u8], at: usize) -> Option<(bool, usize)> {
    let (length, start) = integer(block, at, 7)?;
    let end = start.checked_add(length).filter(|end| *end <= block.len())?;
    Some((block[at] & 0x80 != 0, end))
}

/// A number whose first bits stand in this byte, and where it ends.
fn integer(block: &[u8], mut at: usize, prefix_bits: u32) -> Option<(usize, usize)> {
    let most = (1usize << prefix_bits) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    at += 1;
    if value < most {
        return Some((value, at));
    }
    // Longer ones than three bytes name no length that fits into a frame.
    for shift in [0, 7, 14] {
        let byte = *block.get(at)?;
        at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

/// A letter in HPACK's code of Huffman: its bits, and how many they are.
type Code = (u64, u32);

const H: Code = (0x27, 6);
const T: Code = (0x09, 5);
const P: Code = (0x2b, 6);
const S: Code = (0x08, 5);
const COLON: Code = (0x5c, 7);
const SLASH: Code = (0x18, 6);
// As long as a colon and as a slash.
const X: Code = (0x79, 7);
const DASH: Code = (0x16, 6);

/// A scheme, and what takes its place; both as they are and packed.
struct Scheme {
    plain: [&'static [u8]; 2],
    packed: [Code; 2],
}

const SCHEMES: [Scheme; 2] = [
    Scheme {
        plain: [b"http://", b"httpx--"],
        packed: [pack([H, T, T, P, COLON, SLASH, SLASH]), pack([H, T, T, P, X, DASH, DASH])],
    },
    Scheme {
        plain: [b"https://", b"httpsx--"],
        packed: [pack([H, T, T, P, S, COLON, SLASH, SLASH]), pack([H, T, T, P, S, X, DASH, DASH])],
    },
];

const fn pack<const LENGTH: usize>(letters: [Code; LENGTH]) -> Code {
    let (mut bits, mut count, mut at) = (0, 0, 0);
    while at < LENGTH {
        bits = bits << letters[at].1 | letters[at].0;
        count += letters[at].1;
        at += 1;
    }
    (bits, count)
}

fn overwrite_scheme(value: &mut [u8], is_packed: bool) -> bool {
    for Scheme { plain, packed: [(scheme, count), (other, _)] } in &SCHEMES {
        if !is_packed && value.starts_with(plain[0]) {
            value[..plain[1].len()].copy_from_slice(plain[1]);
            return true;
        }
        if !is_packed || value.len() < count.div_ceil(8) as usize {
            continue;
        }
        let mut head = [0; 8];
        let length = value.len().min(head.len());
        head[..length].copy_from_slice(&value[..length]);
        let bits = u64::from_be_bytes(head);
        let shift = u64::BITS - count;
        if bits >> shift == *scheme {
            let renamed = bits ^ ((scheme ^ other) << shift);
            value[..length].copy_from_slice(&renamed.to_be_bytes()[..length]);
            return true;
        }
    }
    false
}

/// Packed, a text is filled up with ones, and a slash ends with a zero: so it is found from behind. No digit, and so
/// no port, looks like it there.
fn overwrite_last_slash(value: &mut [u8], is_packed: bool) {
    if !is_packed {
        if let Some(last) = value.last_mut().filter(|last| **last == b'/') {
            *last = b'-';
        }
        return;
    }
    let Some((_, tail)) = value.split_last_chunk_mut::<2>() else { return };
    let bits = u16::from_be_bytes(*tail);
    let filled = bits.trailing_ones();
    if filled < 8 && u64::from(bits >> filled) & 0x3f == SLASH.0 {
        *tail = (bits ^ ((SLASH.0 ^ DASH.0) as u16) << filled).to_be_bytes();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Named<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Named { stream, looking } = self.get_mut();
        let Some(look) = looking else { return Pin::new(stream).poll_read(context, into) };
        while look.read == look.seen.len() {
            look.seen.clear();
            look.read = 0;
            let mut space = [0; READ_BYTES];
            let mut incoming = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut incoming))?;
            if incoming.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            look.take(incoming.filled());
        }
        let count = into.remaining().min(look.seen.len() - look.read);
        into.put_slice(&look.seen[look.read..look.read + count]);
        look.read += count;
        if look.is_over() {
            *looking = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Named<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// "http://127.0.0.1:2379" as Go packs it.
    const PACKED: &[u8] = &[0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97, 0x5f];
    /// "httpx--127.0.0.1:2379".
    const RENAMED: &[u8] = &[0x9d, 0x29, 0xaf, 0xca, 0xcb, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97, 0x5f];

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn literal(index: u8, value: &[u8], packed: bool) -> Vec<u8> {
        let mut literal = vec![0x40 | index, value.len() as u8 | if packed { 0x80 } else { 0 }];
        literal.extend_from_slice(value);
        literal
    }

    /// `:method POST`, `:scheme http`, a path and an authority, as a client sends them.
    fn headers(authority: &[u8], packed: bool) -> Vec<u8> {
        let block = [&[0x83, 0x86][..], &literal(5, b"/a/b", false), &literal(1, authority, packed)].concat();
        frame(HEADERS, 0x4, &block)
    }

    fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
        [PREFACE.to_vec(), frame(4, 0, &[]), frame(8, 0, &[0, 0, 1, 0]), frames.concat()].concat()
    }

    /// What comes out of it, if it comes in in pieces of this length.
    fn looked_at(bytes: &[u8], piece: usize) -> (Vec<u8>, Part) {
        let mut looking = Looking::default();
        bytes.chunks(piece).for_each(|piece| looking.take(piece));
        (looking.seen, looking.part)
    }

    #[test]
    fn the_scheme_of_an_authority_is_overwritten_in_whatever_pieces_it_comes() {
        let sent = connection(&[headers(b"http://127.0.0.1:2379", false), frame(0, 1, b"body")]);
        let expected = connection(&[headers(b"httpx--127.0.0.1:2379", false), frame(0, 1, b"body")]);
        for piece in 1..=sent.len() {
            assert_eq!(looked_at(&sent, piece), (expected.clone(), Part::FrameHeader(Vec::new())), "{piece}");
        }
    }

    #[test]
    fn it_is_overwritten_where_it_is_packed() {
        let (seen, _) = looked_at(&connection(&[headers(PACKED, true)]), 1000);
        assert_eq!(seen, connection(&[headers(RENAMED, true)]));
    }

    #[test]
    fn a_slash_at_its_end_is_overwritten() {
        let sent = connection(&[headers(b"http://127.0.0.1:2379/", false)]);
        assert_eq!(looked_at(&sent, 9).0, connection(&[headers(b"httpx--127.0.0.1:2379-", false)]));
        // As Go packs "http://127.0.0.1:2379/", and the same without the slash and with every other last digit.
        let packed = |bits: &[Code]| {
            let scheme = [H, T, T, P, COLON, SLASH, SLASH];
            let (mut text, mut bytes) = (String::new(), Vec::new());
            for (code, count) in scheme.iter().chain(bits) {
                text += &format!("{code:0width$b}", width = *count as usize);
            }
            text += &"1".repeat((8 - text.len() % 8) % 8);
            for byte in text.as_bytes().chunks(8) {
                bytes.push(u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap());
            }
            bytes
        };
        let ends = |value: &[u8]| {
            let mut value = value.to_vec();
            assert!(overwrite_scheme(&mut value, true));
            let before = value.clone();
            overwrite_last_slash(&mut value, true);
            (value != before).then_some(value)
        };
        // 0 to 9 in HPACK's code.
        let digits: Vec<Code> = (0..10).map(|digit| if digit < 3 { (digit, 5) } else { (0x16 + digit, 6) }).collect();
        for before in &digits {
            for last in &digits {
                assert_eq!(ends(&packed(&[*before, *last])), None, "{before:?} {last:?}");
                let with_slash = ends(&packed(&[*before, *last, SLASH]));
                let mut expected = packed(&[*before, *last, DASH]);
                assert!(overwrite_scheme(&mut expected, true));
                assert_eq!(with_slash, Some(expected), "{before:?} {last:?}");
            }
        }
    }

    #[test]
    fn every_call_of_such_a_client_is_looked_at() {
        let call = |scheme: &str| headers(format!("{scheme}a:1").as_bytes(), false);
        let (seen, _) = looked_at(&connection(&[call("https://"), frame(0, 1, b"x"), call("http://")]), 7);
        assert_eq!(seen, connection(&[call("httpsx--"), frame(0, 1, b"x"), call("httpx--")]));
    }

    #[test]
    fn whoever_names_the_first_call_well_is_not_looked_at_again() {
        let sent = connection(&[headers(b"127.0.0.1:2379", false), headers(b"http://127.0.0.1:2379", false)]);
        assert_eq!(looked_at(&sent, 5), (sent.clone(), Part::Over));
    }

    #[test]
    fn other_headers_may_hold_a_url_and_other_protocols_anything() {
        let other = frame(HEADERS, 0x4, &literal(5, b"http://127.0.0.1:2379", false));
        let sent = connection(&[other]);
        assert_eq!(looked_at(&sent, 3).0, sent);
        let http1 = b"GET http://127.0.0.1:2379/health HTTP/1.1\r\n\r\n";
        assert_eq!(looked_at(http1, 2), (http1.to_vec(), Part::Over));
    }

    #[test]
    fn padding_priority_and_names_in_full_are_stepped_over() {
        let name = [&[0x40, 0x03][..], b"key", &[0x05], b"value"].concat();
        let block = |authority: &[u8]| {
            let fields = [&name[..], &[0x3f, 0xe1, 0x1f], &literal(1, authority, false)].concat();
            frame(HEADERS, PADDED | PRIORITY, &[&[2, 0, 0, 0, 0, 9][..], &fields, &[0, 0]].concat())
        };
        let (seen, _) = looked_at(&connection(&[block(b"http://a:1")]), 4);
        assert_eq!(seen, connection(&[block(b"httpx--a:1")]));
    }

    #[test]
    fn broken_frames_pass_as_they_are() {
        let cut = [&[0x41, 0x7f][..], b"http://"].concat();
        for payload in [&cut[..], &[0x41], &[0xff, 0xff, 0xff, 0xff, 0xff], &[0x40, 0x7f]] {
            let sent = connection(&[frame(HEADERS, 0x4, payload)]);
            assert_eq!(looked_at(&sent, 1000).0, sent, "{payload:?}");
        }
        let sent = connection(&[frame(HEADERS, PADDED | PRIORITY, &[255])]);
        assert_eq!(looked_at(&sent, 1000).0, sent);
        let too_long = connection(&[vec![0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1, 1, 2, 3]]);
        assert_eq!(looked_at(&too_long, 2), (too_long.clone(), Part::Over));
    }

    #[tokio::test]
    async fn a_reader_gets_all_of_it_and_the_end() {
        let sent = connection(&[headers(b"http://a:1", false), frame(0, 1, &[7; 200])]);
        let expected = connection(&[headers(b"httpx--a:1", false), frame(0, 1, &[7; 200])]);
        let mut named = Named::new(&sent[..]);
        let mut read = Vec::new();
        named.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, expected);
        let plain = b"GET / HTTP/1.1\r\n\r\n".repeat(1000);
        let mut named = Named::new(&plain[..]);
        let mut read = Vec::new();
        named.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, plain);
        assert!(named.looking.is_none(), "it is not looked at any more");
    }
}
