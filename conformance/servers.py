"""The servers under comparison: real processes on free loopback ports with data
directories of their own, each of them ended by its process id.

A `Target` is one side of the comparison. `fresh()` replaces its server by a new and
empty one, so that both sides start a section at revision 1.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from normalise import Names

READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10
ETCDCTL_TIMEOUT_S = 20

# Everything started here, so that nothing outlives a run that is cut short.
_children = []
_children_lock = threading.Lock()
_ending = False


def start(arguments, **options):
    with _children_lock:
        if _ending:
            raise RuntimeError("the run is ending")
        child = subprocess.Popen(arguments, **options)
        _children.append(child)
        return child


def run(arguments, timeout_s, stdin=b"", **options):
    """Like subprocess.run with captured output, for a child that must not outlive the run."""
    pipe = subprocess.PIPE
    child = start(arguments, stdin=pipe, stdout=pipe, stderr=pipe, **options)
    try:
        stdout, stderr = child.communicate(stdin, timeout_s)
        return subprocess.CompletedProcess(arguments, child.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        child.kill()
        stdout, stderr = child.communicate()
        return subprocess.CompletedProcess(arguments, "TIMED OUT", stdout, stderr)


def is_ending():
    return _ending


def end_children():
    """From now on nothing more is started, and what still runs is ended."""
    global _ending
    with _children_lock:
        _ending = True
        for child in _children:
            if child.poll() is None:
                child.kill()
                child.wait()


_handed_out = set()
_ports_lock = threading.Lock()


def free_port():
    """A loopback port nobody listens on, never the same one twice in a run, and below those
    that Linux gives to outgoing connections, which would take it before the server does."""
    with _ports_lock:
        while True:
            port = random.randrange(20_000, 32_000)
            if port in _handed_out:
                continue
            _handed_out.add(port)
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            return port


def etcd_command(port, peer_port, data_dir):
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        "etcd", "--name", "default", "--data-dir", data_dir,
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}",
    ]  # fmt: skip


def tenure_command(binary):
    def command(port, peer_port, data_dir):
        return [
            binary, "serve", "--name", "default", "--data-dir", data_dir,
            "--listen", f"127.0.0.1:{port}", "--peer-listen", f"127.0.0.1:{peer_port}",
        ]  # fmt: skip

    return command


class Target:
    def __init__(self, label, command, root):
        self.label = label
        self.root = root
        self.command = command
        self.process = None
        self.directory = None

    def fresh(self):
        self.stop()
        self.directory = tempfile.mkdtemp(prefix=f"{self.label}-", dir=self.root)
        self.port, self.peer_port = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self.log_path = os.path.join(self.directory, "server.log")
        arguments = self.command(self.port, self.peer_port, os.path.join(self.directory, "data"))
        # Settings of the caller's shell must not reach either server.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ETCD_", "TENURE_"))}
        with open(self.log_path, "wb") as log:
            self.process = start(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self._await_ready()
        return self

    def _await_ready(self):
        """Ready is what etcdctl calls healthy; the same call tells the server's identities."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            self.check_alive()
            if not self._listens():
                time.sleep(0.02)
                continue
            health = self.etcdctl("endpoint", "health", "--command-timeout=2s")
            status = self.etcdctl("endpoint", "status", "-w", "json", "--command-timeout=2s")
            if health.returncode == 0 and status.returncode == 0:
                header = json.loads(status.stdout)[0]["Status"]["header"]
                self.names = Names(self, header["cluster_id"], header["member_id"])
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.label} was not ready in {READY_TIMEOUT_S} s:\n{self.log_tail()}")

    def _listens(self):
        """Asked first, because etcdctl takes seconds to find that nobody is there."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def environment(self):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ETCDCTL_")}
        return clean | {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": self.endpoint, "LC_ALL": "C"}

    def etcdctl(self, *arguments):
        return run(["etcdctl", *arguments], ETCDCTL_TIMEOUT_S, env=self.environment())

    def check_alive(self):
        """Two dead servers would agree on everything."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.label} ended with {self.process.returncode}:\n{self.log_tail()}")

    def log_tail(self):
        with open(self.log_path, errors="replace") as log:
            return "".join(log.readlines()[-20:])

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
