//! Fencing in an HTTP service: a tower layer that looks at headers before the service looks at the request.
//!
//! | header | |
//! |---|---|
//! | `tenure-key` | the key, as in `deploy/prod` or `pool#3` |
//! | `tenure-token` | the token, in digits |
//! | `tenure-holder` | the holder's id; needed with signatures |
//! | `tenure-signature` | the signed token; needed if the layer has keys |
//!
//! GET, HEAD, OPTIONS and TRACE pass without. Everything else is answered 400 if a header is missing or wrong, 401
//! without a signature, 403 with a bad one or with a shared token, and 409 with the highest token seen if the token is
//! refused, as JSON `{"success": false, "error": …, "highest": …}`.
//!
//! A bar guards nothing if the write that it admitted is still under way when the next holder's is done. So the layer
//! admits the next request of a key only when the one before it is answered, and carries on with a request that it has
//! admitted even if its client hangs up. That holds within one process, and as long as an answered request has no
//! effect left to come: a service that only passes writes on needs a storage that checks the token itself.
//!
//! The body is not looked at: where equal tokens pass with identical data only, they do not pass here.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tower::{Layer, Service};

use crate::{Admitted, Expected, Fence, Key, Keyring, Refusal, SignatureError, Token};

pub const KEY: &str = "tenure-key";
pub const TOKEN: &str = "tenure-token";
pub const HOLDER: &str = "tenure-holder";
pub const SIGNATURE: &str = "tenure-signature";

/// Keys that fall into one lane wait for each other; memory does not grow with the number of keys.
const LANES: usize = 1024;

/// Whatever keeps the bars.
pub trait Gate: Send + Sync + 'static {
    /// Raises the bar, durably if this gate is, or says why not. May block.
    fn admit(&self, key: &Key, token: Token) -> Result<Admitted, GateError>;
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The bar may or may not be raised; nothing is carried out.
    #[error("the bar cannot be kept: {0}")]
    Failed(String),
}

impl Gate for Mutex<Fence> {
    fn admit(&self, key: &Key, token: Token) -> Result<Admitted, GateError> {
        Ok(self.lock().unwrap_or_else(PoisonError::into_inner).admit(key, token, None)?)
    }
}

#[cfg(feature = "file")]
impl<D: tenure_storage::Disk> Gate for Mutex<crate::DurableFence<D>> {
    fn admit(&self, key: &Key, token: Token) -> Result<Admitted, GateError> {
        let admitted = self.lock().unwrap_or_else(PoisonError::into_inner).admit(key, token, None);
        admitted.map_err(|error| match error {
            crate::AdmitError::Refused(refusal) => GateError::Refused(refusal),
            crate::AdmitError::Fault(fault) => GateError::Failed(fault.to_string()),
        })
    }
}

/// What a handler finds among the extensions of a request that was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub key: Key,
    pub token: Token,
    pub holder: Option<String>,
    /// Whether the holder and the token are vouched for.
    pub signed: bool,
}

/// Puts a fence before a service.
#[derive(Clone)]
pub struct FenceLayer {
    shared: Arc<Shared>,
}

#[derive(Clone)]
pub struct Fenced<S> {
    service: S,
    shared: Arc<Shared>,
}

struct Shared {
    gate: Arc<dyn Gate>,
    signing: Option<(Keyring, String)>,
    lanes: Vec<Arc<tokio::sync::Mutex<()>>>,
    hasher: RandomState,
}

impl FenceLayer {
    /// Takes tokens as they come: for a network in which nobody makes them up.
    pub fn new(gate: impl Gate) -> FenceLayer {
        FenceLayer::build(gate, None)
    }

    /// Takes signed tokens of this cluster only.
    pub fn signed(gate: impl Gate, keyring: Keyring, cluster: &str) -> FenceLayer {
        FenceLayer::build(gate, Some((keyring, cluster.to_owned())))
    }

    fn build(gate: impl Gate, signing: Option<(Keyring, String)>) -> FenceLayer {
        let lanes = (0..LANES).map(|_| Arc::default()).collect();
        let shared = Shared { gate: Arc::new(gate), signing, lanes, hasher: RandomState::new() };
        FenceLayer { shared: Arc::new(shared) }
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, service: S) -> Fenced<S> {
        Fenced { service, shared: self.shared.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The one that was polled ready is the one to be called.
        let clone = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, clone);
        if is_safe(request.method()) {
            return Box::pin(service.call(request));
        }
        let held = match self.shared.read(request.headers()) {
            Ok(held) => held,
            Err(problem) => return Box::pin(std::future::ready(Ok(problem.response()))),
        };
        let shared = self.shared.clone();
        let work = tokio::spawn(async move {
            let _turn = shared.lane(&held.key).lock_owned().await;
            if let Err(problem) = shared.admit(&held).await {
                return Ok(problem.response());
            }
            request.extensions_mut().insert(held);
            service.call(request).await
        });
        Box::pin(async move {
            match work.await {
                Ok(answer) => answer,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is going away, and the client's connection with it.
                Err(_) => Ok(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping".to_owned()).response()),
            }
        })
    }
}

impl Shared {
    fn lane(&self, key: &Key) -> Arc<tokio::sync::Mutex<()>> {
        self.lanes[self.hasher.hash_one(key) as usize % LANES].clone()
    }

    /// What the headers say, checked as far as it can be without the bar.
    fn read(&self, headers: &HeaderMap) -> Result<Held, Problem> {
        let bad = |error: &dyn std::fmt::Display| Problem::new(StatusCode::BAD_REQUEST, error.to_string());
        let missing = |name: &str| bad(&format!("the header {name} is missing"));
        let key = Key::parse(header(headers, KEY)?.ok_or_else(|| missing(KEY))?).map_err(|error| bad(&error))?;
        let token = header(headers, TOKEN)?.ok_or_else(|| missing(TOKEN))?;
        let token = Token::parse(token).map_err(|error| bad(&error))?;
        let holder = header(headers, HOLDER)?;
        if let Some((keyring, cluster)) = &self.signing {
            let unsigned = || Problem::new(StatusCode::UNAUTHORIZED, format!("the header {SIGNATURE} is missing"));
            let signature = header(headers, SIGNATURE)?.ok_or_else(unsigned)?;
            let holder = holder.ok_or_else(|| missing(HOLDER))?;
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
            keyring.verify(signature, Expected { cluster, key: &key, token, holder, now_ms })?;
        }
        Ok(Held { key, token, holder: holder.map(str::to_owned), signed: self.signing.is_some() })
    }

    async fn admit(&self, held: &Held) -> Result<(), Problem> {
        let (gate, key, token) = (self.gate.clone(), held.key.clone(), held.token);
        let admitted = tokio::task::spawn_blocking(move || gate.admit(&key, token)).await;
        match admitted.unwrap_or_else(|error| Err(GateError::Failed(error.to_string()))) {
            Ok(_) => Ok(()),
            Err(GateError::Refused(refusal)) => {
                let status = if refusal == Refusal::Shared { StatusCode::FORBIDDEN } else { StatusCode::CONFLICT };
                Err(Problem { highest: refusal.highest(), ..Problem::new(status, refusal.to_string()) })
            }
            Err(error) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
        }
    }
}

fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// A header that is there once, as text. Twice would leave it to chance which one a service behind this one reads.
fn header<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Problem> {
    let bad = |error: String| Problem::new(StatusCode::BAD_REQUEST, error);
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad(format!("the header {name} is there twice")));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| bad(format!("the header {name} is no text")))?;
    Ok(Some(text))
}

struct Problem {
    status: StatusCode,
    error: String,
    highest: Option<Token>,
}

impl Problem {
    fn new(status: StatusCode, error: String) -> Problem {
        Problem { status, error, highest: None }
    }

    fn response<R: From<Bytes>>(self) -> Response<R> {
        let mut body = serde_json::json!({ "success": false, "error": self.error });
        if let Some(highest) = self.highest {
            body["highest"] = highest.get().into();
        }
        let mut response = Response::new(R::from(Bytes::from(body.to_string())));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl From<SignatureError> for Problem {
    fn from(error: SignatureError) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, DurableFence, Equal, NEVER_MS, SigningKey};
    use axum::Router;
    use axum::body::Body;
    use axum::routing::{get, post};
    use std::collections::HashMap;
    use tokio::sync::{mpsc, oneshot};

    fn request(method: &str, headers: &[(&str, &str)]) -> Request<Body> {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, String) {
        let response = router.clone().call(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn router(layer: FenceLayer) -> Router {
        let write =
            |request: Request<Body>| async move { request.extensions().get::<Held>().unwrap().token.to_string() };
        Router::new().route("/", post(write).get(|| async { "read" })).layer(layer)
    }

    #[tokio::test]
    async fn stale_tokens_are_answered_with_the_highest() {
        let home = tempfile::tempdir().unwrap();
        let fence = DurableFence::open(&home.path().join("bars"), Equal::Allow).unwrap();
        let router = router(FenceLayer::new(Mutex::new(fence)));
        let write = async |token| ask(&router, request("POST", &[(KEY, "a"), (TOKEN, token)])).await;
        assert_eq!(write("5").await, (StatusCode::OK, "5".to_owned()));
        assert_eq!(write("5").await.0, StatusCode::OK);
        let (status, body) = write("4").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["highest"], &body["success"]), (StatusCode::CONFLICT, &5.into(), &false.into()));
        assert_eq!(ask(&router, request("GET", &[])).await, (StatusCode::OK, "read".to_owned()));
    }

    #[tokio::test]
    async fn what_cannot_be_understood_is_refused_before_it_raises_a_bar() {
        let router = router(FenceLayer::new(Mutex::new(Fence::new(Equal::Allow))));
        for (headers, status) in [
            (&[][..], 400),
            (&[(KEY, "a")], 400),
            (&[(TOKEN, "9")], 400),
            (&[(KEY, "a"), (TOKEN, "0")], 400),
            (&[(KEY, "a"), (TOKEN, "nine")], 400),
            (&[(KEY, ""), (TOKEN, "9")], 400),
            (&[(KEY, "a"), (TOKEN, "9"), (TOKEN, "8")], 400),
            (&[(KEY, "a#shared"), (TOKEN, "9")], 403),
        ] {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                let (found, body) = ask(&router, request(method, headers)).await;
                assert_eq!(found.as_u16(), status, "{headers:?}: {body}");
            }
        }
        assert_eq!(ask(&router, request("POST", &[(KEY, "a"), (TOKEN, "1")])).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn with_keys_only_what_was_signed_passes() {
        let keyring = Keyring::new(vec![SigningKey::new(&[7; 32]).unwrap()]).unwrap();
        let router = router(FenceLayer::signed(Mutex::new(Fence::new(Equal::Allow)), keyring.clone(), "c1"));
        let claim = Claim::new("c1", Key::name("a").unwrap(), Token::new(5).unwrap(), "h", NEVER_MS).unwrap();
        let signature = keyring.sign(&claim);
        let expired = keyring.sign(&Claim::new("c1", Key::name("a").unwrap(), claim.token(), "h", 1).unwrap());
        for (headers, status) in [
            (&[(KEY, "a"), (TOKEN, "9"), (HOLDER, "h")][..], 401),
            (&[(KEY, "a"), (TOKEN, "5"), (SIGNATURE, &signature)], 400),
            (&[(KEY, "a"), (TOKEN, "9"), (HOLDER, "h"), (SIGNATURE, &signature)], 403),
            (&[(KEY, "b"), (TOKEN, "5"), (HOLDER, "h"), (SIGNATURE, &signature)], 403),
            (&[(KEY, "a"), (TOKEN, "5"), (HOLDER, "i"), (SIGNATURE, &signature)], 403),
            (&[(KEY, "a"), (TOKEN, "5"), (HOLDER, "h"), (SIGNATURE, &expired)], 403),
            (&[(KEY, "a"), (TOKEN, "5"), (HOLDER, "h"), (SIGNATURE, "tenure1.AAAA")], 403),
            (&[(KEY, "a"), (TOKEN, "5"), (HOLDER, "h"), (SIGNATURE, &signature)], 200),
        ] {
            let (found, body) = ask(&router, request("POST", headers)).await;
            assert_eq!(found.as_u16(), status, "{headers:?}: {body}");
        }
    }

    type Begins = mpsc::UnboundedReceiver<(Token, oneshot::Sender<()>)>;
    type Data = Arc<Mutex<HashMap<Key, Token>>>;

    /// A service whose writes take until the test lets them end.
    fn slow() -> (Router, Begins, Data) {
        let (began, begins) = mpsc::unbounded_channel();
        let data = Data::default();
        let written = data.clone();
        let write = move |request: Request<Body>| {
            let (began, written) = (began.clone(), written.clone());
            async move {
                let held = request.extensions().get::<Held>().unwrap().clone();
                let (end, ended) = oneshot::channel();
                began.send((held.token, end)).unwrap();
                let _ = ended.await;
                written.lock().unwrap().insert(held.key, held.token);
            }
        };
        let layer = FenceLayer::new(Mutex::new(Fence::new(Equal::Allow)));
        (Router::new().route("/", get(|| async {}).post(write)).layer(layer), begins, data)
    }

    #[tokio::test]
    async fn a_slow_write_is_never_overtaken_and_then_wins() {
        let (router, mut begins, data) = slow();
        let write = |token: &str| {
            let (router, request) = (router.clone(), request("POST", &[(KEY, "a"), (TOKEN, token)]));
            tokio::spawn(async move { ask(&router, request).await.0 })
        };
        let first = write("5");
        let (token, end) = begins.recv().await.unwrap();
        assert_eq!(token.get(), 5);
        let second = write("6");
        // Time enough for the second one to be admitted, if nothing held it back.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert!(begins.try_recv().is_err(), "the second write began while the first was under way");
        end.send(()).unwrap();
        assert_eq!(first.await.unwrap(), StatusCode::OK);
        let (token, end) = begins.recv().await.unwrap();
        assert_eq!(token.get(), 6);
        end.send(()).unwrap();
        assert_eq!(second.await.unwrap(), StatusCode::OK);
        assert_eq!(data.lock().unwrap()[&Key::name("a").unwrap()].get(), 6);
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_does_not_let_the_next_one_in_early() {
        let (router, mut begins, data) = slow();
        let first = tokio::spawn({
            let (router, request) = (router.clone(), request("POST", &[(KEY, "a"), (TOKEN, "5")]));
            async move { ask(&router, request).await }
        });
        let (_, end) = begins.recv().await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = tokio::spawn({
            let (router, request) = (router.clone(), request("POST", &[(KEY, "a"), (TOKEN, "6")]));
            async move { ask(&router, request).await.0 }
        });
        end.send(()).unwrap();
        let (token, end) = begins.recv().await.unwrap();
        assert_eq!(token.get(), 6);
        assert_eq!(data.lock().unwrap()[&Key::name("a").unwrap()].get(), 5, "the first write was carried out");
        end.send(()).unwrap();
        assert_eq!(second.await.unwrap(), StatusCode::OK);
        assert_eq!(data.lock().unwrap()[&Key::name("a").unwrap()].get(), 6);
    }
}
