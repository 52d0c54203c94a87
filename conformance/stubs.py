"""Message classes and calls for etcd's API, with no generated code of our own.

The `etcd3` package ships compiled descriptors of an older rpc.proto. What has come since
(and the lock and election services) is added here by name and number, in a descriptor
pool of its own. Field numbers are facts of the protocol; a wrong one would show against
the real etcd.
"""

import grpc
from etcd3.etcdrpc import auth_pb2, kv_pb2, rpc_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bool": FIELD.TYPE_BOOL, "bytes": FIELD.TYPE_BYTES, "int64": FIELD.TYPE_INT64,
    "uint64": FIELD.TYPE_UINT64, "string": FIELD.TYPE_STRING,
}  # fmt: skip


def _add_field(message, name, kind, number, oneof=None):
    field = message.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL)
    if kind.startswith("repeated "):
        field.label, kind = FIELD.LABEL_REPEATED, kind.removeprefix("repeated ")
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = FIELD.TYPE_MESSAGE, kind
    if oneof is not None:
        field.oneof_index = oneof


def _add_message(file, name, /, **fields):
    message = file.message_type.add(name=name)
    for field, definition in fields.items():
        kind, number = definition.rsplit(" ", 1)
        _add_field(message, field, kind, int(number))
    return message


def _extended_rpc():
    file = descriptor_pb2.FileDescriptorProto.FromString(rpc_pb2.DESCRIPTOR.serialized_pb)
    message = {m.name: m for m in file.message_type}
    header = ".etcdserverpb.ResponseHeader"
    _add_field(message["WatchCreateRequest"], "watch_id", "int64", 7)
    _add_field(message["WatchCreateRequest"], "fragment", "bool", 8)
    _add_field(message["WatchResponse"], "fragment", "bool", 7)
    _add_message(file, "WatchProgressRequest")
    _add_field(message["WatchRequest"], "progress_request", ".etcdserverpb.WatchProgressRequest", 3, oneof=0)
    _add_field(message["StatusResponse"], "raftAppliedIndex", "uint64", 7)
    _add_field(message["StatusResponse"], "errors", "repeated string", 8)
    _add_field(message["StatusResponse"], "dbSizeInUse", "int64", 9)
    _add_field(message["StatusResponse"], "isLearner", "bool", 10)
    _add_field(message["Member"], "isLearner", "bool", 5)
    _add_field(message["MemberAddRequest"], "isLearner", "bool", 2)
    _add_message(file, "MemberPromoteRequest", ID="uint64 1")
    _add_message(file, "MemberPromoteResponse", header=f"{header} 1", members="repeated .etcdserverpb.Member 2")
    return file


def _lock():
    header = ".etcdserverpb.ResponseHeader"
    file = descriptor_pb2.FileDescriptorProto(name="v3lock.proto", package="v3lockpb", syntax="proto3")
    file.dependency.append(rpc_pb2.DESCRIPTOR.name)
    _add_message(file, "LockRequest", name="bytes 1", lease="int64 2")
    _add_message(file, "LockResponse", header=f"{header} 1", key="bytes 2")
    _add_message(file, "UnlockRequest", key="bytes 1")
    _add_message(file, "UnlockResponse", header=f"{header} 1")
    return file


def _election():
    header, leader = ".etcdserverpb.ResponseHeader 1", ".v3electionpb.LeaderKey"
    file = descriptor_pb2.FileDescriptorProto(name="v3election.proto", package="v3electionpb", syntax="proto3")
    file.dependency.extend([rpc_pb2.DESCRIPTOR.name, kv_pb2.DESCRIPTOR.name])
    _add_message(file, "LeaderKey", name="bytes 1", key="bytes 2", rev="int64 3", lease="int64 4")
    _add_message(file, "CampaignRequest", name="bytes 1", lease="int64 2", value="bytes 3")
    _add_message(file, "CampaignResponse", header=header, leader=f"{leader} 2")
    _add_message(file, "LeaderRequest", name="bytes 1")
    _add_message(file, "LeaderResponse", header=header, kv=".mvccpb.KeyValue 2")
    _add_message(file, "ResignRequest", leader=f"{leader} 1")
    _add_message(file, "ResignResponse", header=header)
    _add_message(file, "ProclaimRequest", leader=f"{leader} 1", value="bytes 2")
    _add_message(file, "ProclaimResponse", header=header)
    return file


def _load():
    pool = descriptor_pool.DescriptorPool()
    for original in (kv_pb2, auth_pb2):
        pool.AddSerializedFile(original.DESCRIPTOR.serialized_pb)
    for file in (_extended_rpc(), _lock(), _election()):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_pool = _load()
_factory = message_factory.MessageFactory(_pool)

# Methods whose messages are not named after them.
RENAMED = {"Compact": "Compaction", "Observe": "Leader"}


def message(name, package="etcdserverpb"):
    return _factory.GetPrototype(_pool.FindMessageTypeByName(f"{package}.{name}"))


class Api:
    """One channel to one server."""

    def __init__(self, endpoint):
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(endpoint, options=unlimited)

    def _codec(self, service, method):
        package, _, _ = service.partition(".")
        name = RENAMED.get(method, method)
        return {
            "request_serializer": lambda request: request.SerializeToString(),
            "response_deserializer": message(f"{name}Response", package).FromString,
        }

    def unary(self, service, method):
        return self.channel.unary_unary(f"/{service}/{method}", **self._codec(service, method))

    def server_stream(self, service, method):
        return self.channel.unary_stream(f"/{service}/{method}", **self._codec(service, method))

    def bidirectional(self, service, method):
        return self.channel.stream_stream(f"/{service}/{method}", **self._codec(service, method))

    def close(self):
        self.channel.close()
