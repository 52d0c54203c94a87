//! Header compression (RFC 7541).
//!
//! The encoder sends a field in full the first time and by its number from then on, as other
//! clients do, so that a server has as much to decode as it has with them. It never lets go of an
//! entry: what does not fit beside the others is sent in full each time. The decoder does all that
//! a server may ask for.

use std::collections::VecDeque;

use super::huffman;

/// What both sides keep as long as nobody has said otherwise.
const TABLE_BYTES: usize = 4096;
/// What an entry counts beside its text.
const ENTRY_BYTES: usize = 32;

/// The entries that are always there, from number 1 on.
#[rustfmt::skip]
static STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"),
    (":path", "/"), (":path", "/index.html"), (":scheme", "http"),
    (":scheme", "https"), (":status", "200"), (":status", "204"),
    (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""),
    ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""),
    ("content-length", ""), ("content-location", ""), ("content-range", ""),
    ("content-type", ""), ("cookie", ""), ("date", ""),
    ("etag", ""), ("expect", ""), ("expires", ""),
    ("from", ""), ("host", ""), ("if-match", ""),
    ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
    ("proxy-authorization", ""), ("range", ""), ("referer", ""),
    ("refresh", ""), ("retry-after", ""), ("server", ""),
    ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
    ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// A block of headers that cannot be understood, and after it none can.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

pub struct Encoder {
    authority: String,
    table: Sent,
}

/// The entries that the server keeps for this client.
struct Sent {
    /// Oldest first.
    entries: Vec<(&'static str, String)>,
    bytes: usize,
    limit: usize,
    /// The server has yet to be told that its table is not used any more.
    is_given_up: bool,
}

impl Encoder {
    pub fn new(authority: &str) -> Encoder {
        let table = Sent { entries: Vec::new(), bytes: 0, limit: TABLE_BYTES, is_given_up: false };
        Encoder { authority: authority.to_owned(), table }
    }

    /// The server has said how large a table it keeps. With less than the usual, none is used.
    pub fn set_limit(&mut self, bytes: u32) {
        if (bytes as usize) < self.table.limit {
            self.table = Sent { entries: Vec::new(), bytes: 0, limit: 0, is_given_up: true };
        }
    }

    /// Appends the head of a call to this rpc.
    pub fn encode(&mut self, path: &'static str, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.table.is_given_up) {
            out.push(0x20);
        }
        // ":method: POST" and ":scheme: http" are among the static entries, and so are most of the names.
        out.extend_from_slice(&[0x83, 0x86]);
        self.table.put(4, ":path", path, out);
        self.table.put(1, ":authority", &self.authority, out);
        self.table.put(31, "content-type", "application/grpc", out);
        self.table.put(0, "te", "trailers", out);
    }
}

impl Sent {
    fn put(&mut self, name_number: usize, name: &'static str, value: &str, out: &mut Vec<u8>) {
        if let Some(place) = self.entries.iter().position(|entry| entry.0 == name && entry.1 == value) {
            return put_integer(out, 0x80, 7, STATIC.len() + self.entries.len() - place);
        }
        let bytes = ENTRY_BYTES + name.len() + value.len();
        if self.bytes + bytes <= self.limit {
            self.bytes += bytes;
            self.entries.push((name, value.to_owned()));
            put_integer(out, 0x40, 6, name_number);
        } else {
            put_integer(out, 0x00, 4, name_number);
        }
        if name_number == 0 {
            put_string(out, name);
        }
        put_string(out, value);
    }
}

fn put_integer(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let most = (1 << prefix_bits) - 1;
    if value < most {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_integer(out, 0, 7, text.len());
    out.extend_from_slice(text.as_bytes());
}

struct Entry {
    /// The name and right behind it the value.
    text: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.text.len()
    }
}

pub struct Decoder {
    /// Newest first.
    entries: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
    /// The name and the value of the field in work, kept for their memory.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder { entries: VecDeque::new(), bytes: 0, limit: TABLE_BYTES, name: Vec::new(), value: Vec::new() }
    }

    /// Shows every field of the block.
    pub fn decode(&mut self, block: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), Malformed> {
        let mut rest = block;
        let mut fields = 0;
        while let Some(&first) = rest.first() {
            if first & 0xe0 == 0x20 {
                let limit = take_integer(&mut rest, 5)?;
                // A change of size stands before the first field, and never goes beyond what was allowed.
                if limit > TABLE_BYTES || fields > 0 {
                    return Err(Malformed);
                }
                self.limit = limit;
                self.shrink(limit);
                continue;
            }
            fields += 1;
            if first & 0x80 != 0 {
                let (name, value) = self.entry(take_integer(&mut rest, 7)?)?;
                visit(name, value);
                continue;
            }
            let is_kept = first & 0x40 != 0;
            let number = take_integer(&mut rest, if is_kept { 6 } else { 4 })?;
            let mut name = std::mem::take(&mut self.name);
            name.clear();
            match number {
                0 => take_string(&mut rest, &mut name)?,
                _ => name.extend_from_slice(self.entry(number)?.0),
            }
            self.name = name;
            self.value.clear();
            take_string(&mut rest, &mut self.value)?;
            visit(&self.name, &self.value);
            if is_kept {
                self.keep();
            }
        }
        Ok(())
    }

    fn entry(&self, number: usize) -> Result<(&[u8], &[u8]), Malformed> {
        let number = number.checked_sub(1).ok_or(Malformed)?;
        if let Some((name, value)) = STATIC.get(number) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.entries.get(number - STATIC.len()).ok_or(Malformed)?;
        Ok(entry.text.split_at(entry.name_bytes))
    }

    fn keep(&mut self) {
        let entry = Entry { text: [&self.name[..], &self.value[..]].concat().into(), name_bytes: self.name.len() };
        // An entry that is larger than the table empties it, and is not kept.
        self.shrink(self.limit.saturating_sub(entry.bytes()));
        if entry.bytes() <= self.limit {
            self.bytes += entry.bytes();
            self.entries.push_front(entry);
        }
    }

    fn shrink(&mut self, limit: usize) {
        while self.bytes > limit {
            self.bytes -= self.entries.pop_back().map_or(self.bytes, |entry| entry.bytes());
        }
    }
}

fn take_integer(rest: &mut &[u8], prefix_bits: u32) -> Result<usize, Malformed> {
    let (&first, mut more) = rest.split_first().ok_or(Malformed)?;
    let most = (1 << prefix_bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (&byte, behind) = more.split_first().ok_or(Malformed)?;
            more = behind;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            // Nothing that is numbered or measured here needs more than three such bytes.
            if shift > 21 {
                return Err(Malformed);
            }
        }
    }
    *rest = more;
    Ok(value)
}

fn take_string(rest: &mut &[u8], into: &mut Vec<u8>) -> Result<(), Malformed> {
    let is_compressed = rest.first().ok_or(Malformed)? & 0x80 != 0;
    let length = take_integer(rest, 7)?;
    let (text, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = behind;
    if is_compressed {
        return huffman::decode(text, into).ok_or(Malformed);
    }
    into.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<String, Malformed> {
        let mut fields = String::new();
        decoder.decode(block, |name, value| {
            fields += &format!("{}={}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        })?;
        Ok(fields)
    }

    fn kept(decoder: &Decoder) -> (Vec<String>, usize) {
        let name = |entry: &Entry| String::from_utf8_lossy(&entry.text[..entry.name_bytes]).into_owned();
        (decoder.entries.iter().map(name).collect(), decoder.bytes)
    }

    const REQUESTS: [(&str, usize); 3] = [
        (":method=GET\n:scheme=http\n:path=/\n:authority=www.example.com\n", 57),
        (":method=GET\n:scheme=http\n:path=/\n:authority=www.example.com\ncache-control=no-cache\n", 110),
        (":method=GET\n:scheme=https\n:path=/index.html\n:authority=www.example.com\ncustom-key=custom-value\n", 164),
    ];

    fn requests_are(blocks: [&str; 3]) {
        let mut decoder = Decoder::new();
        for (block, (expected, size)) in blocks.iter().zip(REQUESTS) {
            assert_eq!(fields(&mut decoder, &bytes(block)).unwrap(), expected);
            assert_eq!(decoder.bytes, size);
        }
        assert_eq!(kept(&decoder).0, ["custom-key", "cache-control", ":authority"]);
    }

    #[test]
    fn requests_of_the_standard_c_3() {
        requests_are([
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ]);
    }

    #[test]
    fn requests_of_the_standard_c_4() {
        requests_are([
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ]);
    }

    /// In a table of 256 bytes, so that entries fall out of it.
    fn responses_are(blocks: [&str; 3]) {
        let dates = ["Mon, 21 Oct 2013 20:13:21 GMT", "Mon, 21 Oct 2013 20:13:22 GMT"];
        let plain = |status: &str, date: &str| {
            format!(":status={status}\ncache-control=private\ndate={date}\nlocation=https://www.example.com\n")
        };
        let cookie = "set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n";
        let expected = [
            plain("302", dates[0]),
            plain("307", dates[0]),
            plain("200", dates[1]) + "content-encoding=gzip\n" + cookie,
        ];
        let mut decoder = Decoder { limit: 256, ..Decoder::new() };
        for ((block, expected), size) in blocks.iter().zip(expected).zip([222, 222, 215]) {
            assert_eq!(fields(&mut decoder, &bytes(block)).unwrap(), expected);
            assert_eq!(decoder.bytes, size);
        }
        assert_eq!(kept(&decoder).0, ["set-cookie", "content-encoding", "date"]);
    }

    #[test]
    fn responses_of_the_standard_c_5() {
        responses_are([
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ]);
    }

    #[test]
    fn responses_of_the_standard_c_6() {
        responses_are([
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad
             1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ]);
    }

    #[test]
    fn a_field_is_sent_in_full_once() {
        let (mut encoder, mut decoder) = (Encoder::new("localhost:2379"), Decoder::new());
        let head = |path: &str| {
            format!(
                ":method=POST\n:scheme=http\n:path={path}\n:authority=localhost:2379\n\
                 content-type=application/grpc\nte=trailers\n"
            )
        };
        for (path, length) in [("/a/B", 55), ("/a/B", 6), ("/a/C", 11), ("/a/B", 6), ("/a/C", 6)] {
            let mut block = Vec::new();
            encoder.encode(path, &mut block);
            assert_eq!(fields(&mut decoder, &block).unwrap(), head(path));
            assert_eq!(block.len(), length, "{path}");
        }
        // A server that keeps less has its table left alone.
        encoder.set_limit(100);
        for expected in [[0x20, 0x83], [0x83, 0x86]] {
            let mut block = Vec::new();
            encoder.encode("/a/B", &mut block);
            assert_eq!(block[..2], expected);
            assert_eq!(fields(&mut decoder, &block).unwrap(), head("/a/B"));
            assert_eq!(kept(&decoder), (Vec::new(), 0));
        }
    }

    #[test]
    fn what_is_cut_off_or_out_of_range_is_malformed() {
        // A number that is not there, one that never ends, a name or a value that is cut off, a table too large.
        for block in ["80", "be", "ffffffffffff7f", "40", "4003 6162", "4001 61", "4001 6105 6263", "3fe1 1f 3fe2 1f"] {
            assert_eq!(fields(&mut Decoder::new(), &bytes(block)), Err(Malformed), "{block}");
        }
        assert_eq!(fields(&mut Decoder::new(), &bytes("8820")), Err(Malformed));
        // An entry that is larger than the table empties it.
        let mut decoder = Decoder { limit: 64, ..Decoder::new() };
        fields(&mut decoder, &bytes("4001 6101 62")).unwrap();
        assert_eq!(kept(&decoder), (vec!["a".to_owned()], 34));
        fields(&mut decoder, &[&[0x40, 1, b'c', 60][..], &[b'd'; 60]].concat()).unwrap();
        assert_eq!(kept(&decoder), (Vec::new(), 0));
    }
}
