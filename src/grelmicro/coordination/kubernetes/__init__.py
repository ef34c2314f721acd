"""Locks, elections and schedules on Kubernetes Leases, changed by compare and swap alone."""

from grelmicro.coordination.kubernetes._election import KubernetesLeaderElectionAdapter
from grelmicro.coordination.kubernetes._lock import KubernetesLockAdapter
from grelmicro.coordination.kubernetes._schedule import KubernetesScheduleAdapter

__all__ = ["KubernetesLeaderElectionAdapter", "KubernetesLockAdapter", "KubernetesScheduleAdapter"]
