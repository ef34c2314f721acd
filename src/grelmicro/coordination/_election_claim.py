"""One token's claim to an election: what is asked for it, what comes back late, and giving it up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio
from anyio import current_time

from grelmicro._detached import Detached, spawn
from grelmicro.coordination.abc import LeaderRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grelmicro.coordination.abc import LeaderElectionBackend


class _Call:
    """One request under way; it may outlive the interest in it."""

    def __init__(self) -> None:
        self.wanted = True
        self.record: LeaderRecord | None = None
        self.error: Exception | None = None


class Claim:
    """What one token has asked of a backend.

    A token that was sent in a release is never asked for again: a delayed request of either kind can then
    reach the server at any time without ending, or starting, the leadership of a later token.
    """

    def __init__(self, name: str, token: str) -> None:
        self._name = name
        self.token = token
        self.backend: LeaderElectionBackend | None = None
        """The backend asked last."""
        self._held_until = -math.inf
        self._pending: Detached[None] | None = None
        self._released = False

    @property
    def held_until(self) -> float:
        """Until when the backend may hold the lease for this token (loop time); past if it does not."""
        return self._held_until

    async def request(
        self,
        backend: LeaderElectionBackend,
        *,
        duration: float,
        metadata: Mapping[str, str] | None,
        until: float,
    ) -> LeaderRecord:
        """Take or renew the lease. Over by `until` (loop time) or when cancelled, whatever the backend does.

        A grant that comes later is given back if the claim was released in the meantime.

        Raises:
            TimeoutError: there was no answer by then.
            Exception: whatever the backend raised.
        """
        self.backend = backend
        call = _Call()
        self._held_until = max(self._held_until, current_time() + duration)
        task = self._pending = spawn(self._ask, call, backend, duration, metadata, name="grelmicro-campaign")
        try:
            with anyio.CancelScope(deadline=until):
                await task.wait()
        finally:
            if not task.done:
                call.wanted = False
        if task.done:
            if call.error is not None:
                raise call.error
            if call.record is not None:
                return call.record
            msg = "the call was cancelled from within the backend"
            raise ConnectionError(msg)
        task.cancel()
        msg = "the backend did not answer in time"
        raise TimeoutError(msg)

    def refused(self) -> None:
        """Note that the backend just said that somebody else leads."""
        self._held_until = -math.inf

    async def release(self, *, within: float) -> None:
        """Give up the lease, `within` that many seconds, unless no answer so far suggests that it is held.

        Raises:
            TimeoutError: there was no answer by then.
            Exception: whatever the backend raised.
        """
        limit = min(within, self._held_until - current_time())
        if limit <= 0:
            self._released = True
            return
        with anyio.fail_after(limit):
            if self._pending is not None:  # a release must not overtake what it is to undo
                with anyio.move_on_after(limit / 2):
                    await self._pending.wait()
                self._pending.cancel()
            await self._send_release()

    async def _send_release(self) -> None:
        self._released = True
        if self.backend is not None:
            await self.backend.release(name=self._name, token=self.token)

    async def _ask(
        self,
        call: _Call,
        backend: LeaderElectionBackend,
        duration: float,
        metadata: Mapping[str, str] | None,
    ) -> None:
        try:
            record = await backend.acquire_or_renew(
                name=self._name, token=self.token, duration=duration, metadata=metadata
            )
            call.record = _checked(record)
        except Exception as error:  # noqa: BLE001 - delivered by request()
            call.error = error
            return
        if not call.wanted and call.record.holder == self.token:
            self._held_until = max(self._held_until, current_time() + duration)
            if self._released:
                with anyio.CancelScope(shield=True), anyio.move_on_after(duration):
                    await self._send_release()


def _checked(record: object) -> LeaderRecord:
    if not isinstance(record, LeaderRecord):
        msg = f"the backend answered with {type(record).__name__} instead of a LeaderRecord"
        raise TypeError(msg)
    return record
