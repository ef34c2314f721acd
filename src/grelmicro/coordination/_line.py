"""The callers of this process that wait for one lock: in line, with one contender for all of them.

The contender, a task of its own, asks the backend for whoever is first. Between two tries it sleeps until
- the backend says that it is this process's turn, if it can say so (`QueueingLockBackend`),
- the holder's lease ends, by the backend's word,
- a safety poll is due, which covers a lost word; without such a backend, or while its words do not come,
  every `retry_interval` of the first in line.

A holder of this process that lets go hands over to the first in line, in one step of the backend: the old
token ends, and the next gets a fencing token and a full lease of its own. So that other processes get their
turn, it lets go for all after a few hand-overs, when the backend says that somebody waits elsewhere.

Of a caller in line: waiting -> asked for -> granted, or gone at any time.
- gone while waiting: it just leaves.
- gone while asked for, by the contender or by a holder that hands over: what was granted to it goes to the
  next in line, or is released.
- an unclear answer: the contender asks again with the same token, which gets what it was perhaps granted.
- the backend failed: all in line hear of it, as each would have without a line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import anyio
from anyio import current_time

from grelmicro._detached import Detached, spawn
from grelmicro.coordination._waiting import jittered
from grelmicro.coordination.errors import LockBackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.coordination._calls import Grant, LockCalls

logger = logging.getLogger("grelmicro.coordination")

_SAFETY_POLL = 1.0
"""Seconds between tries while wake-ups come; jittered."""
_SAFETY_JITTER = 0.25
_MAX_HAND_OVERS = 4
"""How often a lock changes hands within this process while somebody waits in another."""
_COURTESY = 0.005
"""Seconds that this process then leaves the lock to the others."""
_ROUNDING = 0.001
"""Seconds by which a lease may outlast what a backend said was left of it."""


class Place:
    """One caller's place in line."""

    __slots__ = ("asked", "duration", "error", "grant", "interval", "jitter", "left", "settled", "token")

    def __init__(self, token: str, *, duration: float, interval: float, jitter: float) -> None:
        self.token = token
        self.duration = duration
        self.interval = interval
        self.jitter = jitter
        self.settled = anyio.Event()
        self.grant: Grant | None = None
        self.error: LockBackendError | None = None
        self.asked = False
        """Whether a request for its token is under way."""
        self.left = False


class Line:
    """The line for one lock; it exists while somebody is in it."""

    def __init__(self, calls: LockCalls, key: str, close: Callable[[], object]) -> None:
        self._calls = calls
        self._key = key
        self._close = close
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._news = anyio.Event()
        self._not_before = 0.0
        self._hand_overs = 0
        self._others_wait = False
        self._contender: Detached[None] | None = None

    async def wait(self, place: Place, deadline: float | None) -> Grant | None:
        """Stand in line. Returns None when the deadline (loop time) came first.

        Raises:
            LockBackendError: the backend failed.
        """
        self._places[place] = None
        if self._contender is None:
            self._contender = spawn(self._contend, name="grelmicro-contender")
        try:
            if deadline is None:
                await place.settled.wait()
            else:
                with anyio.CancelScope(deadline=deadline):
                    await place.settled.wait()
        except BaseException:
            self._leave(place)
            raise
        if place.error is not None:
            raise place.error
        if place.grant is None:
            self._leave(place)
        return place.grant

    async def release(self, token: str, end: float) -> bool:
        """End the lease of `token` in favour of the next in line, by `end` (loop time); say if it was held.

        Raises:
            LockReleaseError: the backend failed or gave no answer in time, so the lock may still be held.
        """
        calls = self._calls
        held = True
        while (place := self._next()) is not None:
            if not calls.queueing or (self._others_wait and self._hand_overs >= _MAX_HAND_OVERS):
                break
            place.asked = True
            try:
                succession = await calls.hand_over(self._key, token, place.token, place.duration, end)
            except BaseException:
                place.asked = False
                self._look_again()
                raise
            place.asked = False
            self._others_wait = succession.others_wait
            self._hand_overs += 1
            if succession.grant is None:
                self._look_again()
                return False
            if self._settle(place, succession.grant):
                return held
            token, end = place.token, self._end_for(place)  # it left meanwhile: on to the next
        if self._places:
            self._not_before = current_time() + (_COURTESY if self._others_wait else 0)
            self._hand_overs = 0
        released = await calls.free(self._key, token, end)
        self._look_again()
        return released and held

    def _next(self) -> Place | None:
        for place in self._places:
            if not place.asked:
                return place
        return None

    def _settle(self, place: Place, grant: Grant) -> bool:
        """Give a grant to whom it was made; says whether that is still there."""
        if place.left:
            return False
        del self._places[place]
        place.grant = grant
        place.settled.set()
        self._not_before = grant.deadline
        return True

    def _leave(self, place: Place) -> None:
        place.left = True
        if place.grant is not None:  # settled in the same turn of the loop in which it gave up
            self._bequeath(place)
        elif place in self._places:
            del self._places[place]
            if not self._places:
                self._look_again()

    def _bequeath(self, place: Place) -> None:
        """Let go of what was granted to somebody who has left."""
        spawn(self._let_go, place.token, self._end_for(place), name="grelmicro-bequeath")

    def _end_for(self, place: Place) -> float:
        return current_time() + min(self._calls.call_timeout, place.duration)

    async def _let_go(self, token: str, end: float) -> None:
        try:
            await self.release(token, end)
        except LockBackendError as error:
            logger.warning("A lock granted to a caller that had left was not released: %s", error)
            self._calls.clean_up(self._key, token)

    def _look_again(self) -> None:
        """Wake the contender: something has changed."""
        self._not_before = min(self._not_before, current_time() + _COURTESY)
        self._news.set()

    def _on_turn(self) -> None:
        self._not_before = 0.0
        self._news.set()

    async def _contend(self) -> None:
        stop_listening = self._calls.on_turn(self._key, self._on_turn)
        try:
            while self._places:
                self._news = anyio.Event()
                pause = self._not_before - current_time()
                if pause <= 0:
                    place = next(iter(self._places))
                    if place.asked:  # a holder is handing over to it
                        pause = _COURTESY
                    else:
                        pause = await self._ask(place)
                if pause > 0 and self._places:
                    with anyio.CancelScope(deadline=current_time() + pause):
                        await self._news.wait()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            stop_listening()
            self._contender = None
            self._close()

    async def _ask(self, place: Place) -> float:
        """Ask for the first in line. Returns the seconds until it is worth asking again."""
        calls = self._calls
        place.asked = True
        try:
            answer = await calls.acquire_or_enqueue(self._key, place.token, place.duration)
        except LockBackendError as error:
            self._fail(error)
            return 0.0
        finally:
            place.asked = False
        if answer.grant is not None:
            self._hand_overs = 0
            if not self._settle(place, answer.grant):
                self._bequeath(place)
            return 0.0
        self._not_before = 0.0
        longest = answer.remaining + _ROUNDING
        if calls.wakes:
            return min(longest, jittered(_SAFETY_POLL, _SAFETY_JITTER))
        return min(longest, jittered(place.interval, place.jitter))

    def _fail(self, error: BaseException) -> None:
        for place in self._places:
            place.error = _copy_of(error)
            place.settled.set()
        self._places.clear()


def _copy_of(error: BaseException) -> LockBackendError:
    """Return an error for one caller, who may add notes and a traceback to it."""
    copy = type(error)(*error.args) if isinstance(error, LockBackendError) else LockBackendError(str(error))
    copy.__cause__ = error.__cause__ or error
    return copy


class Lines:
    """The lines for the locks of one backend, in one event loop."""

    _of_backends: ClassVar[WeakKeyDictionary[Any, WeakKeyDictionary[Any, Lines]]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    @classmethod
    def of(cls, backend: object, loop: object) -> Lines:
        """Return the lines that all primitives on `backend` share, or new ones if it keeps no company."""
        try:
            return cls._of_backends.setdefault(backend, WeakKeyDictionary()).setdefault(loop, cls())
        except TypeError:  # not hashable, or no weak references: each primitive has its own
            return cls()

    def get(self, key: str) -> Line | None:
        """Return the line for a lock, if somebody waits."""
        return self._lines.get(key)

    def open(self, key: str, calls: LockCalls) -> Line:
        """Return the line for a lock."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(calls, key, lambda: self._lines.pop(key, None))
        return line
