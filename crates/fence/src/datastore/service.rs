//! The data store's HTTP interface. What is wrong with a request is said before anything can raise a bar.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::store::{Store, Stored, WriteError};
use crate::{Expected, Key, Keyring, MAX_HOLDER_BYTES, Refusal, SignatureError, Token};

/// The largest request: as for the lock service.
pub const REQUEST_BYTES: usize = 3 << 19;
/// Keys in one answer, if not said otherwise, and at most.
const LIST_KEYS: usize = 100;
const MAX_LIST_KEYS: usize = 1000;

/// What it takes to check signatures.
#[derive(Clone)]
pub struct Signing {
    pub keyring: Keyring,
    pub cluster: String,
}

#[derive(Clone)]
struct Service {
    store: Store,
    signing: Option<Arc<Signing>>,
}

#[derive(Deserialize)]
struct WriteRequest {
    #[serde(rename = "clientID")]
    client_id: String,
    #[serde(rename = "fencingToken")]
    fencing_token: FencingToken,
    data: String,
}

#[derive(Deserialize)]
struct FencingToken {
    key: String,
    value: u64,
    signature: Option<String>,
}

#[derive(Deserialize)]
struct ReadRequest {
    key: String,
}

#[derive(Deserialize)]
struct ListRequest {
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Written {
    success: bool,
}

#[derive(Serialize)]
struct Refused {
    success: bool,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<u64>,
}

#[derive(Serialize)]
struct Entry<'a> {
    key: &'a str,
    token: u64,
    #[serde(rename = "clientID")]
    client_id: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
struct Listed<'a> {
    keys: Vec<ListedKey<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct ListedKey<'a> {
    key: &'a str,
    token: u64,
    #[serde(rename = "clientID")]
    client_id: &'a str,
    bytes: usize,
}

/// An answer that is not a success.
struct Problem {
    status: StatusCode,
    error: String,
    highest: Option<Token>,
}

/// `POST /write`, `GET /read?key=…`, `GET /keys?after=…&limit=…`, `GET /livez`, `GET /readyz`.
pub fn router(store: Store, signing: Option<Signing>) -> Router {
    let service = Service { store, signing: signing.map(Arc::new) };
    Router::new()
        .route("/write", post(write))
        .route("/read", get(read))
        .route("/keys", get(list))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(|| async { "ok" }))
        .fallback(|uri: Uri| async move { Problem::new(StatusCode::NOT_FOUND, format!("there is no {}", uri.path())) })
        .method_not_allowed_fallback(|uri: Uri| async move {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take this method", uri.path()))
        })
        .layer(DefaultBodyLimit::max(REQUEST_BYTES))
        .with_state(service)
}

async fn write(State(service): State<Service>, body: Result<Bytes, BytesRejection>) -> Result<Json<Written>, Problem> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a request has at most {REQUEST_BYTES} bytes"))
        }
        status => Problem::new(status, rejection.body_text()),
    })?;
    let request: WriteRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("the request cannot be read: {error}")))?;
    let (key, stored) = service.check(request)?;
    service.store.write(key, stored).await?;
    Ok(Json(Written { success: true }))
}

async fn read(
    State(service): State<Service>,
    request: Result<Query<ReadRequest>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(request) = request.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let key = Key::parse(&request.key).map_err(|error| Problem::bad_request(error.to_string()))?;
    let stored = service.store.read(&key);
    let stored = stored.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, format!("nothing was written to {key:?}", key = key.as_str()))
    })?;
    let Stored { token, holder, data } = &*stored;
    Ok(Json(Entry { key: key.as_str(), token: token.get(), client_id: holder, data }).into_response())
}

async fn list(
    State(service): State<Service>,
    request: Result<Query<ListRequest>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(request) = request.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let after = request.after.as_deref().map(Key::parse).transpose();
    let after = after.map_err(|error| Problem::bad_request(error.to_string()))?;
    let limit = request.limit.unwrap_or(LIST_KEYS).clamp(1, MAX_LIST_KEYS);
    let mut entries = service.store.list(after.as_ref(), limit + 1);
    let more = entries.len() > limit;
    entries.truncate(limit);
    let keys = entries.iter().map(|(key, stored)| ListedKey {
        key: key.as_str(),
        token: stored.token.get(),
        client_id: &stored.holder,
        bytes: stored.data.len(),
    });
    Ok(Json(Listed { keys: keys.collect(), more }).into_response())
}

impl Service {
    fn check(&self, request: WriteRequest) -> Result<(Key, Stored), Problem> {
        let WriteRequest { client_id, fencing_token, data } = request;
        let key = Key::parse(&fencing_token.key).map_err(|error| Problem::bad_request(error.to_string()))?;
        let token = Token::new(fencing_token.value).map_err(|error| Problem::bad_request(error.to_string()))?;
        if client_id.is_empty() || client_id.len() > MAX_HOLDER_BYTES {
            let error = format!("clientID has from 1 to {MAX_HOLDER_BYTES} bytes, not {}", client_id.len());
            return Err(Problem::bad_request(error));
        }
        if let Some(signing) = &self.signing {
            let Some(signature) = &fencing_token.signature else {
                let error = "fencingToken.signature is missing: this store takes signed tokens only";
                return Err(Problem::new(StatusCode::UNAUTHORIZED, error.to_owned()));
            };
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
            let expected = Expected { cluster: &signing.cluster, key: &key, token, holder: &client_id, now_ms };
            signing.keyring.verify(signature, expected)?;
        }
        Ok((key, Stored { token, holder: client_id, data }))
    }
}

impl Problem {
    fn new(status: StatusCode, error: String) -> Problem {
        Problem { status, error, highest: None }
    }

    fn bad_request(error: String) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, error)
    }
}

impl From<SignatureError> for Problem {
    fn from(error: SignatureError) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, error.to_string())
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Problem {
        let (status, highest) = match &error {
            WriteError::Refused(Refusal::Shared) => (StatusCode::FORBIDDEN, None),
            WriteError::Refused(refusal) => (StatusCode::CONFLICT, refusal.highest()),
            WriteError::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, None),
            WriteError::Fault(_) | WriteError::Stopped => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        Problem { status, error: error.to_string(), highest }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let refused = Refused { success: false, error: self.error, highest: self.highest.map(Token::get) };
        (self.status, Json(refused)).into_response()
    }
}
