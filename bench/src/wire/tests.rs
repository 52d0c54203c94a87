//! Messages and statuses by themselves, and whole calls to a server of another make.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use h2::server::{Builder, SendResponse};
use tenure_api::mvccpb::KeyValue;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::*;

#[test]
fn messages_come_whole_out_of_arbitrary_pieces() {
    let sent = KeyValue { key: "k".into(), value: vec![7; 300].into(), ..KeyValue::default() };
    let framed = [frame(&sent), frame(&sent)].concat();
    for size in 1..framed.len() {
        let (mut buffer, mut received) = (BytesMut::new(), Vec::new());
        for piece in framed.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(message) = take_message(&mut buffer).unwrap() {
                received.push(decode::<KeyValue>(message).unwrap());
            }
        }
        assert_eq!(received, [sent.clone(), sent.clone()]);
        assert!(buffer.is_empty());
    }
    assert!(take_message(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
}

#[test]
fn a_status_other_than_zero_is_a_failure_with_its_message() {
    let mut fields = Fields::default();
    assert!(check_status(&fields).is_err());
    fields.add(b"grpc-status", b"0");
    assert!(check_status(&fields).is_ok());
    fields.add(b"grpc-status", b"14");
    fields.add(b"grpc-message", b"etcdserver: no leader");
    let failure = check_status(&fields).unwrap_err().to_string();
    assert_eq!(failure, "the server answered code 14: etcdserver: no leader");
}

/// Calls that are being answered, and the most there were at a time.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Server {
    address: String,
    crowd: Arc<Crowd>,
    /// The reason, whenever a call is cancelled.
    cancelled: UnboundedReceiver<h2::Reason>,
    /// Sending `true` ends all connections with a farewell, `false` without.
    stop: UnboundedSender<bool>,
}

async fn serve(builder: Builder) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let crowd = Arc::new(Crowd::default());
    let (cancels, cancelled) = unbounded_channel();
    let (stop, mut stopped) = unbounded_channel();
    let shared = crowd.clone();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let mut connection = builder.handshake::<_, Bytes>(socket).await.unwrap();
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        calls.spawn(answer(request, respond, shared.clone(), cancels.clone()));
                    }
                    _ => return,
                },
                Some(with_farewell) = stopped.recv() => match with_farewell {
                    true => connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM),
                    false => return,
                },
            }
        }
    });
    Server { address, crowd, cancelled, stop }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    crowd: Arc<Crowd>,
    cancels: UnboundedSender<h2::Reason>,
) {
    assert_eq!(request.method(), "POST");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    assert!(request.uri().authority().is_some_and(|authority| authority.host() == "127.0.0.1"));
    let now = crowd.now.fetch_add(1, Ordering::SeqCst) + 1;
    crowd.most.fetch_max(now, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let head = |status: u16| http::Response::builder().status(status).header("content-type", "application/grpc");
    match path.as_str() {
        "/echo" | "/bidi" | "/headed" => {
            let head = match path.as_str() {
                "/headed" => head(200).header("x-long", "y".repeat(40_000)),
                _ => head(200),
            };
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            while let Some(chunk) = body.data().await {
                let Ok(chunk) = chunk else { return };
                body.flow_control().release_capacity(chunk.len()).unwrap();
                // Others get their turn, so that calls overlap.
                tokio::task::yield_now().await;
                stream.send_data(chunk, false).unwrap();
            }
            crowd.now.fetch_sub(1, Ordering::SeqCst);
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        }
        "/refused" => {
            let head = head(200).header("grpc-status", "14").header("grpc-message", "etcdserver: no leader");
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        }
        "/missing" => drop(respond.send_response(head(404).body(()).unwrap(), true).unwrap()),
        "/never" => {
            let reason = std::future::poll_fn(|context| respond.poll_reset(context)).await;
            let _ = cancels.send(reason.unwrap_or(h2::Reason::NO_ERROR));
        }
        "/reset" => respond.send_reset(h2::Reason::REFUSED_STREAM),
        _ => panic!("nobody serves {path}"),
    }
}

/// Whatever happens, a test ends.
fn test(body: impl Future<Output = ()>) {
    let runtime = crate::drive::runtime().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), body).await.expect("it hangs") });
}

fn pair(value: Vec<u8>) -> KeyValue {
    KeyValue { key: "k".into(), value: value.into(), ..KeyValue::default() }
}

async fn echo(connection: &Connection, sent: KeyValue) {
    let reply: KeyValue = connection.ask("/echo", &sent).await.unwrap();
    assert!(reply == sent);
}

#[test]
fn one_call_after_the_other_and_failures_between_them() {
    test(async {
        let server = serve(h2::server::Builder::new()).await;
        let connection = Connection::open(&format!("http://{}/", server.address)).await.unwrap();
        let failure = async |path| connection.ask::<KeyValue>(path, &pair(vec![1])).await.unwrap_err().to_string();
        for number in 0..50 {
            echo(&connection, pair(vec![7; number * 10])).await;
            assert_eq!(failure("/refused").await, "the server answered code 14: etcdserver: no leader");
            assert_eq!(failure("/missing").await, "the server answered 404 Not Found: ");
            assert!(failure("/reset").await.contains("REFUSED_STREAM"));
            let _: KeyValue = connection.ask("/headed", &pair(vec![3])).await.unwrap();
        }
        let two = [frame(&pair(vec![1])), frame(&pair(vec![2]))].concat();
        let doubled = connection.call(&connection.method("/echo"), two.into()).await.unwrap_err();
        assert!(doubled.to_string().contains("two answers"));
        let cut = connection.call(&connection.method("/echo"), Bytes::from_static(&[0, 0, 0, 0, 9, 1])).await;
        assert!(cut.unwrap_err().to_string().contains("within a message"));
        let empty = connection.call(&connection.method("/echo"), Bytes::new()).await.unwrap_err();
        assert!(empty.to_string().contains("empty"));
        assert_eq!(connection.link.open_streams(), 0);
    });
}

#[test]
fn many_calls_at_once_keep_to_what_the_server_takes() {
    test(async {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(10);
        let server = serve(builder).await;
        let connection = Connection::open(&server.address).await.unwrap();
        let mut calls = JoinSet::new();
        for number in 0..500u32 {
            let connection = connection.clone();
            calls.spawn(async move { echo(&connection, pair(number.to_be_bytes().to_vec())).await });
        }
        // Some of those who wait for their turn go away again.
        let waiting = connection.call(&Method("/echo"), Bytes::new());
        assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        assert!((2..=10).contains(&server.crowd.most.load(Ordering::SeqCst)));
        assert_eq!(connection.link.open_streams(), 0);
    });
}

#[test]
fn a_stream_goes_both_ways() {
    test(async {
        let mut server = serve(h2::server::Builder::new()).await;
        let connection = Connection::open(&server.address).await.unwrap();
        let (mut requests, mut replies) = connection.stream(&connection.method("/bidi")).await.unwrap();
        for number in 0..200 {
            let sent = pair(vec![1; number]);
            assert!(replies.is_drained());
            requests.send([frame(&sent), frame(&sent)].concat().into()).unwrap();
            assert_eq!(decode::<KeyValue>(replies.next().await.unwrap().unwrap()).unwrap(), sent);
            assert_eq!(decode::<KeyValue>(replies.next().await.unwrap().unwrap()).unwrap(), sent);
        }
        // More than both windows hold, in both directions, with nobody who reads at first.
        let sent = pair(vec![5; 1 << 20]);
        for _ in 0..12 {
            requests.send(frame(&sent)).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        for _ in 0..12 {
            assert!(decode::<KeyValue>(replies.next().await.unwrap().unwrap()).unwrap() == sent);
        }
        drop((requests, replies));
        let (_requests, replies) = connection.stream(&connection.method("/never")).await.unwrap();
        drop(_requests);
        assert!(tokio::time::timeout(Duration::from_millis(50), server.cancelled.recv()).await.is_err());
        drop(replies);
        assert_eq!(server.cancelled.recv().await, Some(h2::Reason::CANCEL));
    });
}

#[test]
fn large_requests_and_answers_flow() {
    test(async {
        let mut builder = h2::server::Builder::new();
        builder.max_frame_size(100_000);
        let server = serve(builder).await;
        let connection = Connection::open(&server.address).await.unwrap();
        // Together more than the connection's window, so that it has to be given back.
        for _ in 0..4 {
            let big = pair(vec![9; 12 << 20]);
            let small = pair(vec![1; 70_000]);
            let (first, second, counted) = tokio::join!(
                connection.ask::<KeyValue>("/echo", &big),
                connection.ask::<KeyValue>("/headed", &small),
                connection.call_and_count(&Method("/echo"), frame(&big)),
            );
            assert!(first.unwrap() == big);
            assert_eq!(second.unwrap().value.len(), 70_000);
            assert_eq!(counted.unwrap(), frame(&big).len() as u64);
        }
    });
}

#[test]
fn a_call_that_is_dropped_is_cancelled() {
    test(async {
        let mut server = serve(h2::server::Builder::new()).await;
        let connection = Connection::open(&server.address).await.unwrap();
        for _ in 0..20 {
            let call = connection.call(&Method("/never"), frame(&pair(vec![1])));
            assert!(tokio::time::timeout(Duration::from_millis(5), call).await.is_err());
            assert_eq!(server.cancelled.recv().await, Some(h2::Reason::CANCEL));
        }
        assert_eq!(connection.link.open_streams(), 0);
        echo(&connection, pair(vec![2])).await;
    });
}

#[test]
fn the_end_of_the_connection_reaches_every_call() {
    for (with_farewell, expected) in [(true, "ENHANCE_YOUR_CALM"), (false, "closed the connection")] {
        test(async {
            let server = serve(h2::server::Builder::new()).await;
            let connection = Connection::open(&server.address).await.unwrap();
            let (mut requests, mut replies) = connection.stream(&connection.method("/bidi")).await.unwrap();
            requests.send(frame(&pair(vec![1]))).unwrap();
            replies.next().await.unwrap().unwrap();
            let mut calls = JoinSet::new();
            for _ in 0..20 {
                let connection = connection.clone();
                calls.spawn(async move { connection.ask::<KeyValue>("/never", &pair(vec![1])).await });
            }
            while server.crowd.now.load(Ordering::SeqCst) < 21 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.stop.send(with_farewell).unwrap();
            let mut failures = vec![replies.next().await.unwrap_err()];
            while let Some(call) = calls.join_next().await {
                failures.push(call.unwrap().unwrap_err());
            }
            failures.push(connection.ask::<KeyValue>("/echo", &pair(vec![1])).await.unwrap_err());
            failures.push(requests.send(frame(&pair(vec![1]))).unwrap_err());
            assert_eq!(failures.len(), 23);
            for failure in failures {
                assert!(matches!(failure, Failure::Transport(_)));
                assert!(failure.to_string().contains(expected), "{failure}");
            }
        });
    }
}

#[test]
fn a_connection_that_nobody_uses_closes() {
    test(async {
        let server = serve(h2::server::Builder::new()).await;
        let connection = Connection::open(&server.address).await.unwrap();
        echo(&connection, pair(vec![1])).await;
        drop(connection);
        // The server's task ends with its connection.
        server.stop.closed().await;
    });
}

#[test]
fn what_is_no_http_2_server_is_told() {
    test(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = Connection::open(&listener.local_addr().unwrap().to_string()).await.unwrap();
        let call = tokio::spawn(async move { connection.ask::<KeyValue>("/echo", &pair(vec![1])).await });
        let (socket, _) = listener.accept().await.unwrap();
        socket.writable().await.unwrap();
        socket.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        assert!(call.await.unwrap().unwrap_err().to_string().contains("does not speak HTTP/2"));
    });
    test(async {
        let failure = Connection::open("not an address").await.err().unwrap();
        assert!(failure.to_string().contains("cannot connect: not an address"), "{failure}");
    });
}

#[test]
fn a_connection_whose_runtime_has_ended_is_told() {
    let other = crate::drive::runtime().unwrap();
    test(async {
        let server = serve(h2::server::Builder::new()).await;
        let address = server.address.clone();
        let opening = other.spawn(async move { Connection::open(&address).await });
        let (connection, other) =
            tokio::task::spawn_blocking(move || (other.block_on(opening).unwrap().unwrap(), other)).await.unwrap();
        let call = connection.call(&Method("/never"), Bytes::new());
        let end = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            other.shutdown_background();
        };
        assert!(tokio::join!(call, end).0.unwrap_err().to_string().contains("not served any more"));
    });
}
