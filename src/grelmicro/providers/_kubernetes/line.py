"""The operations about one Lease: those that wait together are decided together, in the order they came."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from grelmicro.coordination._clock import utc, wall_time
from grelmicro.providers._kubernetes.errors import (
    ApiError,
    NoReplyError,
    UnreachableError,
    UnreadableError,
    explained,
)
from grelmicro.providers._kubernetes.operation import Moment
from grelmicro.providers._kubernetes.record import State, new_write, parse, render, touched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grelmicro.providers._kubernetes.exchange import Exchange
    from grelmicro.providers._kubernetes.names import Place
    from grelmicro.providers._kubernetes.operation import Operation
    from grelmicro.providers._kubernetes.record import Record

_RACE_PAUSE = 0.005
_LONGEST_RACE_PAUSE = 0.05
_TROUBLE_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_CONNECTS = 2
"""How often a connection is tried before its failure counts."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A result that is raised."""

    error: Exception


Results: TypeAlias = "list[tuple[Operation, Any]]"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A write that was sent: what it means to whom, since when its lease counts, and what it was based on."""

    results: Results
    since: float
    base: str | None


class Line:
    """Takes rounds until every operation has its answer, or its time is over."""

    def __init__(self, exchange: Exchange, place: Place) -> None:
        self._exchange = exchange
        self._place = place
        self._waiting: list[Operation] = []
        self._attempts: dict[str, _Attempt] = {}
        self._read_first = False
        self._failures = 0
        self._verb = "get"
        self._base: str | None = None
        self._invalid: set[str | None] = set()
        self.trouble: Exception | None = None
        """What went wrong last, unless it has been overcome."""

    def add(self, operation: Operation) -> None:
        """Take in an operation for the next round."""
        self._waiting.append(operation)

    async def run(self) -> None:
        """Answer all operations."""
        try:
            while self._unanswered():
                try:
                    async with self._exchange.api.slots:
                        # Callers may have gone while it waited.
                        await self._round(self._unanswered())
                except (ApiError, NoReplyError, UnreachableError, UnreadableError) as error:
                    await self._cope(error)
                else:
                    self._failures, self.trouble = 0, None
        except Exception as error:  # noqa: BLE001 - such as one of the client's, over credentials
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Fail whatever has no answer yet."""
        for operation in self._unanswered():
            operation.fail(error)

    def explain(self, error: Exception) -> Exception:
        """Return the error that a caller sees."""
        return explained(error, self._exchange.where, self._verb, self._place)

    def _unanswered(self) -> list[Operation]:
        now = self._exchange.now()
        self._waiting = [operation for operation in self._waiting if operation.wanted(now)]
        return list(self._waiting)

    async def _round(self, operations: Sequence[Operation]) -> None:
        exchange, place = self._exchange, self._place
        record = exchange.observations.known(place)
        guess = any(operation.writes for operation in operations) and exchange.api.clock.known
        fresh = self._read_first or not guess
        if fresh:
            record = await self._read()
            self._read_first = False
        at = wall_time()
        moment = Moment(now=exchange.now(), at=utc(at), epoch=exchange.api.clock.epoch())
        before = exchange.observations.judged(place, record)
        # A write that was recognised while reading has answered some.
        operations = [operation for operation in operations if operation.wanted(moment.now)]
        after, results = _decided(before, operations, moment)
        settle = any(operation.finish for operation in operations) and exchange.unsettled.may_land(
            place, record, moment.now
        )
        if after is not before or (fresh and settle):
            await self._write(record, before, after, results, moment)
        elif not fresh:
            self._read_first = True
        else:
            _deliver(results)

    async def _read(self) -> Record | None:
        exchange, place = self._exchange, self._place
        self._verb = "get"
        body = await exchange.api.get(place)
        record = None if body is None else parse(place, body)
        attempt = self._attempts.pop(record.write, None) if record else None
        exchange.observations.note(place, record, attempt.since if attempt else exchange.now())
        if record is not None:
            if attempt is not None:
                self._landed(attempt.results, record)
            self._attempts = {key: one for key, one in self._attempts.items() if one.base == record.version}
        return record

    async def _write(
        self,
        record: Record | None,
        before: State | None,
        after: State | None,
        results: Results,
        moment: Moment,
    ) -> None:
        """Write what the Lease shall say; if that is what it says, something that moves its version on."""
        exchange, place = self._exchange, self._place
        write, base = new_write(), record.version if record else None
        if record is not None and before is not None and after is not None and before.is_beside(after):
            body = touched(record, after)
        else:
            body = render(place, after or State(renewed_at=moment.at, acquired_at=moment.at), record, write)
        self._attempts[write] = _Attempt(results, moment.now, base)
        self._verb, self._base = "update" if record else "create", base
        try:
            reply = await (exchange.api.replace if record else exchange.api.create)(place, body)
        except (ApiError, NoReplyError) as error:
            if isinstance(error, NoReplyError) or error.is_unclear:
                exchange.unsettled.add(place, base, exchange.now())
                for operation, result in results:
                    operation.hoped = result
            raise
        written = parse(place, reply)
        exchange.observations.note(place, written, moment.now)
        self._landed(results, written)

    def _landed(self, results: Results, record: Record) -> None:
        self._attempts.clear()
        self._exchange.unsettled.clear(self._place)
        self._exchange.written(self._place, record)
        _deliver(results)

    async def _cope(self, error: Exception) -> None:
        """Pause before the next round, which reads; or fail those for whom there is none."""
        self._exchange.observations.forget(self._place)
        self._read_first = True
        self._failures += 1
        if not (isinstance(error, ApiError) and error.is_race):
            self.trouble = error
        pause = self._pause_after(error)
        until = self._exchange.now() + (0 if pause is None else pause)
        for operation in self._unanswered():
            if pause is None or operation.deadline <= until:
                operation.fail(self.explain(error))
        if pause and self._unanswered():
            await asyncio.sleep(pause)

    def _pause_after(self, error: Exception) -> float | None:
        """Return the seconds until the next try, or None when another try is no use."""
        longest = min(_TROUBLE_PAUSE * 2 ** (self._failures - 1), _LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)  # noqa: S311
        match error:
            case ApiError() if self._verb != "get" and error.is_race:
                return self._pause_after_race(error)
            case ApiError() if error.is_passing:
                return max(pause, error.retry_after or 0)
            case NoReplyError():
                return pause
            case UnreachableError() if self._failures < _CONNECTS:
                return pause
            case _:
                return None

    def _pause_after_race(self, error: ApiError) -> float | None:
        if error.status == HTTPStatus.NOT_FOUND and self._verb == "create":
            return None  # it is the namespace that is missing
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            if self._base in self._invalid:
                return None  # twice on the same Lease: nobody was quicker, the server just refuses it
            self._invalid.add(self._base)
        return random.uniform(0, min(_RACE_PAUSE * (self._failures - 1), _LONGEST_RACE_PAUSE))  # noqa: S311


def _decided(
    state: State | None, operations: Sequence[Operation], moment: Moment
) -> tuple[State | None, Results]:
    """Return what the Lease shall say after all of them, and what each returns."""
    results: Results = []
    for operation in operations:
        try:
            state, result = operation.decide(state, moment, operation.hoped)
        except Exception as error:  # noqa: BLE001 - its caller's, and nobody else's
            result = _Failure(error)
        results.append((operation, result))
    return state, results


def _deliver(results: Results) -> None:
    for operation, result in results:
        if isinstance(result, _Failure):
            operation.fail(result.error)
        else:
            operation.resolve(result)
