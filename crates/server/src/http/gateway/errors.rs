//! A gRPC status as the gateway's clients see it: an HTTP status and a JSON object.

use bytes::Bytes;
use http::StatusCode;
use prost::Message;
use serde::Serialize;
use tonic::{Code, Status};

/// The answer to a call that failed.
#[derive(Serialize)]
struct CallError<'a> {
    /// The same as `message`; old clients read this one.
    error: &'a str,
    message: &'a str,
    code: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail>,
}

/// The last line of a stream that failed.
#[derive(Serialize)]
struct StreamError<'a> {
    grpc_code: i32,
    http_code: u16,
    message: &'a str,
    http_status: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail>,
}

#[derive(Serialize)]
struct Detail {
    #[serde(rename = "@type")]
    kind: String,
    /// The detail's message in base64.
    value: String,
}

/// `google.rpc.Status`, which travels in `grpc-status-details-bin`.
#[derive(Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

pub(super) fn call_error(status: &Status) -> Vec<u8> {
    let message = status.message();
    let error = CallError { error: message, message, code: status.code() as i32, details: details(status) };
    serde_json::to_vec(&error).unwrap_or_default()
}

pub(super) fn stream_error(status: &Status) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        error: StreamError<'a>,
    }
    let http = http_status(status.code());
    let error = StreamError {
        grpc_code: status.code() as i32,
        http_code: http.as_u16(),
        message: status.message(),
        http_status: http.canonical_reason().unwrap_or_default(),
        details: details(status),
    };
    serde_json::to_vec(&Line { error }).unwrap_or_default()
}

/// As grpc-gateway maps them, in the version that etcd 3.5 is built with.
pub(super) fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn details(status: &Status) -> Vec<Detail> {
    use base64::Engine;
    let rich = RichStatus::decode(status.details()).unwrap_or_default();
    let detail =
        |any: Any| Detail { kind: any.type_url, value: base64::engine::general_purpose::STANDARD.encode(&any.value) };
    rich.details.into_iter().map(detail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_looks_as_etcds_does() {
        let status = Status::not_found("etcdserver: requested lease not found");
        assert_eq!(
            String::from_utf8(call_error(&status)).unwrap(),
            r#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#
        );
        assert_eq!(http_status(status.code()), 404);
    }

    #[test]
    fn a_failed_stream_says_both_codes() {
        assert_eq!(
            String::from_utf8(stream_error(&Status::unavailable("no leader"))).unwrap(),
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}"#
        );
    }

    #[test]
    fn details_are_passed_on() {
        let any = Any { type_url: "type.example/tenure.v1.Cycle".to_owned(), value: "x".into() };
        let rich = RichStatus { code: 10, message: String::new(), details: vec![any] };
        let status = Status::with_details(Code::Aborted, "deadlock", rich.encode_to_vec().into());
        let json = String::from_utf8(call_error(&status)).unwrap();
        assert!(json.ends_with(r#""details":[{"@type":"type.example/tenure.v1.Cycle","value":"eA=="}]}"#), "{json}");
    }
}
