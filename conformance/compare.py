"""The comparison: every part against a real etcd and against Tenure (see README.md)."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

import etcdctl
import servers
from report import Record, Report
from servers import Target, end_children, etcd_command, tenure_command

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT_TIMEOUT_S = 120


def recorded(part, target):
    """Runs a part; what stops it early becomes its last record, and so a difference."""
    records = []
    try:
        part(target, records)
    except Exception as error:
        if servers.is_ending():
            return records
        traceback.print_exc()
        # With the label, so that it is a difference even if both sides break off.
        records.append(Record("", f"{target.label} broke off", repr(error)))
    return records


def both(part, targets):
    """The two sides run at the same time: most of it is waiting."""
    results = [None, None]

    def run(index):
        results[index] = recorded(part, targets[index])

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def part_etcdctl():
    path = os.path.join(HERE, "commands.txt")
    return lambda target, records: etcdctl.run(target, path, records)


def part_gateway():
    import gateway

    return gateway.run


def part_grpc():
    import grpc_raw

    return grpc_raw.run


COMPARED = {"etcdctl": part_etcdctl, "gateway": part_gateway, "grpc": part_grpc}


def client_programs(arguments):
    programs = {"python-etcd3": [sys.executable, os.path.join(HERE, "python_etcd3.py")]}
    if arguments.etcd_client:
        programs["etcd-client"] = [arguments.etcd_client]
    return programs


def run_program(report, name, command, target):
    """A foreign client that asserts by itself, and prints one `ok` line for each check."""
    target.fresh()
    try:
        done = subprocess.run(
            [*command, target.endpoint], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=CLIENT_TIMEOUT_S, text=True,
        )  # fmt: skip
        code, output, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as timeout:
        code, output, errors = "timed out", (timeout.stdout or b"").decode(errors="replace"), ""
    passed = sum(line.startswith("ok ") for line in output.splitlines())
    if code != 0 or not passed:
        print(f"\nFAILED  {name} against {target.label} ({code})\n{output}{errors}")
    report.note(f"{name} against {target.label}", passed, int(code != 0 or not passed))


def wanted(name, arguments):
    return not arguments.part or name in arguments.part


def compare_parts(report, arguments, targets):
    for name, make in COMPARED.items():
        if not wanted(name, arguments):
            continue
        print(f"== {name}", flush=True)
        left, right = both(make(), targets)
        if arguments.dump:
            dump(arguments.dump, name, left)
        report.compare(name, targets[0].label, left, targets[1].label, right)


def run_clients(report, arguments, targets):
    for name, command in client_programs(arguments).items():
        for target in targets if wanted(name, arguments) else []:
            print(f"== {name} against {target.label}", flush=True)
            try:
                run_program(report, name, command, target)
            except RuntimeError as error:
                report.check(f"{name} against {target.label}", False, str(error))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenure", help="the tenure binary")
    parser.add_argument("--only-etcd", action="store_true", help="etcd against a second etcd: proves the suite")
    parser.add_argument("--etcd-client", help="the built program of etcd-client/")
    parser.add_argument("--part", action="append", help="only this part (may be repeated)")
    parser.add_argument("--dump", help="write etcd's normalised answers below this directory")
    return parser.parse_args()


def leave(number, _frame):
    """Only once: a second signal must not interrupt the clean-up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    arguments = parse_arguments()
    # An orderly exit runs the clean-up below. A handler of our own for SIGINT also keeps an
    # inherited "ignore" from the etcdctl processes, which are interrupted on purpose.
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    root = tempfile.mkdtemp(prefix="conformance-")
    second = ("etcd2", etcd_command) if arguments.only_etcd else ("tenure", tenure_command(arguments.tenure))
    targets = [Target("etcd", etcd_command, root), Target(*second, root)]
    report = Report()
    try:
        compare_parts(report, arguments, targets)
        run_clients(report, arguments, targets)
    finally:
        end_children()
        shutil.rmtree(root, ignore_errors=True)
    report.summary()
    return 1 if report.failed or not report.passed else 0


def dump(directory, name, records):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"{name}.txt"), "w") as file:
        for record in records:
            file.write(f"### {record.section} / {record.title}\n{record.text}\n\n")


if __name__ == "__main__":
    sys.exit(main())
