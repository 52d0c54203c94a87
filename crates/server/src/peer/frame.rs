//! Messages on the wire between two members: an upgraded HTTP/1.1 connection that carries frames, each four bytes of
//! length (little-endian) and then a protobuf of `peer.proto`.
//!
//! Not a gRPC stream, though everything else between members is: a message between members is a few hundred bytes that
//! somebody's hand-over waits for, up to six times in a row, and HTTP/2 took three times as much processor time for it as
//! the socket itself. It also belongs to the task that serves its connection, so that whoever had a message had to wake
//! the thread of that task; a frame is written by whoever has it.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Where a connection asks to become one that carries frames, and what it asks to become.
pub(super) const PATH: &str = "/tenure.peer.v1/messages";
pub(super) const PROTOCOL: &str = "tenure-peer-1";

const LENGTH_BYTES: usize = 4;
/// Frames are slices of what was read together, and what the log keeps of one keeps all of it in memory: so as many
/// small ones as possible share one allocation, and another is made only when there is hardly room in it.
const READ_BYTES: usize = 16 << 10;
const LEAST_ROOM_BYTES: usize = 1 << 10;
/// The answer to the request to switch is a status line and a few headers.
const MOST_ANSWER_BYTES: usize = 4 << 10;

/// Adds a frame. An empty one says nothing but that its sender is alive.
pub(super) fn put(message: &impl prost::Message, into: &mut BytesMut) {
    let length = message.encoded_len();
    into.reserve(LENGTH_BYTES + length);
    // Batches are bounded far below this.
    into.put_u32_le(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(into);
}

/// What comes in on such a connection.
pub(super) struct Frames<R> {
    stream: R,
    received: BytesMut,
    most_bytes: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Longer frames than these are refused before memory is taken for them.
    pub(super) fn new(stream: R, most_bytes: usize) -> Frames<R> {
        Frames { stream, received: BytesMut::new(), most_bytes }
    }

    /// The next one, if it has come already.
    pub(super) fn take(&mut self) -> io::Result<Option<Bytes>> {
        let Some(length) = self.received.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.most_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
        }
        if self.received.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.received.advance(LENGTH_BYTES);
        Ok(Some(self.received.split_to(length).freeze()))
    }

    /// Waits for something to come. False = the other side has closed. Nothing is lost if it is dropped.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        if self.received.capacity() - self.received.len() < LEAST_ROOM_BYTES {
            self.received.reserve(READ_BYTES);
        }
        Ok(self.stream.read_buf(&mut self.received).await? > 0)
    }

    /// Waits for the next one; None = the other side has closed.
    pub(super) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Reads the answer to the request to switch, in front of the first frame. Gives its status line.
    pub(super) async fn switched(&mut self) -> io::Result<String> {
        const END: &[u8] = b"\r\n\r\n";
        loop {
            if let Some(end) = self.received.windows(END.len()).position(|window| window == END) {
                let head = self.received.split_to(end + END.len());
                let line = head[..].split(|byte| *byte == b'\r').next().unwrap_or_default();
                return Ok(String::from_utf8_lossy(line).into_owned());
            }
            if self.received.len() > MOST_ANSWER_BYTES || !self.fill().await? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    pub(super) fn stream(&mut self) -> &mut R {
        &mut self.stream
    }
}

/// What the caller says first, to whoever is found at this address.
pub(super) fn request(address: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\ncontent-length: 0\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use tenure_api::tenure::peer::v1::MessagesRequest;

    use super::*;

    fn batch(texts: &[&'static str]) -> MessagesRequest {
        MessagesRequest {
            hello: None,
            messages: texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect(),
        }
    }

    fn decoded(frame: &Bytes) -> MessagesRequest {
        prost::Message::decode(frame.clone()).unwrap()
    }

    #[tokio::test]
    async fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = BytesMut::new();
        let batches = [batch(&["one", "two"]), batch(&[]), batch(&["three"])];
        batches.iter().for_each(|batch| put(batch, &mut bytes));
        for cut in 0..bytes.len() {
            let mut frames = Frames::new(tokio_test_stream(&bytes, cut), 1 << 10);
            for batch in &batches {
                assert_eq!(decoded(&frames.next().await.unwrap().unwrap()), *batch);
            }
            assert_eq!(frames.next().await.unwrap(), None);
        }
    }

    fn tokio_test_stream(bytes: &[u8], cut: usize) -> impl AsyncRead + Unpin {
        let (first, second) = bytes.split_at(cut);
        AsyncReadExt::chain(io::Cursor::new(first.to_vec()), io::Cursor::new(second.to_vec()))
    }

    #[tokio::test]
    async fn small_frames_share_their_memory() {
        let (mut sender, receiver) = tokio::io::duplex(1 << 10);
        let mut frames = Frames::new(receiver, 1 << 10);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let mut bytes = BytesMut::new();
            put(&batch(&["a message that is kept"]), &mut bytes);
            tokio::io::AsyncWriteExt::write_all(&mut sender, &bytes).await.unwrap();
            kept.push(frames.next().await.unwrap().unwrap());
        }
        let addresses = kept.iter().map(|frame| frame.as_ptr() as usize);
        let span = addresses.clone().max().unwrap() - addresses.min().unwrap();
        assert!(span < READ_BYTES, "they are {span} bytes apart");
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
        let mut frames = Frames::new(&[0, 0, 1, 0][..], 0xffff);
        assert_eq!(frames.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn the_answer_to_the_switch_ends_where_frames_begin() {
        let mut bytes = BytesMut::from(&b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"[..]);
        put(&batch(&["one"]), &mut bytes);
        let mut frames = Frames::new(&bytes[..], 1 << 10);
        assert_eq!(frames.switched().await.unwrap(), "HTTP/1.1 101 Switching Protocols");
        assert_eq!(decoded(&frames.next().await.unwrap().unwrap()), batch(&["one"]));
        let endless = vec![b'x'; 2 * MOST_ANSWER_BYTES];
        assert!(Frames::new(&endless[..], 1 << 10).switched().await.is_err());
    }
}
