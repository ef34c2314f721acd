"""Locks, elections and schedules in PostgreSQL tables."""

# First, for it says what to install when asyncpg is missing.
import grelmicro.providers.postgres  # noqa: F401  # pyright: ignore[reportUnusedImport]
from grelmicro.coordination.postgres.leaderelection import PostgresLeaderElectionAdapter
from grelmicro.coordination.postgres.lock import PostgresLockAdapter
from grelmicro.coordination.postgres.schedule import PostgresScheduleAdapter

__all__ = ["PostgresLeaderElectionAdapter", "PostgresLockAdapter", "PostgresScheduleAdapter"]
