"""Compare and swap on Leases: read, decide, write on condition that nobody wrote in between.

A write whose outcome is unclear may still land later. It carries a name, so that reading again recognises
it, and it can land only while the Lease is as it was, so that any later write of ours makes it harmless.
A release is refused only once nothing can land any more.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from grelmicro.errors import OutOfContextError
from grelmicro.providers._kubernetes.errors import NoReplyError
from grelmicro.providers._kubernetes.line import Line
from grelmicro.providers._kubernetes.observations import Observations
from grelmicro.providers._kubernetes.operation import Operation
from grelmicro.providers._kubernetes.unsettled import Unsettled
from grelmicro.providers._kubernetes.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.providers._kubernetes.api import LeaseApi
    from grelmicro.providers._kubernetes.names import Place
    from grelmicro.providers._kubernetes.operation import Decide
    from grelmicro.providers._kubernetes.record import Record

_CLOSED = "the KubernetesProvider was closed"


class Exchange:
    """All operations of one provider. Each has its answer, or its error, within `call_timeout` seconds.

    That is later when so many are made at a time that they wait for each other while others are answered.

    Operations run on when their callers are cancelled; one that was not sent yet is dropped, unless it is to
    be finished. Those about one Lease keep their order. `where` names the API server in messages, and
    `written` is told of every Lease that was written.
    """

    def __init__(
        self,
        api: LeaseApi,
        *,
        where: str,
        call_timeout: float,
        written: Callable[[Place, Record], None],
        observations: Observations | None = None,
    ) -> None:
        self.api = api
        self.where = where
        self.written = written
        self.observations = observations or Observations()
        self.unsettled = Unsettled()
        self.process = os.urandom(6).hex()
        """What this process is called among those that wait."""
        self._watches: dict[str, Watch] = {}
        self._call_timeout = call_timeout
        self._loop = asyncio.get_running_loop()
        self._lines: dict[Place, Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def submit(
        self, place: Place, decide: Decide, *, writes: bool = True, finish: bool = False
    ) -> asyncio.Future[Any]:
        """Have `decide` decided about the Lease at `place`; its result comes in the future.

        The future fails with a `ProviderError` that says why there is no clear answer.
        """
        if self._closed:
            raise OutOfContextError(_CLOSED)
        operation = Operation(
            decide,
            self._loop.create_future(),
            self.now() + self._call_timeout,
            writes=writes,
            finish=finish,
        )
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(self, place)
            task = self._loop.create_task(self._serve(place, line), name="grelmicro-kubernetes")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.add(operation)
        self._set_timer(line, operation)
        return operation.future

    def watch(self, namespace: str) -> Watch:
        """Return the watch for a namespace."""
        watch = self._watches.get(namespace)
        if watch is None:
            watch = self._watches[namespace] = Watch(self.api, self.where, namespace)
        return watch

    async def aclose(self) -> None:
        """Wait until every operation has ended, `call_timeout` at most."""
        self._closed = True
        for watch in self._watches.values():
            await watch.aclose()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._call_timeout)
        for task in self._tasks:
            task.cancel()
        for line in self._lines.values():
            line.fail(OutOfContextError(_CLOSED))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, place: Place, line: Line) -> None:
        try:
            await line.run()
        finally:
            del self._lines[place]

    def _set_timer(self, line: Line, operation: Operation) -> None:
        timer = self._loop.call_at(operation.deadline, self._expire, line, operation)
        operation.future.add_done_callback(lambda _: timer.cancel())

    def _expire(self, line: Line, operation: Operation) -> None:
        if self.api.is_congested and line.trouble is None:
            # It waits its turn, for as long as its caller does.
            operation.deadline = self.now() + self._call_timeout
            self._set_timer(line, operation)
            return
        trouble = line.trouble or NoReplyError(f"none within {self._call_timeout:g} s")
        operation.fail(line.explain(trouble))
