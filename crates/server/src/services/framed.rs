//! Streams of many small messages, past tonic's codec.
//!
//! tonic copies what has come into a buffer of its own, decodes every message through it, and encodes answers one at a
//! time. Where several messages come and go in one frame of HTTP/2, that costs more than what is asked. So
//! [`super::entry`] puts the body of such a request among its extensions before tonic looks at it; the handler reads
//! it as [`Messages`], decodes them where they lie, and leaves a [`FramedBody`] of what it has encoded among the
//! extensions of an empty response. All else of the call is tonic's: headers, refusals, the status at the end.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};

use super::produced::Produced;
use crate::metrics::Concluded;

/// gRPC's frame: a flag for compression, and the length in four bytes.
pub const FRAME_BYTES: usize = 5;

/// A body among extensions, which must be possible to clone.
struct SetAside<B>(Arc<Mutex<Option<B>>>);

impl<B> Clone for SetAside<B> {
    fn clone(&self) -> SetAside<B> {
        SetAside(self.0.clone())
    }
}

impl<B> SetAside<B> {
    fn new(body: B) -> SetAside<B> {
        SetAside(Arc::new(Mutex::new(Some(body))))
    }

    fn take(self) -> Option<B> {
        self.0.lock().expect("no panic while the body is locked").take()
    }
}

/// Keeps the body of a request from tonic, for [`Messages::of`].
pub fn set_aside(mut request: http::Request<Body>) -> http::Request<Body> {
    let body = std::mem::replace(request.body_mut(), Body::empty());
    request.extensions_mut().insert(SetAside::new(body));
    request
}

/// The messages of a request, as they lie in what the network brought.
pub struct Messages {
    body: Body,
    /// Come, and not read yet.
    rest: Bytes,
    largest: usize,
}

impl Messages {
    /// Of a request whose body was set aside; no messages if it was not.
    pub fn of<T>(request: &mut Request<T>, largest: usize) -> Messages {
        let body = request.extensions_mut().remove::<SetAside<Body>>().and_then(SetAside::take);
        Messages { body: body.unwrap_or_else(Body::empty), rest: Bytes::new(), largest }
    }

    /// The next message, decoded from its bytes, which are part of those given first. None = there are no more.
    pub fn poll_next<T>(
        &mut self,
        context: &mut Context<'_>,
        decode: impl Fn(&Bytes, &[u8]) -> Result<T, Status>,
    ) -> Poll<Option<Result<T, Status>>> {
        loop {
            match self.length() {
                Ok(Some(length)) => {
                    let decoded = decode(&self.rest, &self.rest[FRAME_BYTES..FRAME_BYTES + length]);
                    self.rest.advance(FRAME_BYTES + length);
                    return Poll::Ready(Some(decoded));
                }
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            match ready!(http_body::Body::poll_frame(Pin::new(&mut self.body), context)) {
                Some(Ok(frame)) => frame.into_data().into_iter().for_each(|data| self.add(data)),
                Some(Err(status)) if status.code() == Code::Cancelled => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.rest.is_empty() => return Poll::Ready(None),
                None => {
                    self.rest.clear();
                    return Poll::Ready(Some(Err(Status::internal("the stream ends within a message"))));
                }
            }
        }
    }

    /// Of the next message, if all of it is there.
    fn length(&self) -> Result<Option<usize>, Status> {
        let Some(([compressed, length @ ..], message)) = self.rest.split_first_chunk::<FRAME_BYTES>() else {
            return Ok(None);
        };
        if *compressed != 0 {
            return Err(Status::internal("a compressed message, and no encoding was agreed on"));
        }
        let length = u32::from_be_bytes(*length) as usize;
        if length > self.largest {
            let text = format!("grpc: received message larger than max ({length} vs. {})", self.largest);
            return Err(Status::resource_exhausted(text));
        }
        Ok((message.len() >= length).then_some(length))
    }

    fn add(&mut self, data: Bytes) {
        if self.rest.is_empty() {
            self.rest = data;
            return;
        }
        // A message in several pieces: they are joined, in place from the second time on.
        let rest = std::mem::take(&mut self.rest);
        let mut joined = rest.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        joined.extend_from_slice(&data);
        self.rest = joined.freeze();
    }
}

/// The body of a response: pieces of any number of messages with their frames, and the status.
pub struct FramedBody {
    pieces: Produced<Result<Bytes, Status>>,
    is_ended: bool,
}

/// Leaves the body for [`taken_from`]. The stream that tonic would encode stays empty. `concluded` is for whoever
/// counts how calls end.
pub fn respond<T>(pieces: Produced<Result<Bytes, Status>>, empty: T, concluded: Concluded) -> Response<T> {
    let mut response = Response::new(empty);
    response.extensions_mut().insert(concluded);
    response.extensions_mut().insert(SetAside::new(FramedBody { pieces, is_ended: false }));
    response
}

pub fn taken_from(response: &mut http::Response<Body>) -> Option<FramedBody> {
    response.extensions_mut().remove::<SetAside<FramedBody>>().and_then(SetAside::take)
}

impl http_body::Body for FramedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let status = match ready!(Pin::new(&mut self.pieces).poll_next(context)) {
            Some(Ok(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.is_ended = true;
        let mut trailers = HeaderMap::with_capacity(2);
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::produced::produced;
    use http_body_util::{BodyExt, StreamBody};

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    /// What comes of a stream that brings these pieces.
    async fn read(pieces: Vec<Bytes>, largest: usize) -> (Vec<Bytes>, Option<Status>) {
        let frames = pieces.into_iter().map(|piece| Ok::<_, Status>(Frame::data(piece)));
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let mut request = Request::from_http(set_aside(http::Request::new(body)));
        let mut messages = Messages::of(&mut request, largest);
        let mut read = Vec::new();
        loop {
            let next =
                |context: &mut Context<'_>| messages.poll_next(context, |whole, message| Ok(whole.slice_ref(message)));
            match std::future::poll_fn(next).await {
                Some(Ok(message)) => read.push(message),
                Some(Err(status)) => return (read, Some(status)),
                None => return (read, None),
            }
        }
    }

    #[tokio::test]
    async fn messages_come_whole_out_of_arbitrary_pieces() {
        let sent = [&b"one"[..], b"", &[7; 300], b"four"];
        let stream = sent.iter().flat_map(|message| framed(message)).collect::<Vec<_>>();
        for size in [1, 2, 5, 8, 11, 100, stream.len()] {
            let pieces = stream.chunks(size).map(Bytes::copy_from_slice).collect();
            let (read, failure) = read(pieces, 300).await;
            assert_eq!((&read[..], failure.is_none()), (&sent.map(Bytes::from_static)[..], true), "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn what_is_no_stream_of_messages_is_refused() {
        let whole = Bytes::from(framed(b"whole"));
        for (wrong, code) in [
            (framed(&[0; 301]), Code::ResourceExhausted),
            (vec![1, 0, 0, 0, 0], Code::Internal),
            (vec![0, 0, 0, 0, 9, 1], Code::Internal),
            (vec![0, 0], Code::Internal),
        ] {
            let (read, failure) = read(vec![whole.clone(), wrong.into()], 300).await;
            assert_eq!((read.len(), failure.map(|status| status.code())), (1, Some(code)));
        }
    }

    #[tokio::test]
    async fn a_body_ends_with_its_status() {
        for (last, code) in [(None, "0"), (Some(Status::aborted("over")), "10")] {
            let pieces = produced(|mut emitter| async move {
                emitter.emit(Ok(Bytes::from_static(b"piece"))).await;
                if let Some(status) = last {
                    emitter.emit(Err(status)).await;
                }
            });
            let mut response = http::Response::new(Body::empty());
            *response.extensions_mut() = respond(pieces, (), Concluded::default()).into_parts().2;
            let body = taken_from(&mut response).expect("left there").collect().await.expect("read");
            assert_eq!(body.trailers().and_then(|trailers| trailers.get("grpc-status")).unwrap(), code);
            assert_eq!(body.to_bytes(), "piece");
        }
    }
}
