"""Which connections are reset when they go back to our own pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg


class Resets:
    """Resets the session of a connection that somebody else used: no statement of ours changes it."""

    def __init__(self) -> None:
        self._spared: set[int] = set()

    def spare(self, server_pid: int) -> None:
        """Spare the next release of this connection the round trip."""
        self._spared.add(server_pid)

    async def __call__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Reset, as asyncpg's pool does by default."""
        pid = connection.get_server_pid()
        if pid in self._spared:
            self._spared.discard(pid)
        else:
            await connection.execute(connection.get_reset_query())
