//! HTTP/2 frames (RFC 9113, section 4): nine bytes of head and a payload.

pub const HEAD_BYTES: usize = 9;
/// The largest payload that either side takes as long as it has not said otherwise.
pub const DEFAULT_PAYLOAD_BYTES: usize = 16384;
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const HAS_PRIORITY: u8 = 0x20;

pub const SETTING_HEADER_TABLE_SIZE: u16 = 1;
pub const SETTING_ENABLE_PUSH: u16 = 2;
pub const SETTING_MAX_CONCURRENT_STREAMS: u16 = 3;
pub const SETTING_INITIAL_WINDOW_SIZE: u16 = 4;
pub const SETTING_MAX_FRAME_SIZE: u16 = 5;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const FRAME_SIZE_ERROR: u32 = 6;
pub const CANCEL: u32 = 8;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

const CODE_NAMES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The name of an error code.
pub fn code_name(code: u32) -> &'static str {
    CODE_NAMES.get(code as usize).copied().unwrap_or("an unknown code")
}

/// What the server sent breaks the rules, and the connection with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    pub code: u32,
    pub text: &'static str,
}

pub const fn protocol(text: &'static str) -> Broken {
    Broken { code: PROTOCOL_ERROR, text }
}

pub const fn frame_size(text: &'static str) -> Broken {
    Broken { code: FRAME_SIZE_ERROR, text }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Head {
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The head of the next frame, once it is there whole.
pub fn head(buffer: &[u8]) -> Option<Head> {
    match *buffer {
        [a, b, c, kind, flags, d, e, f, g, ..] => Some(Head {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The first bit is reserved and means nothing.
            stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
        }),
        _ => None,
    }
}

/// The next frame's payload, once it is there whole.
pub fn payload<'a>(head: &Head, buffer: &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
    if head.length > DEFAULT_PAYLOAD_BYTES {
        return Err(frame_size("a frame is larger than was allowed"));
    }
    Ok(buffer.get(HEAD_BYTES..HEAD_BYTES + head.length))
}

/// What a frame of data or headers carries, without what it is padded with and without a priority.
pub fn content<'a>(head: &Head, mut payload: &'a [u8]) -> Result<&'a [u8], Broken> {
    if head.has(PADDED) {
        let (&padding, rest) = payload.split_first().ok_or(frame_size("a padded frame is empty"))?;
        let length = rest.len().checked_sub(usize::from(padding)).ok_or(protocol("a frame is all padding"))?;
        payload = &rest[..length];
    }
    if head.kind == HEADERS && head.has(HAS_PRIORITY) {
        payload = payload.get(5..).ok_or(frame_size("a priority is cut off"))?;
    }
    Ok(payload)
}

/// The only number in the payload.
pub fn number(payload: &[u8]) -> Result<u32, Broken> {
    let bytes = payload.try_into().map_err(|_| frame_size("a frame has another length than its kind"))?;
    Ok(u32::from_be_bytes(bytes))
}

/// The settings in the payload, each with its value.
pub fn settings(payload: &[u8]) -> Result<impl Iterator<Item = (u16, u32)> + '_, Broken> {
    if !payload.len().is_multiple_of(6) {
        return Err(frame_size("a setting is cut off"));
    }
    Ok(payload
        .chunks_exact(6)
        .map(|s| (u16::from_be_bytes([s[0], s[1]]), u32::from_be_bytes([s[2], s[3], s[4], s[5]]))))
}

pub fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

pub fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(out, settings.len() * 6, SETTINGS, 0, 0);
    for (setting, value) in settings {
        out.extend_from_slice(&setting.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub fn put_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    put_head(out, 4, WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub fn put_reset(out: &mut Vec<u8>, stream: u32, code: u32) {
    put_head(out, 4, RST_STREAM, 0, stream);
    out.extend_from_slice(&code.to_be_bytes());
}

/// No stream of the server's was ever opened, so the last one is always 0.
pub fn put_go_away(out: &mut Vec<u8>, code: u32) {
    put_head(out, 8, GOAWAY, 0, 0);
    out.extend_from_slice(&0u32.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_cut_anywhere_is_waited_for() {
        let mut bytes = Vec::new();
        put_window_update(&mut bytes, 7, 4711);
        let whole = Head { length: 4, kind: WINDOW_UPDATE, flags: 0, stream: 7 };
        for cut in 0..bytes.len() {
            let found = head(&bytes[..cut]);
            assert_eq!(found, (cut >= HEAD_BYTES).then_some(whole));
            assert_eq!(found.and_then(|found| payload(&found, &bytes[..cut]).unwrap()), None);
        }
        assert_eq!(payload(&whole, &bytes).unwrap().map(number), Some(Ok(4711)));
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_before_it_has_come() {
        let head = head(&[0x00, 0x40, 0x01, DATA, 0, 0x80, 0, 0, 1]).unwrap();
        assert_eq!((head.length, head.stream), (16385, 1));
        assert_eq!(payload(&head, &[]).unwrap_err().code, FRAME_SIZE_ERROR);
    }

    #[test]
    fn padding_and_priority_are_taken_off() {
        let head = |kind, flags| Head { length: 0, kind, flags, stream: 1 };
        assert_eq!(content(&head(DATA, PADDED), &[2, b'x', 0, 0]), Ok(&b"x"[..]));
        assert_eq!(content(&head(DATA, PADDED), &[2, 0, 0]), Ok(&b""[..]));
        assert_eq!(content(&head(DATA, HAS_PRIORITY), &[1, 2]), Ok(&[1, 2][..]));
        assert_eq!(content(&head(HEADERS, PADDED | HAS_PRIORITY), &[1, 0, 0, 0, 0, 9, b'h', 0]), Ok(&b"h"[..]));
        assert!(content(&head(DATA, PADDED), &[3, 0, 0]).is_err());
        assert!(content(&head(DATA, PADDED), &[]).is_err());
        assert!(content(&head(HEADERS, HAS_PRIORITY), &[0; 4]).is_err());
    }

    #[test]
    fn settings_come_as_they_were_put() {
        let mut bytes = Vec::new();
        put_settings(&mut bytes, &[(SETTING_ENABLE_PUSH, 0), (SETTING_INITIAL_WINDOW_SIZE, 1 << 22)]);
        let found: Vec<_> = settings(&bytes[HEAD_BYTES..]).unwrap().collect();
        assert_eq!(found, [(2, 0), (4, 1 << 22)]);
        assert!(settings(&bytes[HEAD_BYTES + 1..]).is_err());
    }
}
