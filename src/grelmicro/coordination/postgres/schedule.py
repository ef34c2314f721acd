"""Last fires in a table: one row per schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from grelmicro.coordination._identity import random_hex
from grelmicro.coordination.postgres._adapter import PostgresAdapter
from grelmicro.coordination.postgres._statement import UNDECIDED, Call, Statement, Undecided

if TYPE_CHECKING:
    import asyncpg

    from grelmicro.providers.postgres import PostgresProvider


class PostgresScheduleAdapter(PostgresAdapter):
    """A `ScheduleBackend` on a table, which is created as `PostgresLockAdapter` does it. Rows are kept."""

    component_keyword: ClassVar[str] = "schedule"
    _table_template: ClassVar[str] = "schedule_table"
    _forgets: ClassVar[bool] = False

    def __init__(
        self,
        *,
        provider: PostgresProvider | None = None,
        table_name: str = "grelmicro_schedules",
        schema: str = "public",
    ) -> None:
        super().__init__(provider, table_name, schema)
        self._claim = Statement(many=self._table.sql("schedule_claim"), decide=_decide_claim, droppable=False)
        self._last = Statement(many=self._table.sql("schedule_last"), decide=_decide_last, shared=True)

    async def claim(self, name: str, due: float) -> bool:
        """Claim a fire: see `ScheduleBackend`."""
        if not math.isfinite(due):
            raise ValueError("due: must be a finite number")
        nonce = random_hex()
        claimed: bool = await self._call(self._claim, name, nonce, float(due), nonce)
        return claimed

    async def last_fired(self, name: str) -> float | None:
        """Read the last fire: see `ScheduleBackend`."""
        last: float | None = await self._call(self._last, name, None)
        return last


def _decide_claim(_: Call, row: asyncpg.Record | None) -> bool | Literal[Undecided.UNDECIDED]:
    if row is None:
        return UNDECIDED
    claimed: bool = row["claimed"]
    return claimed


def _decide_last(_: Call, row: asyncpg.Record | None) -> float | None:
    return None if row is None else row["last_fired"]
