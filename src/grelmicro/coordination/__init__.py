"""Locks, scheduled-task locks, leader election and schedules over many replicas."""

from grelmicro.coordination._component import Coordination
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
from grelmicro.coordination.leaderelection import LeaderElection, LeaderElectionConfig
from grelmicro.coordination.lock import Lock, LockConfig
from grelmicro.coordination.tasklock import TaskLock, TaskLockConfig

__all__ = [
    "Coordination",
    "CoordinationBackendError",
    "CoordinationError",
    "LeaderElection",
    "LeaderElectionBackend",
    "LeaderElectionBackendError",
    "LeaderElectionConfig",
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
    "TaskLock",
    "TaskLockConfig",
    "WouldBlockError",
]
