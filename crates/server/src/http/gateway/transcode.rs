//! JSON into protobuf and back, by the descriptors of the API: no rpc needs code of its own.
//!
//! The mapping is that of etcd's gateway. Out: field names as in the .proto files, bytes in base64,
//! 64-bit integers as strings, enums by name, defaults left out. In: all that and what else
//! protobuf's JSON allows (camel case, numbers for 64-bit integers and enums); unknown fields are
//! ignored, and so is whatever follows the value of a request that is not a stream.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::uri::PathAndQuery;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use serde::Deserialize;
use serde_json::Value;
use tonic::Status;

/// Before each message: one byte for its compression, four for its length.
pub(crate) const FRAME_HEADER_BYTES: usize = 5;

/// One rpc as the gateway sees it.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) path: PathAndQuery,
    pub(crate) request_is_stream: bool,
    pub(crate) response_is_stream: bool,
    descriptor: MethodDescriptor,
}

impl Method {
    /// `rpc` is `package.Service/Method`; None = the pool knows no such rpc.
    pub(crate) fn find(pool: &DescriptorPool, rpc: &str) -> Option<Arc<Method>> {
        let (service, name) = rpc.split_once('/')?;
        let descriptor = pool.get_service_by_name(service)?.methods().find(|method| method.name() == name)?;
        Some(Arc::new(Method {
            path: format!("/{rpc}").parse().ok()?,
            request_is_stream: descriptor.is_client_streaming(),
            response_is_stream: descriptor.is_server_streaming(),
            descriptor,
        }))
    }

    /// The first JSON value of `json` as a framed message; no value at all is the empty message.
    pub(crate) fn request_frame(&self, json: &[u8]) -> Result<Bytes, Status> {
        let input = self.descriptor.input();
        let json = json.trim_ascii_start();
        let message = if json.is_empty() || json.starts_with(b"null") {
            DynamicMessage::new(input)
        } else {
            read(&input, json).map_err(|error| Status::invalid_argument(error.to_string()))?
        };
        let length = message.encoded_len();
        let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + length);
        frame.put_u8(0);
        frame.put_u32(u32::try_from(length).map_err(|_| too_large())?);
        message.encode(&mut frame).map_err(|error| Status::internal(error.to_string()))?;
        Ok(frame.freeze())
    }

    /// Appends a response message as JSON.
    pub(crate) fn write_response(&self, message: Bytes, json: &mut Vec<u8>) -> Result<(), Status> {
        write_message(self.output(), message, json)
    }

    pub(crate) fn output(&self) -> MessageDescriptor {
        self.descriptor.output()
    }
}

/// Appends a message as JSON.
pub(crate) fn write_message(descriptor: MessageDescriptor, message: Bytes, json: &mut Vec<u8>) -> Result<(), Status> {
    let internal = |error: String| Status::internal(format!("the response has no form in JSON: {error}"));
    let message = DynamicMessage::decode(descriptor, message).map_err(|error| internal(error.to_string()))?;
    let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(true);
    message
        .serialize_with_options(&mut serde_json::Serializer::new(json), &options)
        .map_err(|error| internal(error.to_string()))
}

/// Unknown fields are ignored, but not unknown names of enums: who compares for `GRATER` must not be
/// understood as `EQUAL`. The library ignores both or neither; so it is told to ignore neither, and if
/// it finds something unknown the unknown fields are taken out first.
fn read(input: &MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, serde_json::Error> {
    let strict = DeserializeOptions::new().deny_unknown_fields(true);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    if let Ok(message) = DynamicMessage::deserialize_with_options(input.clone(), &mut deserializer, &strict) {
        return Ok(message);
    }
    let mut value = Value::deserialize(&mut serde_json::Deserializer::from_slice(json))?;
    remove_unknown_fields(input, &mut value);
    DynamicMessage::deserialize_with_options(input.clone(), value, &strict)
}

fn remove_unknown_fields(message: &MessageDescriptor, value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.retain(|name, value| {
        let field = message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name));
        let Some(field) = field else { return false };
        if let Kind::Message(inner) = field.kind() {
            match value {
                Value::Array(values) => values.iter_mut().for_each(|value| remove_unknown_fields(&inner, value)),
                value => remove_unknown_fields(&inner, value),
            }
        }
        true
    });
}

pub(crate) fn too_large() -> Status {
    Status::invalid_argument("etcdserver: request is too large")
}

/// The length of the next message, once it has come.
pub(crate) fn message_length(buffer: &BytesMut) -> Option<usize> {
    Some(u32::from_be_bytes(buffer.get(1..FRAME_HEADER_BYTES)?.try_into().ok()?) as usize)
}

/// Takes the next message out of what came in so far.
pub(crate) fn take_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = message_length(buffer)?;
    if buffer.len() < FRAME_HEADER_BYTES + length {
        return None;
    }
    buffer.advance(FRAME_HEADER_BYTES);
    Some(buffer.split_to(length).freeze())
}

/// Cuts a body that holds one JSON object after another, as it comes in.
///
/// It only counts braces outside of strings; whether a piece is JSON is for the parser to say.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    buffer: BytesMut,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Splitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that wait for the end of their object.
    pub(crate) fn pending(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn next(&mut self) -> Option<Bytes> {
        if self.scanned == 0 {
            let space = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.advance(space);
        }
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            // What begins with no brace is no object: handed over at once, to be refused.
            if self.depth == 0 && !self.in_string {
                return self.take(self.scanned);
            }
        }
        None
    }

    /// The body has ended: what is left, if it is more than space.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let rest = self.take(self.buffer.len())?;
        (!rest.trim_ascii().is_empty()).then_some(rest)
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        let piece = self.buffer.split_to(length).freeze();
        self.scanned = 0;
        self.depth = 0;
        self.in_string = false;
        self.escaped = false;
        (!piece.is_empty()).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::etcdserverpb::{
        Compare, PutRequest, RangeRequest, TxnRequest, compare::TargetUnion, request_op::Request as Operation,
    };

    fn method(rpc: &str) -> Arc<Method> {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        Method::find(&pool, rpc).unwrap()
    }

    fn request<M: Message + Default>(rpc: &str, json: &str) -> M {
        let mut frame = BytesMut::from(&method(rpc).request_frame(json.as_bytes()).unwrap()[..]);
        let message = take_message(&mut frame).unwrap();
        assert!(frame.is_empty());
        M::decode(message).unwrap()
    }

    fn refusal(rpc: &str, json: &str) -> String {
        let status = method(rpc).request_frame(json.as_bytes()).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    }

    fn response(rpc: &str, message: impl Message) -> String {
        let mut json = Vec::new();
        method(rpc).write_response(message.encode_to_vec().into(), &mut json).unwrap();
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn every_path_leads_to_an_rpc_and_every_rpc_has_a_path() {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        for (path, rpc) in super::super::paths::PATHS {
            assert!(Method::find(&pool, rpc).is_some(), "{path} leads nowhere");
        }
        let etcd = pool.services().filter(|service| !service.package_name().starts_with("tenure"));
        for method in etcd.flat_map(|service| service.methods().collect::<Vec<_>>()) {
            let rpc = format!("{}/{}", method.parent_service().full_name(), method.name());
            assert!(super::super::paths::PATHS.iter().any(|(_, known)| *known == rpc), "{rpc} has no path");
        }
    }

    #[test]
    fn requests_are_read_in_both_spellings() {
        let expected = RangeRequest {
            key: "foo".into(),
            limit: 5,
            sort_order: 1,
            sort_target: 2,
            keys_only: true,
            ..Default::default()
        };
        for json in [
            r#"{"key":"Zm9v","limit":"5","sort_order":"ASCEND","sort_target":"CREATE","keys_only":true}"#,
            r#"{"key":"Zm9v","limit":5,"sortOrder":1,"sortTarget":2,"keysOnly":true}"#,
            r#" {"key":"Zm9v","limit":5,"sortOrder":1,"sortTarget":2,"keysOnly":true, "unknown":{"a":[1]}} garbage"#,
        ] {
            assert_eq!(request::<RangeRequest>("etcdserverpb.KV/Range", json), expected, "{json}");
        }
        let nulls = r#"{"key":null,"limit":null}"#;
        for json in ["", "null", "{}", nulls] {
            assert_eq!(request::<RangeRequest>("etcdserverpb.KV/Range", json), RangeRequest::default(), "{json}");
        }
    }

    #[test]
    fn a_transaction_is_read_to_its_depth() {
        let json = r#"{"compare":[{"result":"EQUAL","target":"CREATE","key":"Zm9v","createRevision":"2"}],
                       "success":[{"requestTxn":{"success":[{"request_put":{"key":"Zm9v","value":"YmF6","unknown":[]}}]}}]}"#;
        let txn: TxnRequest = request("etcdserverpb.KV/Txn", json);
        let compare = Compare {
            target: 1,
            key: "foo".into(),
            target_union: Some(TargetUnion::CreateRevision(2)),
            ..Default::default()
        };
        assert_eq!(txn.compare, [compare]);
        let Some(Operation::RequestTxn(inner)) = &txn.success[0].request else { panic!("{txn:?}") };
        let put = PutRequest { key: "foo".into(), value: "baz".into(), ..Default::default() };
        assert_eq!(inner.success[0].request, Some(Operation::RequestPut(put)));
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        for (json, reason) in [
            (r#"{"key":"Zm9v""#, "EOF"),
            ("hello", "expected"),
            (r#"{"key":"!!"}"#, "base64"),
            (r#"{"key":5}"#, "base64"),
            (r#"{"limit":"x"}"#, "digit"),
            (r#"{"limit":1.5}"#, "integer"),
            (r#"{"sort_order":"BOGUS"}"#, "enum"),
            (r#"{"sort_order":"BOGUS","unknown":1}"#, "enum"),
            (r#"{"keys_only":"true"}"#, "boolean"),
            ("[1]", "map"),
        ] {
            let message = refusal("etcdserverpb.KV/Range", json);
            assert!(message.contains(reason), "{json}: {message}");
        }
    }

    #[test]
    fn responses_look_as_etcds_do() {
        use tenure_api::{etcdserverpb as pb, mvccpb};
        let header = pb::ResponseHeader { cluster_id: u64::MAX, member_id: 7, revision: 3, raft_term: 2 };
        let range = pb::RangeResponse {
            header: Some(header),
            kvs: vec![mvccpb::KeyValue {
                key: "foo".into(),
                version: 1,
                value: vec![255].into(),
                ..Default::default()
            }],
            more: false,
            count: 1,
        };
        assert_eq!(
            response("etcdserverpb.KV/Range", range),
            r#"{"header":{"cluster_id":"18446744073709551615","member_id":"7","revision":"3","raft_term":"2"},"kvs":[{"key":"Zm9v","version":"1","value":"/w=="}],"count":"1"}"#
        );
        let watch = pb::WatchResponse {
            watch_id: -1,
            events: vec![
                mvccpb::Event { r#type: 0, kv: Some(Default::default()), prev_kv: None },
                mvccpb::Event { r#type: 1, kv: None, prev_kv: None },
            ],
            ..Default::default()
        };
        assert_eq!(
            response("etcdserverpb.Watch/Watch", watch),
            r#"{"watch_id":"-1","events":[{"kv":{}},{"type":"DELETE"}]}"#
        );
        let member = pb::Member { id: 5, peer_ur_ls: vec!["http://a:1".to_owned()], ..Default::default() };
        assert_eq!(
            response("etcdserverpb.Cluster/MemberList", pb::MemberListResponse { header: None, members: vec![member] }),
            r#"{"members":[{"ID":"5","peerURLs":["http://a:1"]}]}"#
        );
        assert_eq!(response("etcdserverpb.KV/Put", pb::PutResponse::default()), "{}");
    }

    #[test]
    fn objects_are_cut_wherever_the_pieces_end() {
        let body = r#" {"a":"}\"{"}{"b":[{}]}
            {"c":{"d":"\\"}} "#;
        let whole = [r#"{"a":"}\"{"}"#, r#"{"b":[{}]}"#, r#"{"c":{"d":"\\"}}"#];
        for step in 1..body.len() {
            let mut splitter = Splitter::default();
            let mut found = Vec::new();
            for piece in body.as_bytes().chunks(step) {
                splitter.push(piece);
                found.extend(std::iter::from_fn(|| splitter.next()));
            }
            assert_eq!(found, whole, "pieces of {step}");
            assert_eq!(splitter.rest(), None);
        }
    }

    #[test]
    fn what_is_no_object_is_handed_over_to_be_refused() {
        let mut splitter = Splitter::default();
        splitter.push(b"bad");
        assert_eq!(splitter.next().as_deref(), Some(&b"b"[..]));
        let mut splitter = Splitter::default();
        splitter.push(br#"{"a":1} {"b"#);
        assert!(splitter.next().is_some());
        assert_eq!(splitter.next(), None);
        assert_eq!(splitter.rest().as_deref(), Some(&br#"{"b"#[..]));
    }
}
