"""What a stream has delivered, taken from the queue that its reading thread fills."""

import queue

TIMEOUT_S = 10
QUIET_S = 0.4


def take(received, count, quiet):
    """That many; then, if asked, proof that nothing follows for a while."""
    found = []
    try:
        while len(found) < count:
            found.append(received.get(timeout=TIMEOUT_S))
    except queue.Empty:
        return found + ["(TIMED OUT)"]
    try:
        if quiet:
            found.append(received.get(timeout=QUIET_S))
    except queue.Empty:
        pass
    return found
