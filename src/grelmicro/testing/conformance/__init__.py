"""Suites for authors of backends: subclass one in a test module, give it a `backend` fixture, run pytest."""

import pytest

# Before the modules are imported: only then does pytest explain their failed assertions.
_MODULES = (
    "_base",
    "_ears",
    "_lock_cancellation",
    "_lock_leases",
    "_lock_names",
    "_lock_races",
    "_lock_threads",
    "_lock_use",
)
_SUITES = ("kinds", "leaderelection", "lock", "queueing", "schedule", "wakingelection")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in (*_MODULES, *_SUITES)))

from grelmicro.testing.conformance.kinds import KindsSuite  # noqa: E402
from grelmicro.testing.conformance.leaderelection import LeaderElectionBackendSuite  # noqa: E402
from grelmicro.testing.conformance.lock import LockBackendSuite, LockSuite  # noqa: E402
from grelmicro.testing.conformance.queueing import QueueingLockBackendSuite  # noqa: E402
from grelmicro.testing.conformance.schedule import ScheduleBackendSuite  # noqa: E402
from grelmicro.testing.conformance.wakingelection import WakingElectionBackendSuite  # noqa: E402

__all__ = [
    "KindsSuite",
    "LeaderElectionBackendSuite",
    "LockBackendSuite",
    "LockSuite",
    "QueueingLockBackendSuite",
    "ScheduleBackendSuite",
    "WakingElectionBackendSuite",
]
