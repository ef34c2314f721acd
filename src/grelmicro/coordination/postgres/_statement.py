"""A kind of call: the SQL that answers many of them at once, and how a row decides each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    import asyncpg


class Undecided(Enum):
    """Says that a reply left a call without an answer."""

    UNDECIDED = "undecided"


UNDECIDED: Final = Undecided.UNDECIDED


@dataclass(frozen=True, eq=False, slots=True)
class Statement:
    """One kind of call.

    `many` takes the names and, for each argument of a call, an array of them, and skips rows that another
    transaction has locked. `one` takes a name and its arguments and waits a moment for the row; without it,
    `many` is used with waiting instead of skipping.
    """

    many: str
    decide: Callable[[Call, asyncpg.Record | None], Any | Literal[Undecided.UNDECIDED]]
    one: str | None = None
    shared: bool = False
    """Whether the row of one call can decide others for its name that were made before it was sent."""
    droppable: bool = True
    """Whether a call whose caller has gone need not be sent."""
    collects: bool = False
    """Whether it may add rows, so that old ones should be collected from time to time."""

    def for_many(self, calls: Sequence[Call]) -> tuple[str, list[Any]]:
        """Return what is sent for calls with distinct names."""
        columns = zip(*(call.arguments for call in calls), strict=True)
        return self.many, [[call.name for call in calls], *(_array(column) for column in columns)]

    def for_one(self, call: Call) -> tuple[str, Sequence[Any]]:
        """Return what is sent for one call, with which it waits for the row."""
        if self.one is not None:
            return self.one, (call.name, *call.arguments)
        arguments = [_array([argument]) for argument in call.arguments]
        return self.many.replace(" SKIP LOCKED", ""), [[call.name], *arguments]


def _array(column: Sequence[Any]) -> list[Any]:
    """Return an array of a type that asyncpg knows: looking up others would change the session's settings."""
    return [repr(value) if isinstance(value, float) else value for value in column]


class Call:
    """One call that waits for its answer."""

    __slots__ = (
        "alone",
        "arguments",
        "behind",
        "expired",
        "future",
        "name",
        "resent",
        "statement",
        "stuck",
        "table_missed",
        "token",
    )

    def __init__(
        self,
        statement: Statement,
        name: str,
        token: str | None,
        arguments: tuple[Any, ...],
        future: asyncio.Future[Any],
    ) -> None:
        self.statement = statement
        self.name = name
        self.token = token
        self.arguments = arguments
        self.future = future
        self.expired = False
        """Its time is over."""
        self.alone = False
        """It was in a batch that failed, so it is not to be sent with others."""
        self.stuck = False
        """Its row was found locked by another transaction."""
        self.resent = False
        """A connection was lost while it was under way: it may have been done."""
        self.table_missed = False
        """Its table was missing, and has been created for it once."""
        self.behind = 0
        """How many calls waited behind it when it was sent."""

    @property
    def is_pointless(self) -> bool:
        """Whether it need not be sent any more."""
        return self.expired or (self.statement.droppable and self.future.done())

    def goes_with(self, other: Call) -> bool:
        """Whether both can be sent as one statement."""
        return self.statement is other.statement and not (self.alone or other.alone)

    def answer(self, value: Any) -> None:
        """Let its caller go on, if there still is one."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Let its caller go on with an error, if there still is one."""
        if not self.future.done():
            self.future.set_exception(error)
