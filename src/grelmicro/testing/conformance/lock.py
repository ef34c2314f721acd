"""The conformance suites of `LockBackend`, and of `Lock` on one."""

from __future__ import annotations

from grelmicro.testing.conformance._lock_cancellation import LockCancellation
from grelmicro.testing.conformance._lock_leases import LockLeases
from grelmicro.testing.conformance._lock_names import LockNames
from grelmicro.testing.conformance._lock_races import LockRaces
from grelmicro.testing.conformance._lock_threads import LockThreads
from grelmicro.testing.conformance._lock_use import LockUse

__all__ = ["LockBackendSuite", "LockSuite"]


class LockBackendSuite(LockLeases, LockNames, LockRaces):
    """Everything that a `LockBackend` promises, for any backend with its four methods.

    ```python
    class TestMyLocks(LockBackendSuite):
        @pytest.fixture
        async def backend(self):
            async with MyLocks() as backend:
                yield backend
    ```

    Override `peer` with a second backend over the same data, as another process would have it; `lapse` when
    the backend's clock can be moved; and class attributes where the defaults do not fit. The tests hold up
    to `many` locks at once and leave some held for half a minute.
    """


class LockSuite(LockUse, LockThreads, LockCancellation):
    """What a user of `Lock` sees on a backend; used and adjusted like `LockBackendSuite`."""
