"""Locks, elections and schedules in PostgreSQL tables."""

from grelmicro.coordination.postgres.leaderelection import PostgresLeaderElectionAdapter
from grelmicro.coordination.postgres.lock import PostgresLockAdapter
from grelmicro.coordination.postgres.schedule import PostgresScheduleAdapter

__all__ = ["PostgresLeaderElectionAdapter", "PostgresLockAdapter", "PostgresScheduleAdapter"]
