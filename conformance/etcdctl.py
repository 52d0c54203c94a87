"""Runs `commands.txt` against one target and records what every command printed.

The language of that file is described at its head.
"""

import os
import re
import shlex
import signal
import subprocess
import time

from report import Record
from servers import run as run_command
from servers import start

COMMAND_TIMEOUT_S = 30
WAIT_TIMEOUT_S = 15


class Script:
    """The lines of a command file, split into sections that start on fresh servers."""

    def __init__(self, path):
        with open(path) as file:
            self.lines = file.read().splitlines()

    def steps(self):
        """(line number, text, stdin lines) for each line that says something."""
        number = 0
        while number < len(self.lines):
            line = self.lines[number]
            number += 1
            if not line.strip() or line.startswith("#"):
                continue
            stdin = None
            first = number
            if line.endswith(" <<"):
                end = self.lines.index(">>", number)
                stdin = "".join(f"{text}\n" for text in _repeated(self.lines[number:end]))
                line, number = line[:-3], end + 1
            yield first, line, stdin

    def count(self):
        return sum(1 for _, line, _ in self.steps() if line[0] not in ".=")


def _repeated(lines):
    for line in lines:
        repeat = re.fullmatch(r"\*(\d+) (.*)", line)
        if repeat:
            yield from (repeat[2].replace("#", str(i)) for i in range(int(repeat[1])))
        else:
            yield line


class Background:
    def __init__(self, title, process, stdout, stderr):
        self.title, self.process, self.stdout, self.stderr = title, process, stdout, stderr


class Runner:
    def __init__(self, target, script, records):
        self.target, self.script = target, script
        self.records, self.background, self.variables = records, {}, {}
        self.section = ""
        self._forget_once()

    def _forget_once(self):
        self.masks, self.sorted = [], False

    def run(self):
        try:
            for number, line, stdin in self.script.steps():
                self._step(number, line, stdin)
        finally:
            for job in self.background.values():
                job.process.kill()
                job.process.wait()

    def _step(self, number, line, stdin):
        if line.startswith("= "):
            self._end_all()
            self.section = line[2:]
            self.target.fresh()
            self.variables = {"DIR": self.target.directory, "ENDPOINT": self.target.endpoint}
        elif line.startswith("."):
            name, _, rest = line[1:].partition(" ")
            getattr(self, f"_do_{name}")(rest)
        elif line.startswith("& "):
            self._start(number, line[2:], stdin)
        else:
            self._command(number, line, stdin)

    # What a line of the file may ask for, besides a command.

    def _do_mask(self, rest):
        pattern, _, replacement = rest.partition(" => ")
        self.masks.append((re.compile(pattern), replacement))

    def _do_sort(self, _):
        self.sorted = True

    def _do_sleep(self, rest):
        time.sleep(float(rest))

    def _do_save(self, rest):
        name, pattern = rest.split(" ", 1)
        found = re.search(pattern, self.last_stdout)
        # A name that was not found stays visible in what follows, and so in the difference.
        self.variables[name] = found[1] if found else f"{name}-not-found"

    def _do_lines(self, rest):
        name, count = rest.split()
        job = self.background[name]
        self._await(lambda: self._read(job.stdout).count("\n") >= int(count) or job.process.poll() is not None)

    def _do_keys(self, rest):
        count, prefix = rest.split()
        self._await(
            lambda: len(self.target.etcdctl("get", prefix, "--prefix", "--keys-only").stdout.split()) == int(count)
        )

    def _do_gone(self, lease):
        """Until a lease has expired."""
        lease = self._expand(lease)
        self._await(lambda: b"already expired" in self.target.etcdctl("lease", "timetolive", lease).stdout)

    def _do_stop(self, name):
        """Interrupts a background command, as Ctrl-C would, and collects what it printed."""
        job = self.background[name]
        job.process.send_signal(signal.SIGINT)
        self._collect(name)

    def _do_end(self, name):
        self._collect(name)

    def _do_snapshot(self, path):
        import hashlib

        with open(self._expand(path), "rb") as file:
            content = file.read()
        good = hashlib.sha256(content[:-32]).digest() == content[-32:]
        text = f"size % 512 == {len(content) % 512}, trailing sha256 {'verifies' if good else 'IS WRONG'}"
        self.records.append(Record(self.section, "verify the snapshot file", text))

    # Commands.

    def _expand(self, text):
        return re.sub(r"\$([A-Z][A-Z0-9]*)", lambda m: self.variables.get(m[1], m[0]), text)

    def _arguments(self, line):
        return [self._expand(word) for word in shlex.split(line)]

    def _command(self, number, line, stdin):
        line, _, size = line.partition(" <<<")
        if size:
            stdin = "x" * int(size)
        title = f"line {number}: etcdctl {line}"
        arguments = ["etcdctl", *self._arguments(line)]
        done = run_command(arguments, COMMAND_TIMEOUT_S, (stdin or "").encode(), env=self.target.environment())
        code, out, err = done.returncode, done.stdout, done.stderr
        self.last_stdout = out.decode(errors="backslashreplace")
        self._record(title, code, self.last_stdout, err.decode(errors="backslashreplace"))

    def _start(self, number, rest, stdin):
        name, line = rest.split(" ", 1)
        stdout = os.path.join(self.target.directory, f"{name}.out")
        stderr = os.path.join(self.target.directory, f"{name}.err")
        with open(stdout, "wb") as out, open(stderr, "wb") as err:
            process = start(
                ["etcdctl", *self._arguments(line)], env=self.target.environment(),
                stdin=subprocess.PIPE, stdout=out, stderr=err,
            )  # fmt: skip
        if stdin is not None:
            process.stdin.write(stdin.encode())
            process.stdin.flush()  # and left open: the end of its input would end an interactive watch
        self.background[name] = Background(f"line {number}: etcdctl {line} &", process, stdout, stderr)

    def _collect(self, name):
        job = self.background.pop(name)
        try:
            code = job.process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
            code = "DID NOT END"
        job.process.stdin.close()
        self.last_stdout = self._read(job.stdout)
        self._record(job.title, code, self.last_stdout, self._read(job.stderr))

    def _end_all(self):
        for name in list(self.background):
            self._do_stop(name)

    def _record(self, title, code, out, err):
        self.target.check_alive()
        out, err = self.target.names.apply(out), self.target.names.apply(err)
        if self.sorted:
            out = "\n".join(sorted(out.split("\n")))
        text = f"exit: {code}\n{out}"
        if err:
            text += f"\nstderr:\n{err}"
        for pattern, replacement in self.masks:
            text = pattern.sub(replacement, text)
        self._forget_once()
        self.records.append(Record(self.section, title, text))

    @staticmethod
    def _read(path):
        with open(path, errors="backslashreplace") as file:
            return file.read()

    @staticmethod
    def _await(condition):
        """Bounded; a condition that never comes true shows in what is printed afterwards."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)


def run(target, path, records):
    Runner(target, Script(path), records).run()
