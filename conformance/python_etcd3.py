"""Python's `etcd3` package, used as an application would use it, against one server.

    python python_etcd3.py 127.0.0.1:2379

Prints one `ok` line for each check that held and ends with an error at the first that did not.
"""

import hashlib
import sys
import tempfile
import threading
import time

import etcd3

WAIT_S = 10


def checks(function):
    checks.all.append(function)
    return function


checks.all = []


def eventually(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@checks
def put_and_get(client):
    assert client.get("py/none") == (None, None)
    client.put("py/a", "1")
    value, metadata = client.get("py/a")
    assert value == b"1" and metadata.key == b"py/a" and metadata.version == 1
    assert metadata.create_revision == metadata.mod_revision
    before = client.put("py/a", "2", prev_kv=True).prev_kv
    assert before.value == b"1"
    assert client.get("py/a")[1].version == 2
    assert client.put_if_not_exists("py/a", "3") is False
    assert client.put_if_not_exists("py/b", "3") is True
    assert client.replace("py/a", "2", "4") is True
    assert client.replace("py/a", "2", "5") is False
    assert client.get("py/a", serializable=True)[0] == b"4"


@checks
def ranges(client):
    for number in range(5):
        client.put(f"range/{number}", str(9 - number))
    assert [m.key for _, m in client.get_prefix("range/")] == [b"range/%d" % n for n in range(5)]
    by_value = client.get_prefix("range/", sort_order="ascend", sort_target="value")
    assert [v for v, _ in by_value] == [b"5", b"6", b"7", b"8", b"9"]
    assert [v for v, _ in client.get_range("range/1", "range/3")] == [b"8", b"7"]
    assert [v for v, _ in client.get_prefix("range/", keys_only=True)] == [b""] * 5
    assert client.get_prefix_response("range/").count == 5
    assert len(list(client.get_all())) >= 5


@checks
def delete(client):
    client.put("gone/1", "a")
    client.put("gone/2", "b")
    assert client.delete("gone/none") is False
    assert client.delete("gone/1", prev_kv=True, return_response=True).prev_kvs[0].value == b"a"
    assert client.delete_prefix("gone/").deleted == 1
    assert client.get("gone/2") == (None, None)


@checks
def transactions(client):
    client.put("txn/a", "1")
    at = client.transactions
    succeeded, responses = client.transaction(
        compare=[at.value("txn/a") == "1", at.version("txn/a") > 0, at.create("txn/none") == 0],
        success=[at.put("txn/a", "2"), at.get("txn/a"), at.delete("txn/none")],
        failure=[at.put("txn/a", "wrong")],
    )
    assert succeeded and responses[1][0][0] == b"2"
    succeeded, responses = client.transaction(
        compare=[at.value("txn/a") == "1"], success=[at.put("txn/a", "wrong")], failure=[at.get("txn/a")]
    )
    assert not succeeded and responses[0][0][0] == b"2"
    nested = at.txn(compare=[at.mod("txn/a") > 0], success=[at.put("txn/b", "in")], failure=[])
    succeeded, _ = client.transaction(compare=[], success=[at.put("txn/c", "out"), nested], failure=[])
    assert succeeded
    b, c = client.get("txn/b")[1], client.get("txn/c")[1]
    assert b.mod_revision == c.mod_revision


@checks
def watch_events(client):
    events, cancel = client.watch("watch/a")
    client.put("watch/a", "1")
    client.put("watch/unwatched", "1")
    client.put("watch/a", "2")
    client.delete("watch/a")
    seen = [next(events) for _ in range(3)]
    cancel()
    assert [type(e).__name__ for e in seen] == ["PutEvent", "PutEvent", "DeleteEvent"]
    assert [e.value for e in seen] == [b"1", b"2", b""]
    assert [e.version for e in seen] == [1, 2, 0]


@checks
def watch_history(client):
    client.put("history/a", "1")
    start = client.get("history/a")[1].mod_revision
    client.put("history/b", "2")
    client.delete("history/a")
    events, cancel = client.watch_prefix("history/", start_revision=start, prev_kv=True)
    seen = [next(events) for _ in range(3)]
    cancel()
    assert [e.key for e in seen] == [b"history/a", b"history/b", b"history/a"]
    assert seen[2].prev_value == b"1"


@checks
def watch_callback(client):
    seen = []
    watch_id = client.add_watch_callback("callback", lambda response: seen.extend(response.events))
    client.put("callback", "1")
    eventually(lambda: len(seen) == 1)
    client.cancel_watch(watch_id)
    client.put("callback", "2")
    time.sleep(0.3)
    assert len(seen) == 1 and seen[0].value == b"1"


@checks
def watch_once(client):
    threading.Timer(0.2, client.put, ("once", "now")).start()
    assert client.watch_once("once", timeout=WAIT_S).value == b"now"


@checks
def leases(client):
    lease = client.lease(60)
    assert lease.id > 0 and lease.granted_ttl == 60 and 55 <= lease.remaining_ttl <= 60
    client.put("leased/a", "1", lease=lease)
    client.put("leased/b", "1", lease=lease)
    assert sorted(lease.keys) == [b"leased/a", b"leased/b"]
    assert next(iter(lease.refresh())).TTL == 60
    lease.revoke()
    assert client.get("leased/a") == (None, None) and client.get("leased/b") == (None, None)
    assert next(iter(client.refresh_lease(lease.id))).TTL == 0
    assert client.get_lease_info(lease.id).TTL == -1


@checks
def lease_expiry(client):
    lease = client.lease(2)
    client.put("short", "1", lease=lease)
    events, cancel = client.watch("short")
    event = next(events)
    cancel()
    assert isinstance(event, etcd3.events.DeleteEvent)


@checks
def locks(client):
    other = etcd3.client(*client_address)
    first, second = client.lock("mutex", ttl=20), other.lock("mutex", ttl=20)
    assert first.acquire(timeout=WAIT_S) and first.is_acquired()
    assert not second.acquire(timeout=1)
    threading.Timer(0.3, first.release).start()
    assert second.acquire(timeout=WAIT_S)
    assert not first.is_acquired()
    assert second.release()
    with client.lock("scoped", ttl=20) as lock:
        assert lock.is_acquired()
    assert not lock.is_acquired()
    other.close()


@checks
def compaction(client):
    client.put("compact", "1")
    old = client.get("compact")[1].mod_revision
    client.put("compact", "2")
    client.compact(client.get("compact")[1].mod_revision, physical=True)
    events, _ = client.watch("compact", start_revision=old)
    try:
        next(events)
        raise AssertionError("a compacted revision was watched")
    except etcd3.exceptions.RevisionCompactedError as error:
        assert error.compacted_revision > old
    assert client.get("compact")[0] == b"2"


@checks
def members_and_status(client):
    members = list(client.members)
    assert len(members) == 1 and members[0].name == "default"
    assert members[0].client_urls and members[0].peer_urls
    status = client.status()
    assert status.leader.id == members[0].id
    assert tuple(map(int, status.version.split("."))) >= (3, 4, 0)
    assert status.db_size > 0
    assert isinstance(client.hash(), int)
    client.defragment()
    assert list(client.list_alarms()) == []


@checks
def alarms(client):
    member = next(iter(client.members))
    assert [a.alarm_type for a in client.create_alarm(member.id)] == [1]
    assert [a.member_id for a in client.list_alarms(member.id)] == [member.id]
    client.disarm_alarm(member.id)
    assert list(client.list_alarms()) == []


@checks
def snapshot(client):
    with tempfile.TemporaryFile() as file:
        client.snapshot(file)
        file.seek(0)
        content = file.read()
    assert len(content) % 512 == 32
    assert hashlib.sha256(content[:-32]).digest() == content[-32:]


def main():
    global client_address
    host, port = sys.argv[1].split(":")
    client_address = (host, int(port))
    client = etcd3.client(*client_address, timeout=WAIT_S)
    # A watch that never answers would wait for ever.
    watchdog = threading.Timer(100, lambda: (print("timed out", flush=True), __import__("os")._exit(1)))
    watchdog.daemon = True
    watchdog.start()
    for check in checks.all:
        started = time.monotonic()
        print(f".. {check.__name__}", flush=True)
        check(client)
        print(f"ok {check.__name__} ({time.monotonic() - started:.2f} s)", flush=True)
    client.close()


if __name__ == "__main__":
    main()
