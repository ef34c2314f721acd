"""Which calls may be sent: those for one name take turns, and those whose row is locked stand aside."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from grelmicro.coordination.postgres._statement import UNDECIDED
from grelmicro.providers._postgres.sending import terminate
from grelmicro.providers._postgres.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    import asyncpg

    from grelmicro.coordination.postgres._statement import Call, Statement
    from grelmicro.providers._postgres.sending import Connection

    Decide = Callable[[Call, asyncpg.Record | None], Any]

_MAX_BATCH = 200


class Queues:
    """The unanswered calls on one table. Each fails with a `TimeoutError` after `call_timeout` seconds.

    A call is ready when no earlier one for its name is unanswered. It leaves `ready` or `stuck` when it is
    gathered; whoever gathered it must answer it, fail it or put it back.
    """

    def __init__(self, call_timeout: float) -> None:
        self._call_timeout = call_timeout
        self._unanswered: Timeouts[Call] = Timeouts(call_timeout, self._expire)
        self._names: dict[str, deque[Call] | None] = {}
        """The names with an unanswered call, and the calls that wait behind it."""
        self.ready: dict[Statement, deque[Call]] = {}
        self.stuck: deque[Call] = deque()
        """Calls whose row another transaction has locked."""

    def add(self, call: Call) -> None:
        """Take in a new call."""
        self._unanswered.add(call)
        if call.name not in self._names:
            self._names[call.name] = None
            self._make_ready(call)
            return
        waiting = self._names[call.name]
        if waiting is None:
            waiting = self._names[call.name] = deque()
        waiting.append(call)

    def is_busy(self, name: str) -> bool:
        """Say whether a call for that name is unanswered."""
        return name in self._names

    def add_under_way(self, call: Call, connection: Connection) -> None:
        """Take in a new call that is being sent. When its time is over, so is that of the connection."""
        call.connection = connection
        self._unanswered.add(call)
        self._names[call.name] = None

    def gather(self) -> list[Call]:
        """Take ready calls of one kind, as many as are sent together."""
        statement = next(iter(self.ready), None)
        if statement is None:
            return []
        ready = self.ready.pop(statement)
        calls: list[Call] = []
        while ready and len(calls) < _MAX_BATCH:
            call = ready.popleft()
            if call.is_pointless:
                self._leave(call)
            elif call.alone and calls:
                ready.appendleft(call)
                break
            else:
                calls.append(call)
                if call.alone:
                    break
        if ready:  # behind the other kinds
            self.ready[statement] = ready + self.ready.pop(statement, deque())
        return self._prepared(calls)

    def gather_stuck(self, most: int = _MAX_BATCH) -> list[Call]:
        """Take stuck calls of one kind, as many as are sent together, or `most`."""
        calls: list[Call] = []
        others: deque[Call] = deque()
        for call in self.stuck:
            if call.is_pointless:
                self._leave(call)
            elif not calls or (len(calls) < most and call.goes_with(calls[0])):
                calls.append(call)
            else:
                others.append(call)
        self.stuck = others
        return self._prepared(calls)

    def put_back(self, calls: Iterable[Call], *, alone: bool = False) -> None:
        """Let calls be sent again, on request each by itself."""
        for call in calls:
            call.alone = call.alone or alone
            if call.is_pointless:
                self._leave(call)
            elif call.stuck:
                self.stuck.append(call)
            else:
                self._make_ready(call)

    def stick(self, call: Call) -> None:
        """Put aside a call whose row is locked."""
        call.stuck = True
        self.stuck.append(call)

    def answer(self, calls: Sequence[Call], decide: Decide, rows: Sequence[asyncpg.Record]) -> None:
        """Answer calls of one kind with the rows that came for them."""
        if len(calls) == 1:
            self._answer(calls[0], decide, rows[0] if rows else None)
            return
        by_name = {row["name"]: row for row in rows}
        for call in calls:
            self._answer(call, decide, by_name.get(call.name))

    def _answer(self, call: Call, decide: Decide, row: asyncpg.Record | None) -> None:
        try:
            value = decide(call, row)
        except Exception as error:  # noqa: BLE001 - a row that makes no sense is this caller's error alone
            self.fail([call], error)
            return
        if value is UNDECIDED:
            self.stick(call)
            return
        call.answer(value)
        if call.behind and call.statement.shared:
            self._answer_others(call, row)
        self._leave(call)

    def fail(self, calls: Iterable[Call], error: Exception) -> None:
        """Fail calls, each with an error of its own."""
        for number, call in enumerate(list(calls)):
            call.fail(error if number == 0 else _copy(error))
            self._leave(call)

    def fail_before(self, attempt: int, error: Exception) -> None:
        """Fail what can be sent and was made before that attempt to find a connection."""
        calls = [call for calls in self.ready.values() for call in calls] + list(self.stuck)
        self.ready, self.stuck = {}, deque()
        self.put_back(call for call in calls if call.attempt >= attempt)
        self.fail([call for call in calls if call.attempt < attempt], error)

    def fail_all(self, error: Exception) -> None:
        """Fail every call, for good."""
        for call in self._unanswered.clear():
            call.fail(_copy(error))
        self._names.clear()
        self.ready.clear()
        self.stuck.clear()

    def _make_ready(self, call: Call) -> None:
        ready = self.ready.get(call.statement)
        if ready is None:
            ready = self.ready[call.statement] = deque()
        ready.append(call)

    def _prepared(self, calls: list[Call]) -> list[Call]:
        for call in calls:
            call.behind = len(self._names.get(call.name) or ())
        calls.sort(key=_name)  # every process locks rows in the same order
        return calls

    def _answer_others(self, call: Call, row: asyncpg.Record | None) -> None:
        """Let the row of a call also answer calls like it that were waiting when it was sent."""
        waiting = self._names[call.name]
        assert waiting is not None  # noqa: S101 - `behind` counted them
        still: deque[Call] = deque()
        tokens = {call.token}
        for other in [waiting.popleft() for _ in range(call.behind)]:
            if other.statement is call.statement and (other.token is None or other.token not in tokens):
                value = other.statement.decide(other, row)
                if value is not UNDECIDED:
                    other.answer(value)
                    self._unanswered.discard(other)
                    continue
            tokens.add(other.token)
            still.append(other)
        waiting.extendleft(reversed(still))

    def _leave(self, call: Call) -> None:
        """Let the next call for the name have its turn."""
        self._unanswered.discard(call)
        waiting = self._names.get(call.name)
        if waiting:
            self._make_ready(waiting.popleft())
        else:
            self._names.pop(call.name, None)

    def _expire(self, call: Call) -> None:
        call.expired = True
        if call.connection is not None:
            terminate(call.connection)
        call.fail(TimeoutError(f"no answer from PostgreSQL within {self._call_timeout:g} s"))


def _name(call: Call) -> str:
    return call.name


def _copy(error: Exception) -> Exception:
    """Return an error like this one: raising one object in several tasks would mix up their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__ or error
    return copy
