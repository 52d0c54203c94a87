"""What two correct servers may print differently, and nothing more.

Revisions, versions of keys, counts, texts and exit codes are never touched.
"""

import base64
import binascii
import re

UUID = re.compile(r"client-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BASE64 = re.compile(r'"([A-Za-z0-9+/]{16,}={0,2})"')
IDENTITY = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9]{17,20}|[0-9a-f]{12,16})(?![0-9a-zA-Z])")

# Each with the reason why it differs by nature.
RULES = [
    # etcdctl's log has this line only if its interrupt meets a call that is under way.
    (re.compile(r'\{"level":"warn".*code = Canceled desc = context canceled"\}\n'), ""),
    # etcdctl's own log lines say when they were written.
    (re.compile(r'"ts":("[^"]*"|[0-9.e+]+)'), '"ts":TS'),
    # etcdctl pads an id that begins with a zero with a blank.
    (re.compile(r"\b(Member|cluster) +(?=[0-9a-f]{10,16}\b)"), r"\1 "),
    # A duration is a measurement.
    (re.compile(r"took = [0-9.]+[µmn]?s"), "took = DURATION"),
    (re.compile(r'"took":("[^"]*"|[0-9.e+-]+)'), '"took":DURATION'),
    # The first term depends on how a server counts its first election.
    (re.compile(r'("raft_?[tT]erm"\s*:\s*)"?\d+"?'), r"\1TERM"),
    (re.compile(r'("RaftTerm" : )\d+'), r"\1TERM"),
    # One entry in the log need not be one request: elections and leases count differently.
    (re.compile(r'("raft(Applied)?Index"\s*:\s*)"?\d+"?'), r"\1INDEX"),
    (re.compile(r'("Raft(Applied)?Index" : )\d+'), r"\1INDEX"),
    # The size of a file in a format of one's own.
    (re.compile(r'("dbSize(InUse)?"\s*:\s*)"?\d+"?'), r"\1SIZE"),
    (re.compile(r'("DBSize(InUse)?" : )\d+'), r"\1SIZE"),
]

# The seconds that remain of a lease depend on when one asks: a few may have passed.
REMAINING = [
    re.compile(r"(?P<head>TTL\((?P<granted>\d+)s\), remaining\()(?P<left>\d+)(?P<tail>s\))"),
    re.compile(r'(?P<head>"TTL"\s*:\s*"?)(?P<left>\d+)(?P<tail>"?,\s*"grantedTTL"\s*:\s*"?(?P<granted>\d+))'),
    re.compile(r'(?P<head>"ttl":)(?P<left>\d+)(?P<tail>,"granted-ttl":(?P<granted>\d+))'),
    re.compile(r'(?P<head>"TTL" : )(?P<left>\d+)(?P<tail>\n"GrantedTTL" : (?P<granted>\d+))'),
]
REMAINING_SLACK_S = 3

# etcd keeps the keys of a lease in a hash map, so their order is not the same twice.
LEASE_KEYS = re.compile(r'(?P<head>attached keys\(\[|"granted-ttl":\d+,"keys":\[|"grantedTTL":"\d+","keys":\[)(?P<keys>[^\]]*)')


def _in_order(match):
    separator = "," if '"' in match["head"] else " "
    return match["head"] + separator.join(sorted(match["keys"].split(separator)))


def _near(match):
    passed = int(match["granted"]) - int(match["left"])
    left = "NEARLY-ALL" if 0 <= passed <= REMAINING_SLACK_S else match["left"]
    return match["head"] + left + match["tail"]


class Names:
    """Gives symbolic names to one server's identities, in their order of appearance."""

    def __init__(self, target, cluster_id, member_id):
        self.known = {cluster_id: "CLUSTER", member_id: "MEMBER"}
        self.leases = 0
        self.literals = [
            (f"127.0.0.1:{target.port}", "ENDPOINT"),
            (f"127.0.0.1:{target.peer_port}", "PEER"),
            (target.directory, "DIR"),
        ]

    def identity(self, value):
        if value not in self.known:
            self.leases += 1
            self.known[value] = f"LEASE{self.leases}"
        return self.known[value]

    def _identity_match(self, match):
        """Text has ids in hex, JSON and fields in decimal; of 16 digits it may be either."""
        digits, before = match[0], match.string[max(0, match.start() - 3) : match.start()]
        decimal = len(digits) > 16 or (digits.isdigit() and before.rstrip(' "').endswith(":"))
        return self.identity(int(digits, 10 if decimal else 16))

    def _base64_match(self, match):
        """Lock and election keys hold a lease id, which base64 would hide."""
        try:
            text = base64.b64decode(match[1], validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            return match[0]
        if not IDENTITY.search(text):
            return match[0]
        return f'"base64({IDENTITY.sub(self._identity_match, text)})"'

    def apply(self, text):
        for real, symbol in self.literals:
            text = text.replace(real, symbol)
        text = UUID.sub("client-UUID", text)
        for pattern, replacement in RULES:
            text = pattern.sub(replacement, text)
        for pattern in REMAINING:
            text = pattern.sub(_near, text)
        text = LEASE_KEYS.sub(_in_order, text)
        text = BASE64.sub(self._base64_match, text)
        return IDENTITY.sub(self._identity_match, text)
