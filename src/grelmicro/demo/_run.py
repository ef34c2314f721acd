"""One run: who is started, who is killed and when, and what is waited for in between."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from grelmicro.demo._events import Event, What

if TYPE_CHECKING:
    from grelmicro.demo._crew import Crew
    from grelmicro.demo._plan import Orders
    from grelmicro.demo._stage import Stage

_HANG_IN = 2
"""The round in which the first worker hangs."""


class Run:
    """The director. It replaces a killed worker by a new one, as an orchestrator would."""

    def __init__(self, stage: Stage, crew: Crew, orders: Orders) -> None:
        self._stage = stage
        self._crew = crew
        self._orders = orders
        self._plan = orders.plan
        self._started = 0

    def play(self) -> tuple[float, float] | None:
        """Run it all, and return the time during which the schedule was watched and nobody killed.

        Without the lock it ends after the counting and returns None.

        Raises:
            BrokenRunError: it did not come to its end.
        """
        plan, stage = self._plan, self._stage
        self._start(plan.rounds, hang_in=_HANG_IN)
        for _ in range(plan.workers - 1):
            self._start(plan.rounds)
        stage.until(lambda: stage.count(What.READY) == plan.workers, "the workers to start")
        end = time.monotonic() + plan.length
        told = "one is killed while it holds the lock" if self._orders.use_lock else "without the lock"
        stage.headline(f"The lock: they count to {plan.total} together, {told}")
        self._kill_the_holder()
        window = self._watch_the_roles(end) if self._orders.use_lock else None
        self._crew.stop()
        stage.catch_up()
        return window

    def _kill_the_holder(self) -> None:
        for worker in range(1, self._started + 1):
            self._crew.go(worker)
        stuck = self._wait_for(What.STUCK, "a worker to hang")
        self._crew.kill(stuck.worker)
        self._crew.go(self._start(self._plan.rounds - _HANG_IN + 1))
        self._stage.until(
            lambda: self._stage.count(What.FINISHED) == self._plan.workers, "the counting to end"
        )

    def _watch_the_roles(self, end: float) -> tuple[float, float]:
        self._stage.headline("The leader: it is killed, and replaced once its lease is over")
        elected = self._kill_the_leader()
        self._stage.headline(f"The schedule: one run per {self._plan.tick:g} s over all of them")
        start = self._wait_for(What.RUNS, "the job to run", after=elected.at).at
        end = max(end, start + self._plan.quiet)
        self._stage.until(lambda: time.monotonic() >= end, "the end")
        return start, end

    def _kill_the_leader(self) -> Event:
        leads = self._stage.until(self._settled_leader, "a leader")
        killed = self._crew.kill(leads.worker)
        self._crew.go(self._start(0))
        return self._wait_for(What.LEADS, "a new leader", after=killed.at)

    def _start(self, rounds: int, hang_in: int | None = None) -> int:
        self._started += 1
        self._crew.start(replace(self._orders, worker=self._started, rounds=rounds, hang_in=hang_in))
        return self._started

    def _settled_leader(self) -> Event | None:
        leads = self._stage.leader()
        return leads if leads and leads.at < time.monotonic() - self._plan.retry else None

    def _wait_for(self, what: What, told: str, *, after: float = 0.0) -> Event:
        return self._stage.until(lambda: self._stage.first(what, after=after), told)
