"""Errors of the coordination primitives: busy, lost, failed and misused can be caught apart.

GrelmicroError
└── CoordinationError
    ├── WouldBlockError            busy: somebody else holds it (also RuntimeError)
    ├── LockTimeoutError           busy: the caller's deadline came first (also TimeoutError)
    ├── LockNotOwnedError          lost: the caller does not hold it, or no longer
    ├── LockReentrantError         misuse: the caller holds it already (also RuntimeError)
    └── CoordinationBackendError   failed: the backend could not answer, or is not wired
        ├── LockBackendError
        │   ├── LockAcquireError
        │   ├── LockReleaseError
        │   ├── LockLockedCheckError
        │   └── LockOwnedCheckError
        ├── LeaderElectionBackendError
        └── ScheduleBackendError
"""

from __future__ import annotations

from grelmicro.errors import GrelmicroError


class CoordinationError(GrelmicroError):
    """Root of all coordination errors."""


class WouldBlockError(CoordinationError, RuntimeError):
    """Somebody else holds it, and the caller asked not to wait."""


class LockTimeoutError(CoordinationError, TimeoutError):
    """The caller's deadline came before the lock did."""


class LockNotOwnedError(CoordinationError):
    """The caller does not hold the lock: it never did, let go of it, or its lease ended."""


class LockReentrantError(CoordinationError, RuntimeError):
    """The same task or thread holds this lock already; locks do not nest."""


class CoordinationBackendError(CoordinationError):
    """The backend failed, answered nonsense, or none is wired. The cause, if any, is attached."""


class LockBackendError(CoordinationBackendError):
    """A lock operation failed on the backend."""


class LockAcquireError(LockBackendError):
    """Acquiring or extending failed on the backend."""


class LockReleaseError(LockBackendError):
    """Releasing failed on the backend; the lease ends by itself at the latest."""


class LockLockedCheckError(LockBackendError):
    """Asking whether anybody holds the lock failed on the backend."""


class LockOwnedCheckError(LockBackendError):
    """Asking whether the caller holds the lock failed on the backend."""


class LeaderElectionBackendError(CoordinationBackendError):
    """An election operation failed on the backend."""


class ScheduleBackendError(CoordinationBackendError):
    """A schedule operation failed on the backend."""
