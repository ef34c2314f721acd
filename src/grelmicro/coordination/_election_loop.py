"""The loop that campaigns, renews and hands over.

States:

- follower: asks for the lease every `retry_interval`. No work runs: a new term begins only when the work of
  the one before has ended.
- leading(deadline): asks again every `retry_interval`; each confirmation moves the deadline to
  `renew_deadline` after the moment before its request. Over at the deadline, or when somebody else turns out
  to hold the lease: the flag falls, the work is cancelled, and the loop waits for its end before it is a
  follower again.
- stopping: entered by cancellation only. The flag falls, the work is cancelled and waited for, the lease is
  released, in this order.

At each await:

- request for the lease. It runs in a task of its own, so a call that hangs or swallows cancellation cannot
  hold the loop back. Out of time (`backend_timeout`, at most the time left to lead), failed, nonsensical, or
  answered too late: not obtained. A term goes on until its deadline, and the same token asks again. A
  follower gives back what it may have got, in a task of its own, and asks again with another token: a worker
  that is heard but does not hear must not keep the lease from everybody. Cancelled: stopping; the outcome is
  open, so a release follows.
- end of the work: no limit, since leading again earlier would let two terms overlap. Work that outlasts the
  lease is reported as an error. Cancelled: stopping.
- pause between requests: a leader's ends at the deadline, a follower's, unless its request failed, when the
  leader lets go or its lease has ended. Cancelled: stopping.
- stopping: runs in a task of its own, which neither asyncio's native `task.cancel()` nor `asyncio.timeout`
  reaches. The loop's task waits for it while the lease lasts (without one, `backend_timeout` at most); a
  second, native cancellation ends that wait (it may come from work that waits for the loop's task, and has to
  end first).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from anyio import get_cancelled_exc_class

from grelmicro._detached import Detached, spawn
from grelmicro.coordination._election_claim import Claim
from grelmicro.coordination._election_failures import Failures, describe
from grelmicro.coordination._election_term import Changes, Term
from grelmicro.coordination._election_vacancy import Vacancy
from grelmicro.coordination._holders import current_clock
from grelmicro.coordination._identity import fork_count
from grelmicro.coordination._waiting import jittered
from grelmicro.coordination.errors import CoordinationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anyio.abc import TaskStatus

    from grelmicro.coordination.abc import LeaderElectionBackend, LeaderRecord
    from grelmicro.coordination.errors import LeaderElectionBackendError
    from grelmicro.coordination.leaderelection import LeaderElectionConfig

logger = logging.getLogger("grelmicro.coordination")

_STALL = 0.1
"""Seconds by which the loop notices a deadline late before it says so."""
_LATEST_RENEWAL = 2 / 3
"""The share of the time left to lead after which the next renewal starts at the latest."""


class Campaign:
    """One instance's part in an election."""

    def __init__(
        self,
        name: str,
        *,
        config: Callable[[], LeaderElectionConfig],
        backend: Callable[[], LeaderElectionBackend],
        new_token: Callable[[], str],
        metadata: Mapping[str, str],
    ) -> None:
        self._name = name
        self._config = config
        self._backend = backend
        self._new_token = new_token
        self._metadata = metadata
        self._clock: Callable[[], float] = lambda: 0.0
        self._changes = Changes()
        self._term: Term | None = None
        self._running_in: int | None = None
        self._failures = Failures(name)
        self._giving_back: Detached[None] | None = None
        self.record: LeaderRecord | None = None

    @property
    def running(self) -> bool:
        """Whether the loop runs in this process."""
        return self._running_in == fork_count()

    @property
    def last_error(self) -> LeaderElectionBackendError | None:
        """The failure of the latest request; None when it was answered."""
        return self._failures.last

    @property
    def term(self) -> Term | None:
        """The term in which this process leads now."""
        term = self._term
        return term if term is not None and term.alive else None

    async def elected(self) -> Term:
        """Wait until this process leads."""
        while (term := self.term) is None:
            await self._changes.wait()
        return term

    async def run(self, task_status: TaskStatus[None]) -> None:
        """Campaign until cancelled, then hand over.

        Raises:
            CoordinationError: it runs already.
            OutOfContextError: there is no backend to ask.
        """
        if self.running:
            msg = (
                f"election {self._name!r} is running already; a second candidate needs an instance of its own"
            )
            raise CoordinationError(msg)
        self._backend()
        self._clock = current_clock()
        if self._term is not None and not self._term.here:
            self._term = None
        self._claim, self._giving_back = self._new_claim(), None
        self._vacancy = Vacancy(self._name, self._clock)
        self._running_in = fork_count()
        try:
            task_status.started()
            while True:
                await self._step()
        except get_cancelled_exc_class():
            await self._stop(self._config())
            raise
        finally:
            self._running_in = None
            if self._term is not None:
                self._term.ended = True
            self._vacancy.close()

    async def _step(self) -> None:
        await self._end_term_over()
        config = self._config()
        try:
            await self._ask(config)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, the loop goes on
            self._failures.add(
                error,
                token=self._claim.token,
                now=self._clock(),
                error_interval=config.error_interval,
            )
            if self._term is None:
                self._give_back(config)
            answered = False
        else:
            self._failures.end()
            answered = True
        await self._pause(config, answered=answered)

    async def _ask(self, config: LeaderElectionConfig) -> None:
        """Make one request and draw the consequences."""
        backend = self._backend()
        if self._claim.backend is not None and self._claim.backend is not backend:
            await self._leave_backend(config)
        claim, term = self._claim, self._term
        self._vacancy.before_asking(backend)
        asked_at = self._clock()
        timings = {
            "asked_at": asked_at,
            "renew_deadline": config.renew_deadline,
            "lease_duration": config.lease_duration,
        }
        until = asked_at + min(config.backend_timeout, config.renew_deadline)
        if term is not None:
            term.limit(**timings)
            until = min(until, term.deadline)
        record = await claim.request(
            backend, duration=config.lease_duration, metadata=dict(self._metadata) or None, until=until
        )
        self.record = record
        self._vacancy.saw(record)
        if record.holder != claim.token:
            claim.refused()
            if term is not None:
                self._end(term, "somebody else holds the lease")
                await self._drain(term)
            return
        if term is not None:
            # A term that is over by the clock is replaced in the next step, once its work has ended.
            term.confirm(**timings)
        elif self._clock() < asked_at + config.renew_deadline:
            self._begin(Term(self._clock, self._changes, **timings))
        else:
            msg = "the grant arrived after its time to lead had ended"
            raise TimeoutError(msg)

    def _begin(self, term: Term) -> None:
        self._term = term
        logger.info("Election %r: this worker leads.", self._name)
        self._changes.notify()

    def _end(self, term: Term, reason: str) -> None:
        if not term.ended:
            term.end()
            logger.warning("Election %r: this worker leads no longer: %s.", self._name, reason)

    async def _end_term_over(self) -> None:
        term = self._term
        if term is None or term.alive:
            return
        late = self._clock() - term.deadline
        stalled = f"; the event loop stood still for at least {late:.2f} s" if late >= _STALL else ""
        self._end(term, f"no renewal was confirmed in time{stalled}")
        await self._drain(term)

    async def _drain(self, term: Term) -> None:
        """Wait until the work of a term that is over has ended."""
        with anyio.CancelScope(deadline=term.lease_end):
            await term.drained()
        if term.busy:
            logger.error(
                "Election %r: work of this worker still runs although its lease has ended; "
                "another worker may lead at the same time.",
                self._name,
            )
            await term.drained()
            logger.warning("Election %r: the work that outlasted its lease has ended.", self._name)
        if self._term is term:
            self._term = None

    async def _pause(self, config: LeaderElectionConfig, *, answered: bool) -> None:
        """Wait until it is time for the next request, or until leading ends."""
        pause = jittered(config.retry_interval, config.retry_jitter)
        term = self._term
        if term is None:
            if answered:
                await self._vacancy.wait(pause)
            else:  # what a failing follower gives back would wake itself at once
                await anyio.sleep(pause)
            return
        if answered:
            pause = max(0, min(pause, (term.deadline - self._clock()) * _LATEST_RENEWAL))
        with anyio.CancelScope(deadline=term.deadline):
            await anyio.sleep(pause)

    async def _stop(self, config: LeaderElectionConfig) -> None:
        """Hand over, in a task of its own, and wait for it while the lease lasts."""
        claim, term = self._claim, self._term
        if term is not None:
            term.end()
            logger.info("Election %r: this worker stops and hands over.", self._name)
        handing_over = spawn(self._hand_over, term, claim, config, name="grelmicro-hand-over")
        now = self._clock()
        limit = claim.held_until if claim.held_until > now else now + config.backend_timeout
        with anyio.CancelScope(shield=True, deadline=limit):
            await handing_over.wait()
            if self._giving_back is not None:
                await self._giving_back.wait()

    async def _hand_over(self, term: Term | None, claim: Claim, config: LeaderElectionConfig) -> None:
        if term is not None:
            await self._drain(term)
        await self._release(claim, config, logging.WARNING)

    def _give_back(self, config: LeaderElectionConfig) -> None:
        """Release what was perhaps granted, in the background, and go on with another token."""
        claim, self._claim = self._claim, self._new_claim()
        self._giving_back = spawn(self._release, claim, config, logging.DEBUG, name="grelmicro-give-back")

    async def _leave_backend(self, config: LeaderElectionConfig) -> None:
        """End what was obtained from a backend that is no longer the one to ask."""
        if self._term is not None:
            self._end(self._term, "it was given another backend")
            await self._drain(self._term)
        self._give_back(config)

    async def _release(self, claim: Claim, config: LeaderElectionConfig, level: int) -> None:
        try:
            await claim.release(within=config.backend_timeout)
        except Exception as error:  # noqa: BLE001 - the lease ends by itself
            logger.log(
                level,
                "Election %r: the lease could not be released and ends by itself within %g s: %s",
                self._name,
                config.lease_duration,
                describe(error, claim.token),
            )

    def _new_claim(self) -> Claim:
        return Claim(self._name, self._new_token())
