"""Locks, scheduled-task locks, leader election and schedules over many replicas."""

from grelmicro.coordination._holders import LockHandle
from grelmicro.coordination.abc import LeaderElectionBackend, LeaderRecord, LockBackend, ScheduleBackend
from grelmicro.coordination.errors import (
    CoordinationBackendError,
    CoordinationError,
    LeaderElectionBackendError,
    LockAcquireError,
    LockBackendError,
    LockLockedCheckError,
    LockNotOwnedError,
    LockOwnedCheckError,
    LockReentrantError,
    LockReleaseError,
    LockTimeoutError,
    ScheduleBackendError,
    WouldBlockError,
)
from grelmicro.coordination.lock import Lock, LockConfig

__all__ = [
    "CoordinationBackendError",
    "CoordinationError",
    "LeaderElectionBackend",
    "LeaderElectionBackendError",
    "LeaderRecord",
    "Lock",
    "LockAcquireError",
    "LockBackend",
    "LockBackendError",
    "LockConfig",
    "LockHandle",
    "LockLockedCheckError",
    "LockNotOwnedError",
    "LockOwnedCheckError",
    "LockReentrantError",
    "LockReleaseError",
    "LockTimeoutError",
    "ScheduleBackend",
    "ScheduleBackendError",
    "WouldBlockError",
]
