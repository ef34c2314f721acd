"""Locks, elections and schedules in Redis or Valkey, in Lua scripts that each decide in one atomic step."""

from grelmicro.coordination.redis._election import RedisLeaderElectionAdapter
from grelmicro.coordination.redis._lock import RedisLockAdapter
from grelmicro.coordination.redis._schedule import RedisScheduleAdapter

__all__ = ["RedisLeaderElectionAdapter", "RedisLockAdapter", "RedisScheduleAdapter"]
