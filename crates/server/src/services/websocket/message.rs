//! The JSON of the session: requests read and checked, replies and events written.

use serde::Serialize;
use serde_json::{Map, Value};
use tenure_machine::Revision;
use tenure_machine::limits as machine;

use super::claims::Pair;
use crate::limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandType {
    Acquire,
    Release,
    Renew,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub command: CommandType,
    pub pair: Pair,
    /// Always there in an acquire.
    pub ttl_ms: Option<u64>,
    /// Of an acquire: how long to wait. `None` = until it is granted or given up, 0 = not at all.
    pub timeout_ms: Option<u64>,
    pub token: Option<Revision>,
    pub id: Option<RequestId>,
}

/// A string or a number of the client's, given back as it came.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct RequestId(Value);

/// Why a message is no request, with as much as could be read of it.
#[derive(Debug, PartialEq)]
pub struct Unread {
    pub error: String,
    pub key: Option<String>,
    pub id: Option<RequestId>,
}

impl Request {
    pub fn read(text: &str) -> Result<Request, Unread> {
        let fields: Map<String, Value> = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Err(Unread::of("a request is a JSON object")),
            Err(error) => return Err(Unread::of(format!("not JSON: {error}"))),
        };
        let id = match request_id(&fields) {
            Ok(id) => id,
            Err(error) => return Err(Unread::of(error)),
        };
        let with_id = |error| Unread { error, key: text_of(&fields, "key").ok(), id: id.clone() };
        let request = read_fields(&fields).map_err(with_id)?;
        Ok(Request { id, ..request })
    }
}

impl Unread {
    pub fn of(error: impl Into<String>) -> Unread {
        Unread { error: error.into(), key: None, id: None }
    }
}

fn read_fields(fields: &Map<String, Value>) -> Result<Request, String> {
    let command = match present(fields, "commandType").ok_or("commandType is missing")?.as_u64() {
        Some(1) => CommandType::Acquire,
        Some(2) => CommandType::Release,
        Some(3) => CommandType::Renew,
        _ => return Err("commandType must be 1 (acquire), 2 (release) or 3 (renew)".to_owned()),
    };
    let pair = Pair { client: text_of(fields, "clientId")?, key: text_of(fields, "key")? };
    let ttl_ms = match (command, present(fields, "ttl")) {
        // Clients of the plain protocol send one with a release too, whatever it is.
        (CommandType::Release, _) | (CommandType::Renew, None) => None,
        (CommandType::Acquire, None) => return Err("ttl is missing".to_owned()),
        (_, Some(ttl)) => Some(ttl_ms(ttl)?),
    };
    let token = match (command, present(fields, "fencingToken")) {
        (CommandType::Acquire, _) | (_, None) => None,
        (_, Some(token)) => Some(fencing_token(token)?),
    };
    let timeout_ms = match (command, present(fields, "timeout")) {
        (CommandType::Release | CommandType::Renew, _) | (_, None) => None,
        (CommandType::Acquire, Some(timeout)) => {
            let timeout_ms = timeout.as_u64().filter(|timeout_ms| *timeout_ms <= machine::LEASE_TTL_MS);
            Some(timeout_ms.ok_or("timeout must be a whole number of milliseconds, 0 to try once")?)
        }
    };
    Ok(Request { command, pair, ttl_ms, timeout_ms, token, id: None })
}

/// A field that is null is not there.
fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text_of(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    let value = present(fields, name).ok_or_else(|| format!("{name} is missing"))?;
    match value.as_str() {
        None => Err(format!("{name} must be a string")),
        Some("") => Err(format!("{name} is empty")),
        Some(text) if text.len() > machine::LOCK_NAME_BYTES => {
            Err(format!("{name} is longer than {} bytes", machine::LOCK_NAME_BYTES))
        }
        Some(text) => Ok(text.to_owned()),
    }
}

fn ttl_ms(ttl: &Value) -> Result<u64, String> {
    if ttl.as_i64().is_some_and(|ttl| ttl < limits::LEASE_TTL_MIN_MS as i64) {
        return Err(format!("ttl must be at least {} ms", limits::LEASE_TTL_MIN_MS));
    }
    match ttl.as_u64() {
        None => Err("ttl must be a whole number of milliseconds".to_owned()),
        Some(ttl) if ttl > machine::LEASE_TTL_MS => Err(format!("ttl must be at most {} ms", machine::LEASE_TTL_MS)),
        Some(ttl) => Ok(ttl),
    }
}

/// As it was told, or its value alone.
fn fencing_token(token: &Value) -> Result<Revision, String> {
    let value = token.get("value").unwrap_or(token);
    value.as_i64().ok_or_else(|| "fencingToken must be the token that came with the grant".to_owned())
}

fn request_id(fields: &Map<String, Value>) -> Result<Option<RequestId>, String> {
    match present(fields, "requestId") {
        None => Ok(None),
        Some(Value::String(text)) if text.len() > limits::REQUEST_ID_BYTES => {
            Err(format!("requestId is longer than {} bytes", limits::REQUEST_ID_BYTES))
        }
        Some(id @ (Value::String(_) | Value::Number(_))) => Ok(Some(RequestId(id.clone()))),
        Some(_) => Err("requestId must be a string or a number".to_owned()),
    }
}

/// Whatever is told: the reply to a request has `success`, what comes without being asked has `event`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<&'a RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
}

/// Value 0 = nothing was granted.
#[derive(Debug, Clone, Serialize)]
pub struct FencingToken<'a> {
    pub key: &'a str,
    pub value: Revision,
    /// With a grant and a renewal, if the cluster signs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signature: String,
}

impl<'a> FencingToken<'a> {
    pub fn unsigned(key: &'a str, value: Revision) -> FencingToken<'a> {
        FencingToken { key, value, signature: String::new() }
    }
}

impl Told<'_> {
    pub fn written(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers can be written as JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Request::read(text).unwrap_err().error
    }

    #[test]
    fn a_request_is_read() {
        let text = r#"{"commandType":1,"key":"jobs","clientId":"ada","ttl":5000,"requestId":"r1","more":{}}"#;
        let request = Request::read(text).unwrap();
        assert_eq!(request.command, CommandType::Acquire);
        assert_eq!((request.pair.client.as_str(), request.pair.key.as_str()), ("ada", "jobs"));
        assert_eq!((request.ttl_ms, request.id), (Some(5000), Some(RequestId("r1".into()))));
        let release = Request::read(r#"{"commandType":2,"key":"jobs","clientId":"ada","ttl":0}"#).unwrap();
        assert_eq!((release.command, release.ttl_ms, release.id), (CommandType::Release, None, None));
        for token in ["7", r#"{"key":"jobs","value":7}"#] {
            let text = format!(r#"{{"commandType":3,"key":"jobs","clientId":"ada","fencingToken":{token}}}"#);
            assert_eq!(Request::read(&text).unwrap().token, Some(7));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "x".repeat(machine::LOCK_NAME_BYTES + 1);
        let wide = format!(r#"{{"commandType":1,"key":"{long}","clientId":"a","ttl":500}}"#);
        let many = format!(r#"{{"commandType":1,"key":"k","clientId":"a","ttl":500,"requestId":"{long}"}}"#);
        for (text, named) in [
            ("hello", "not JSON"),
            ("[1]", "a JSON object"),
            ("{}", "commandType is missing"),
            (r#"{"commandType":4,"key":"k","clientId":"a","ttl":500}"#, "commandType must be"),
            (r#"{"commandType":"1","key":"k","clientId":"a","ttl":500}"#, "commandType must be"),
            (r#"{"commandType":1,"clientId":"a","ttl":500}"#, "key is missing"),
            (r#"{"commandType":1,"key":"","clientId":"a","ttl":500}"#, "key is empty"),
            (r#"{"commandType":1,"key":"k","clientId":7,"ttl":500}"#, "clientId must be a string"),
            (r#"{"commandType":1,"key":"k","clientId":null,"ttl":500}"#, "clientId is missing"),
            (r#"{"commandType":1,"key":"k","clientId":"a"}"#, "ttl is missing"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":499}"#, "at least 500"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":-1}"#, "at least 500"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":"500"}"#, "whole number"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":9000000000001}"#, "at most"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":500,"timeout":-1}"#, "timeout must be"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":500,"timeout":"1s"}"#, "timeout must be"),
            (r#"{"commandType":1,"key":"k","clientId":"a","ttl":500,"requestId":{}}"#, "a string or a number"),
            (r#"{"commandType":2,"key":"k","clientId":"a","fencingToken":"x"}"#, "fencingToken must be"),
            (&wide, "key is longer than 1024 bytes"),
            (&many, "requestId is longer than"),
        ] {
            let error = refused(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn who_asks_wrongly_is_answered_by_number() {
        let unread = Request::read(r#"{"commandType":9,"key":"k","requestId":7}"#).unwrap_err();
        assert_eq!((unread.key.as_deref(), unread.id), (Some("k"), Some(RequestId(7.into()))));
    }

    #[test]
    fn only_what_is_said_is_written() {
        let granted =
            Told { success: Some(true), fencing_token: Some(FencingToken::unsigned("jobs", 7)), ..Told::default() };
        assert_eq!(granted.written(), r#"{"success":true,"fencingToken":{"key":"jobs","value":7}}"#);
        let signed = FencingToken { signature: "tenure1.x".to_owned(), ..FencingToken::unsigned("jobs", 7) };
        let granted = Told { fencing_token: Some(signed), ..Told::default() };
        assert_eq!(granted.written(), r#"{"fencingToken":{"key":"jobs","value":7,"signature":"tenure1.x"}}"#);
    }
}
