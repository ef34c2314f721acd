"""A rollout: the new replica under uvicorn takes over when the old one is stopped, not a lease later."""

from __future__ import annotations

import signal
import time

import pytest

from tests.election.servers import Worker, workers

pytest.importorskip("redis")
pytest.importorskip("asyncpg")
pytest.importorskip("uvicorn")

LEASE, RETRY, LONG_HOLD = 30, 0.2, 3.5
HELD = ("lock", "short hold", "long hold", "lead")
SLACK = 0.5
"""For a machine that is busy."""


class Service(Worker):
    module = "tests.task.served"
    exit_code = -signal.SIGTERM
    """Uvicorn ends by the signal it was sent, once it has shut down."""


@pytest.fixture(params=["redis", "postgres"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def test_sigterm_hands_everything_over_within_two_tries_and_keeps_the_minimum_hold(url, unique):
    with workers(url, unique, of=Service, lease=LEASE, retry=RETRY, long_hold=LONG_HOLD) as start:
        old = start()
        taken = {what: old.wait("start", what=what)["at"] for what in HELD}
        new = start()
        new.wait("running")
        stopped = time.monotonic()
        old.stop()
        assert time.monotonic() - stopped < LEASE / 5
        assert not any("Traceback" in line for line in old.errors), "".join(old.errors)
        for what in HELD:
            (end,) = old.seen("end", what=what)
            assert stopped <= end["at"]
            free = max(end["at"], taken[what] + LONG_HOLD) if what == "long hold" else end["at"]
            successor = new.wait("start", what=what)["at"]
            assert end["at"] <= successor
            # The hold counts from the grant, a moment before the work could note that it began.
            assert free - 0.1 <= successor <= free + 2 * RETRY + SLACK, what
        (lead,) = old.seen("end", what="lead")
        assert not lead["leader"]
