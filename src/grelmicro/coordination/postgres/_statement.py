"""A kind of call: the SQL that answers many of them at once, and how a row decides each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    import asyncpg

    from grelmicro.providers._postgres.sending import Connection


class Undecided(Enum):
    """Says that a reply left a call without an answer."""

    UNDECIDED = "undecided"


UNDECIDED: Final = Undecided.UNDECIDED


class Request(NamedTuple):
    """What is sent, and how a row of the reply, or its absence, decides a call."""

    sql: str
    arguments: Sequence[Any]
    decide: Callable[[Call, asyncpg.Record | None], Any]


@dataclass(frozen=True, eq=False, slots=True)
class Statement:
    """One kind of call.

    `many` takes the names and, for each argument of a call, an array of them, and skips rows that another
    transaction has locked. `one` takes a name and its arguments, waits a moment for the row, and answers with
    one row or none; without it, `many` is used with waiting instead of skipping.
    """

    many: str
    decide: Callable[[Call, asyncpg.Record | None], Any]
    one: str | None = None
    decide_one: Callable[[Call, asyncpg.Record | None], Any] | None = None
    """For `one`, where it answers less."""
    shared: bool = False
    """Whether a row of `many` can also decide the calls for its name that were made before it was sent."""
    droppable: bool = True
    """Whether a call whose caller has gone need not be sent."""
    wordless: Statement | None = None
    """What is sent instead while the server takes no notifications, its queue being full of unheard ones."""
    collects: bool = False
    """Whether it may add rows, so that old ones should be collected from time to time."""

    def for_many(self, calls: Sequence[Call]) -> Request:
        """Return what is sent for calls with distinct names."""
        columns = zip(*(call.arguments for call in calls), strict=True)
        return Request(
            self.many, [[call.name for call in calls], *(_array(column) for column in columns)], self.decide
        )

    def for_one(self, call: Call) -> Request:
        """Return what is sent for one call, with which it waits for the row."""
        if self.one is not None and not (self.shared and call.behind):
            return Request(self.one, (call.name, *call.arguments), self.decide_one or self.decide)
        arguments = [_array([argument]) for argument in call.arguments]
        return Request(self.many.replace(" SKIP LOCKED", ""), [[call.name], *arguments], self.decide)


def _array(column: Sequence[Any]) -> list[Any]:
    """Return an array of a type that asyncpg knows: looking up others would change the session's settings."""
    return [repr(value) if isinstance(value, float) else value for value in column]


class Call:
    """One call that waits for its answer."""

    alone = False
    """It was in a batch that failed, so it is not to be sent with others."""
    stuck = False
    """Its row was found locked by another transaction."""
    resent = False
    """A connection was lost while it was under way: it may have been done."""
    table_missed = False
    """Its table was missing, and has been created for it once."""
    expired = False
    """Its time is over."""
    connection: Connection | None = None
    """The connection on which it was sent at once."""
    attempt = 0
    """How many times its batcher had begun to look for a connection when it was made."""
    behind = 0
    """How many calls waited behind it when it was sent."""

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
