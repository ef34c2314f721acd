"""The conformance suite of `LockBackend`."""

from __future__ import annotations

from grelmicro.testing.conformance._lock_leases import LockLeases
from grelmicro.testing.conformance._lock_names import LockNames
from grelmicro.testing.conformance._lock_races import LockRaces

__all__ = ["LockBackendSuite"]


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
