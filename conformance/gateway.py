"""The JSON gateway: the same HTTP requests to both servers, status and parsed body compared.

Bodies are written with plain strings; `b()` makes base64 of them. Over HTTP/1.1 etcd's
gateway cannot read and answer at the same time, so a stream's messages are sent at once;
what needs an answer in between is in grpc_raw.py.
"""

import base64
import http.client
import json
import queue
import socket
import threading
import time

from received import TIMEOUT_S, take
from recorder import Recorder


def b(text):
    return base64.b64encode(text.encode("latin-1")).decode()


ALL = {"key": b("\0"), "range_end": b("\0")}


def prefix(text):
    return {"key": b(text), "range_end": b(text[:-1] + chr(ord(text[-1]) + 1))}


class Stream:
    """A streaming call over HTTP/1.1: all messages go out, lines are read as they come."""

    def __init__(self, port, path, *messages):
        self.socket = socket.create_connection(("127.0.0.1", port))
        # In one piece: once etcd's side has begun to answer, it reads no more of the request.
        body = "".join(json.dumps(message) for message in messages)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.status = None
        self.received = queue.Queue()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self):
        try:
            response = http.client.HTTPResponse(self.socket)
            response.begin()
            self.status = response.status
            while line := response.readline():
                self.received.put(line.decode())
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self.received.put("(end of the stream)")

    def lines(self, count, quiet=True):
        return take(self.received, count, quiet)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class Gateway(Recorder):
    def call(self, method, path, body=None, raw=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.target.port, timeout=TIMEOUT_S)
        try:
            payload = raw if raw is not None else (None if body is None else json.dumps(body))
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type"), response.read().decode()
        finally:
            connection.close()

    def post(self, path, body, note="", drop=(), later=()):
        """One rpc, recorded. `drop` names fields that differ by nature; `later` those that etcd has after 3.4."""
        status, content_type, text = self.call("POST", path, body)
        self.record(
            f"POST {path} {_short(json.dumps(body))} {note}",
            f"{_status(status)} {content_type}\n{self.pretty(text, drop, later)}",
        )
        try:
            return json.loads(text)
        except ValueError:
            return {}

    def other(self, method, path, raw=None, shape_only=False, decoder=False, later=()):
        """Any request. `decoder`: refused by the JSON decoder, whose wording is its own."""
        status, content_type, text = self.call(method, path, raw=raw)
        text = self.pretty(text, ["error", "message"] if decoder else (), later)
        if shape_only:
            text = str(sorted(json.loads(text)))
        self.record(f"{method} {path} {raw or ''}", f"{status} {content_type}\n{text}")

    def stream(self, title, stream, count, quiet=True, drop=(), later=()):
        lines = stream.lines(count, quiet)
        self.record(title, f"{stream.status}\n" + "\n".join(self.pretty(line, drop, later) for line in lines))
        return lines

    def pretty(self, text, drop=(), later=()):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return json.dumps(_without(value, drop, later), indent=1, sort_keys=True)


def _short(text):
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"


def _status(status):
    """A failed precondition is 412 in etcd 3.4's gateway and 400 in all later ones."""
    return 400 if status == 412 else status


def _without(value, drop, later):
    if isinstance(value, list):
        return [_without(item, drop, later) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key in later:
            continue
        item = f"({key} of its own)" if key in drop else _without(item, drop, later)
        # The keys of a lease come out of a hash map in etcd.
        kept[key] = sorted(item) if key == "keys" and isinstance(item, list) else item
    return kept


def key_value(g):
    g.fresh("key value")
    g.post("/v3/kv/range", {"key": b("nothing")})
    g.post("/v3/kv/put", {"key": b("foo"), "value": b("bar")})
    g.post("/v3/kv/put", {"key": b("foo"), "value": b("bar2"), "prev_kv": True})
    g.post("/v3/kv/put", {"key": b("foo2"), "value": b("x")})
    g.post("/v3/kv/put", {"key": b("goo"), "value": b("\x00\xff binary")})
    g.post("/v3/kv/put", {"key": b("empty")})
    g.post("/v3/kv/put", {"key": b("foo"), "ignore_value": True, "prev_kv": True})
    g.post("/v3/kv/put", {"key": b("foo"), "value": b("x"), "ignore_value": True})
    g.post("/v3/kv/put", {"key": b("foo"), "value": b("x"), "lease": "5", "ignore_lease": True})
    g.post("/v3/kv/put", {"key": b("missing"), "ignore_value": True})
    g.post("/v3/kv/put", {"key": b("foo"), "value": b("x"), "lease": "77"})
    g.post("/v3/kv/put", {"value": b("x")})
    g.post("/v3/kv/put", {})
    g.post("/v3/kv/range", {"key": b("foo")})
    g.post("/v3/kv/range", prefix("foo"))
    g.post("/v3/kv/range", ALL)
    g.post("/v3/kv/range", {**ALL, "limit": "2"})
    g.post("/v3/kv/range", {**ALL, "limit": 2, "sort_order": "DESCEND"})
    g.post("/v3/kv/range", {**ALL, "sort_order": "DESCEND", "sort_target": "MOD"})
    g.post("/v3/kv/range", {**ALL, "sort_order": 1, "sort_target": 4}, "enums as numbers")
    g.post("/v3/kv/range", {**ALL, "sort_target": "VALUE", "limit": "3"})
    g.post("/v3/kv/range", {**ALL, "keys_only": True})
    g.post("/v3/kv/range", {**ALL, "count_only": True})
    g.post("/v3/kv/range", {**ALL, "serializable": True, "count_only": True})
    g.post("/v3/kv/range", {**ALL, "min_mod_revision": "4"})
    g.post("/v3/kv/range", {**ALL, "max_mod_revision": "5", "limit": "1"})
    g.post("/v3/kv/range", {**ALL, "min_create_revision": "3", "max_create_revision": "5"})
    g.post("/v3/kv/range", {"key": b("foo"), "revision": "2"})
    g.post("/v3/kv/range", {"key": b("foo"), "revision": "99"})
    g.post("/v3/kv/range", {"key": b("foo"), "revision": "-1"})
    g.post("/v3/kv/range", {"key": b("foo"), "rangeEnd": b("fop")}, "camel case is accepted")
    g.post("/v3/kv/deleterange", {"key": b("nothing")})
    g.post("/v3/kv/deleterange", {"key": b("goo"), "prev_kv": True})
    g.post("/v3/kv/deleterange", {**prefix("foo"), "prev_kv": True})
    g.post("/v3/kv/deleterange", {})
    g.post("/v3/kv/compaction", {"revision": "99"})
    g.post("/v3/kv/compaction", {"revision": "4"})
    g.post("/v3/kv/compaction", {"revision": "4", "physical": True})
    g.post("/v3/kv/compaction", {"revision": "5", "physical": True})
    g.post("/v3/kv/range", {"key": b("foo"), "revision": "4"})
    g.post("/v3/kv/range", {"key": b("foo"), "revision": "5"})
    g.post("/v3/kv/put", {"key": b("big"), "value": b("x" * 1_600_000)})


def compare(key, target, result, **value):
    return {"key": b(key), "target": target, "result": result, **value}


def op_put(key, value, **more):
    return {"request_put": {"key": b(key), "value": b(value), **more}}


def op_range(key, **more):
    return {"request_range": {"key": b(key), **more}}


def op_delete(key, **more):
    return {"request_delete_range": {"key": b(key), **more}}


def transactions(g):
    def txn(compares, success=(), failure=()):
        g.post("/v3/kv/txn", {"compare": compares, "success": list(success), "failure": list(failure)})

    g.fresh("transactions")
    g.post("/v3/kv/put", {"key": b("a"), "value": b("1")})
    g.post("/v3/kv/put", {"key": b("b"), "value": b("2")})
    g.post("/v3/kv/txn", {})
    for target, value in [
        ("VERSION", {"version": "1"}),
        ("CREATE", {"create_revision": "2"}),
        ("MOD", {"mod_revision": "2"}),
        ("VALUE", {"value": b("1")}),
        ("LEASE", {"lease": "0"}),
    ]:
        for result in ["EQUAL", "NOT_EQUAL", "GREATER", "LESS"]:
            txn([compare("a", target, result, **value)])
    for target in ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"]:
        txn([compare("missing", target, "EQUAL")])
        txn([compare("missing", target, "NOT_EQUAL")])
    txn([compare("a", "VALUE", "NOT_EQUAL", value=b("9"), range_end=b("c"))])
    txn([compare("a", "VALUE", "EQUAL", value=b("1"), range_end=b("c"))])
    txn([compare("x", "VERSION", "EQUAL", version="0", range_end=b("z"))])
    txn([compare("x", "VALUE", "EQUAL", value=b("0"), range_end=b("z"))])
    txn([compare("a", "VERSION", "EQUAL", version="1", range_end=b("\0"))])
    txn([], [op_put("c", "3"), op_range("c"), op_delete("a", prev_kv=True), op_range("a", range_end=b("z"))])
    txn([], [op_put("c", "4", prev_kv=True)])
    txn([compare("c", "VERSION", "LESS", version="2")], [op_put("never", "")], [op_range("c"), op_range("missing")])
    txn([], [op_range("c", revision="3"), op_put("d", "1"), op_range("d", revision="99")])
    txn([], [op_range("c", revision="3"), op_put("d", "1")])
    inner = {"compare": [compare("d", "VERSION", "GREATER", version="0")], "success": [op_put("n", "in")], "failure": [op_range("b")]}
    txn([], [op_put("e", "1"), {"request_txn": inner}, op_range("n")])
    txn([], [{"request_txn": {"compare": [compare("zz", "VERSION", "GREATER", version="0")], "failure": [op_range("b"), {"request_txn": inner}]}}])
    txn([], [op_put("n", "out"), {"request_txn": inner}])
    txn([], [op_put("s", "1"), op_put("s", "2")])
    txn([], [op_put("s", "1"), op_delete("r", range_end=b("t"))])
    txn([], [op_delete("s"), op_delete("r", range_end=b("t"))])
    txn([], [op_put("k%d" % i, "") for i in range(128)])
    txn([], [op_put("k%d" % i, "") for i in range(129)])
    txn([compare("a", "VERSION", "EQUAL")] * 129)
    txn([], [op_put("l", "1", lease="77")])
    txn([], [op_put("", "1")])
    txn([], [op_range("")])
    txn([], [{}])
    txn([{"key": ""}])
    g.post("/v3/kv/range", {**ALL, "count_only": True})


def leases(g):
    g.fresh("leases")
    g.post("/v3/lease/grant", {"TTL": "100", "ID": "1234"})
    g.post("/v3/lease/grant", {"TTL": "100", "ID": "1234"})
    g.post("/v3/lease/grant", {"TTL": 200})
    g.post("/v3/lease/grant", {"TTL": "0", "ID": "5"})
    g.post("/v3/lease/grant", {"TTL": "-5", "ID": "6"})
    g.post("/v3/lease/grant", {"TTL": "9000000001"})
    g.post("/v3/lease/grant", {"TTL": "10", "ID": "-7"})
    g.post("/v3/lease/revoke", {"ID": "5"})
    g.post("/v3/lease/revoke", {"ID": "6"})
    g.post("/v3/lease/revoke", {"ID": "-7"})
    g.post("/v3/kv/put", {"key": b("a"), "value": b("1"), "lease": "1234"})
    g.post("/v3/kv/put", {"key": b("b"), "value": b("1"), "lease": "1234"})
    g.post("/v3/kv/range", {"key": b("a")})
    g.post("/v3/lease/timetolive", {"ID": "1234"})
    g.post("/v3/lease/timetolive", {"ID": "1234", "keys": True})
    g.post("/v3/kv/lease/timetolive", {"ID": "1234", "keys": True})
    g.post("/v3/lease/timetolive", {"ID": "99"})
    g.post("/v3/lease/leases", {})
    g.post("/v3/kv/lease/leases", {})
    stream = Stream(g.target.port, "/v3/lease/keepalive", {"ID": "1234"}, {"ID": "99"})
    g.stream("POST /v3/lease/keepalive, one known and one unknown", stream, 2)
    stream.close()
    g.post("/v3/kv/lease/revoke", {"ID": "1234"})
    g.post("/v3/lease/revoke", {"ID": "1234"})
    g.post("/v3/kv/range", {"key": b("a")})


def watches(g):
    def watch(*messages):
        return Stream(g.target.port, "/v3/watch", *messages)

    def create(key, **more):
        return {"create_request": {"key": b(key), **more}}

    def put(key, value=""):
        g.call("POST", "/v3/kv/put", {"key": b(key), "value": b(value)})

    g.fresh("watch")
    put("a", "1")
    put("a", "2")
    g.call("POST", "/v3/kv/deleterange", {"key": b("a")})
    put("b", "3")
    for title, message, count in [
        ("history", create("a", start_revision="1"), 2),
        ("history with prev_kv", create("a", start_revision="1", prev_kv=True), 2),
        ("a range", create("a", range_end=b("c"), start_revision="2"), 2),
        ("from a key on", create("a", range_end=b("\0"), start_revision="5"), 2),
        ("the empty key is the lowest", create("", range_end=b("\0"), start_revision="5"), 2),
        ("no puts", create("a", start_revision="1", filters=["NOPUT"]), 2),
        ("no deletes", create("a", start_revision="1", filters=["NODELETE"]), 2),
        ("neither", create("a", start_revision="1", filters=["NODELETE", "NOPUT"]), 1),
        ("fragments allowed", create("a", start_revision="1", fragment=True), 2),
        ("progress notify", create("a", progress_notify=True), 1),
        ("a range that is empty", create("b", range_end=b("a")), 1),
        ("a range of nothing", create("b", range_end=b("b")), 1),
        ("a start in the future", create("a", start_revision="100"), 1),
        ("a chosen id", create("a", watch_id="7", start_revision="4"), 2),
        ("cancel of an unknown id", {"cancel_request": {"watch_id": "9"}}, 0),
        ("nothing asked", {}, 0),
    ]:
        stream = watch(message) if count else watch(message, create("a"))
        g.stream(f"watch: {title}", stream, count or 1)
        stream.close()

    stream = watch(create("x"), create("y", watch_id="5"), create("z"), create("z", watch_id="5"), create("q", watch_id="0"))
    g.stream("watch: ids, chosen and given, and one twice", stream, 5)
    put("x", "1")
    put("y", "1")
    g.stream("watch: events of two watches", stream, 2)
    stream.close()
    cancel = {"cancel_request": {"watch_id": "5"}}
    stream = watch(create("x"), create("y", watch_id="5"), cancel, cancel)
    g.stream("watch: cancel, and again in silence", stream, 3)
    put("y", "2")
    put("x", "2")
    g.stream("watch: after the cancel", stream, 1)
    g.call("POST", "/v3/kv/txn", {"success": [op_put("x", "t"), op_put("x1", "t"), op_delete("b")]})
    g.stream("watch: a transaction", stream, 1)
    stream.close()

    # Not at 4, where a key was deleted: etcd before 3.4.33 forgets that event (its issue 18089).
    g.post("/v3/kv/compaction", {"revision": "5"})
    for revision in ["1", "4", "5", "6"]:
        stream = watch(create("a", range_end=b("c"), start_revision=revision))
        g.stream(f"watch: from {revision}, compacted at 5", stream, 2)
        stream.close()


def locks_and_elections(g):
    def lease(number):
        g.call("POST", "/v3/lease/grant", {"TTL": "60", "ID": str(number)})

    g.fresh("lock and election")
    lease(0x1000)
    lease(0x2000)
    held = g.post("/v3/lock/lock", {"name": b("mutex"), "lease": str(0x1000)})
    g.post("/v3/lock/lock", {"name": b("mutex"), "lease": str(0x1000)}, "again")
    g.post("/v3/kv/range", prefix("mutex"))
    waiting = Stream(g.target.port, "/v3/lock/lock", {"name": b("mutex"), "lease": str(0x2000)})
    _until(g, "mutex", 2)
    g.post("/v3/lock/unlock", {"key": held.get("key", "")})
    g.stream("the one that waited has it", waiting, 1, quiet=False)
    waiting.close()
    g.post("/v3/lock/unlock", {"key": b("mutex/2000")})
    g.post("/v3/lock/unlock", {"key": b("mutex/2000")}, "again")
    g.post("/v3/lock/unlock", {"key": b("never/locked")})
    g.post("/v3/lock/unlock", {})
    g.post("/v3/lock/lock", {"name": b("mutex"), "lease": "77"}, "an unknown lease")
    own = g.post("/v3/lock/lock", {"name": b("own")}, "a lease of the server's")
    g.post("/v3/lease/leases", {}, drop=["leases"])
    g.post("/v3/lock/unlock", {"key": own.get("key", "")})
    g.post("/v3/lock/lock", {"lease": str(0x1000)}, "no name")

    g.post("/v3/election/leader", {"name": b("boss")})
    won = g.post("/v3/election/campaign", {"name": b("boss"), "lease": str(0x1000), "value": b("alice")})
    leader = won.get("leader", {})
    g.post("/v3/election/leader", {"name": b("boss")})
    observer = Stream(g.target.port, "/v3/election/observe", {"name": b("boss")})
    g.stream("observe: the leader there is", observer, 1)
    g.post("/v3/election/proclaim", {"leader": leader, "value": b("alice the second")})
    g.stream("observe: proclaimed", observer, 1)
    g.post("/v3/election/campaign", {"name": b("boss"), "lease": str(0x1000), "value": b("again")})
    g.stream("observe: campaigned again", observer, 1)
    second = Stream(g.target.port, "/v3/election/campaign", {"name": b("boss"), "lease": str(0x2000), "value": b("bob")})
    _until(g, "boss", 2)
    g.post("/v3/election/resign", {"leader": leader})
    g.stream("the second candidate won", second, 1, quiet=False)
    second.close()
    g.stream("observe: the second candidate", observer, 1)
    observer.close()
    g.post("/v3/election/resign", {"leader": leader}, "again")
    g.post("/v3/election/proclaim", {"leader": leader, "value": b("no more")})
    g.post("/v3/election/proclaim", {"value": b("no leader")})
    g.post("/v3/election/resign", {})
    g.post("/v3/election/campaign", {"name": b("boss"), "lease": "77", "value": b("x")}, "an unknown lease")
    g.post("/v3/election/leader", {"name": b("nobody")})
    g.post("/v3/kv/range", ALL)


def _until(g, name, count):
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        text = g.call("POST", "/v3/kv/range", {**prefix(name), "count_only": True})[2]
        if json.loads(text).get("count") == str(count):
            return
        time.sleep(0.02)


def maintenance(g):
    g.fresh("maintenance and cluster")
    g.post("/v3/kv/put", {"key": b("a"), "value": b("1")})
    # The version is each server's own; the rest is in normalise.py.
    g.post("/v3/maintenance/status", {}, drop=["version"], later=["dbSizeQuota"])
    # A hash is taken over each server's own encoding.
    g.post("/v3/maintenance/hash", {}, drop=["hash"])
    g.post("/v3/maintenance/hash", {"revision": "99"}, "it is Hash, which knows no revision", drop=["hash"])
    # etcd 3.4 leaves the header out of alarm responses, 3.5 has it.
    _alarm(g, {"action": "GET"})
    _alarm(g, {"action": "DEACTIVATE", "alarm": "NOSPACE"})
    _alarm(g, {})
    g.post("/v3/maintenance/defragment", {})
    g.post("/v3/maintenance/transfer-leadership", {"targetID": "123"})
    # etcd 3.4 leaves the revision out of this header, later versions have it.
    status, content_type, text = g.call("POST", "/v3/cluster/member/list", {})
    answer = json.loads(text)
    answer.get("header", {}).pop("revision", None)
    g.record("POST /v3/cluster/member/list", f"{status} {content_type}\n{g.pretty(json.dumps(answer))}")
    snapshot = Stream(g.target.port, "/v3/maintenance/snapshot", {})
    # What a snapshot holds, and so its size, is each server's own.
    g.stream("snapshot: the first line", snapshot, 1, quiet=False, drop=["blob"], later=["remaining_bytes"])
    snapshot.close()


def _alarm(g, body):
    status, content_type, text = g.call("POST", "/v3/maintenance/alarm", body)
    answer = json.loads(text)
    answer.pop("header", None)
    g.record(f"POST /v3/maintenance/alarm {body}", f"{status} {content_type}\n{answer}")


def transport(g):
    g.fresh("HTTP")
    g.other("GET", "/health", later=["reason"])
    # Tenure adds its own version to etcd's two.
    g.other("GET", "/version", shape_only=True, later=["tenure"])
    g.other("GET", "/v3/kv/range")
    g.other("PUT", "/v3/kv/range", "{}")
    g.other("POST", "/v3/kv/nothing", "{}")
    g.other("POST", "/v3/kv/range", "")
    g.other("POST", "/v3/kv/range", "null")
    g.other("POST", "/v3/kv/range", '{"key": null}')
    g.other("POST", "/v3/kv/range", '{"key": "/+8="}')
    g.other("POST", "/v3/kv/range", '{"key": "Zm9v", "no_such_field": 1}')
    # Unpadded and URL-safe base64 are left out: 3.4 refuses them, later gateways do not.
    for bad in [
        "not json",
        "{",
        "[]",
        '{"key": "%%%"}',
        '{"key": 5}',
        '{"key": "Zm9v", "limit": "many"}',
        '{"key": "Zm9v", "limit": 1.5}',
        '{"key": "Zm9v", "limit": 92233720368547758080}',
        '{"key": "Zm9v", "serializable": "yes"}',
        '{"key": "Zm9v", "sort_order": "SIDEWAYS"}',
    ]:
        g.other("POST", "/v3/kv/range", bad, decoder=True)


def run(target, records):
    g = Gateway(target, records)
    for section in [key_value, transactions, leases, watches, locks_and_elections, maintenance, transport]:
        section(g)
