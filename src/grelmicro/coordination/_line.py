"""The callers of this process that wait for one lock: in line, with one contender for all of them.

Who comes first, when nobody asks or waits here, asks for itself and needs no line. Who comes while it asks
stands in line behind it. The contender, a task of its own, asks the backend for whoever is first in line.
Between two tries it sleeps until
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
- a hand-over whose outcome is unclear, since it failed or was cancelled: the old token is released besides,
  and the contender asks for the same caller, who gets what it was perhaps granted. If it leaves before that,
  that is released.
- the backend failed: all in line hear of it, as each would have without a line.
A turn that comes when nobody here has a use for it any more is passed on to the next process.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import anyio
from anyio import current_time

from grelmicro._detached import Detached, spawn
from grelmicro.coordination._waiting import jittered
from grelmicro.coordination.errors import LockAcquireError, LockBackendError, LockReleaseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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

    __slots__ = ("asked", "duration", "error", "grant", "interval", "jitter", "settled", "token", "unclear")

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
        self.unclear = False
        """Whether a hand-over to it was made whose outcome is not known."""


class Line:
    """The line for one lock; it exists while somebody is in it."""

    def __init__(
        self, calls: LockCalls, key: str, close: Callable[[], object], *, someone_asks: bool
    ) -> None:
        self._calls = calls
        self._key = key
        self._close = close
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._news = anyio.Event()
        self._not_before = 0.0
        self._someone_asks = someone_asks
        """Whether somebody who came first has no answer yet."""
        self._my_turn = False
        self._hand_overs = 0
        self._others_wait = False
        self._contender: Detached[None] | None = None

    async def wait(self, place: Place, deadline: float | None, *, in_front: bool = False) -> Grant | None:
        """Stand in line. Returns None when the deadline (loop time) came first.

        Raises:
            LockBackendError: the backend failed.
        """
        self._places[place] = None
        if in_front:
            self._places.move_to_end(place, last=False)
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
        place = next(iter(self._places), None)
        for_all = self._others_wait and self._hand_overs >= _MAX_HAND_OVERS
        if place is None or place.asked or for_all or not calls.queueing:
            self._not_before = current_time() + (_COURTESY if for_all else 0)
            self._hand_overs = 0
            return await calls.free(self._key, token, end)
        place.asked = True
        try:
            inheritance = await calls.hand_over(self._key, token, place.token, place.duration, end)
        except BaseException as error:
            place.asked = False
            self._doubt(place)
            if not isinstance(error, LockReleaseError):
                raise
            await calls.free(self._key, token, end)
            return True  # ended by this, else by the hand-over
        place.asked = False
        self._others_wait = inheritance.others_wait
        self._hand_overs += 1
        if inheritance.grant is None:
            self.look_again()
            return False
        if not self._settle(place, inheritance.grant):
            self._bequeath(place)
        return True

    def look_again(self) -> None:
        """Ask soon: the lock may be free."""
        self._not_before = min(self._not_before, current_time() + _COURTESY)
        self._news.set()

    def asked_ahead(self, duration: float, grant: Grant | None, error: LockBackendError | None) -> None:
        """Go on: who came first, and asked for that lease, has its answer."""
        self._someone_asks = False
        if grant is not None:
            self._taken(grant)
        if error is not None:
            self._fail_alike(duration, error)
        self._news.set()

    def _taken(self, grant: Grant) -> None:
        """Note that somebody here holds the lock, and will let go through this line."""
        self._not_before = grant.deadline
        self._my_turn = False

    def _settle(self, place: Place, grant: Grant) -> bool:
        """Give a grant to whom it was made; says whether that is still there."""
        if place not in self._places:
            return False
        del self._places[place]
        place.grant = grant
        place.settled.set()
        self._taken(grant)
        return True

    def _leave(self, place: Place) -> None:
        if self._places:
            self._places.pop(place, None)
            if not self._places:
                self._news.set()
        if place.unclear or place.grant is not None:  # settled in the same turn of the loop in which it left
            self._bequeath(place)

    def _doubt(self, place: Place) -> None:
        """Note that the lock was perhaps handed over to `place`."""
        place.unclear = True
        if place in self._places:
            self.look_again()
        else:
            self._bequeath(place)

    def _bequeath(self, place: Place) -> None:
        """Let go of what was granted to somebody who has left."""
        spawn(self._let_go, place, name="grelmicro-bequeath")

    async def _let_go(self, place: Place) -> None:
        try:
            await self._calls.release(self._key, place.token, within=place.duration)
        except LockBackendError as error:
            logger.warning("A lock granted to a caller that had left was not released: %s", error)
            self._calls.clean_up(self._key, place.token)

    def _on_turn(self) -> None:
        if self._contender is None:  # it was on its way while the last one left
            self._pass_on()
            return
        self._my_turn = True
        self._not_before = 0.0
        self._news.set()

    def _pass_on(self) -> None:
        self._my_turn = False
        spawn(self._calls.pass_on, self._key, name="grelmicro-pass-on")

    async def _contend(self) -> None:
        stop_listening: Callable[[], object] | None = None
        try:
            stop_listening = self._calls.on_turn(self._key, self._on_turn)
            while self._places:
                self._news = anyio.Event()
                pause = math.inf if self._someone_asks else self._not_before - current_time()
                if pause <= 0:
                    place = next(iter(self._places))
                    # A holder that hands over to it may be asking already.
                    pause = _COURTESY if place.asked else await self._ask(place)
                if pause > 0 and self._places:
                    with anyio.CancelScope(deadline=current_time() + pause):
                        await self._news.wait()
        except BaseException as error:
            self._fail(error, list(self._places))
            raise
        finally:
            self._contender = None
            self._close()
            if stop_listening is not None:
                stop_listening()
            if self._my_turn:
                self._pass_on()

    async def _ask(self, place: Place) -> float:
        """Ask for the first in line. Returns the seconds until it is worth asking again."""
        calls = self._calls
        self._my_turn = False
        place.asked = True
        try:
            answer = await calls.acquire_or_enqueue(self._key, place.token, place.duration)
        except LockBackendError as error:
            place.asked = False
            self._fail_alike(place.duration, error)
            return 0.0
        finally:
            place.asked = False
        if answer.grant is not None:
            self._hand_overs = 0
            if not self._settle(place, answer.grant):
                self._bequeath(place)
            return 0.0
        longest = max(answer.remaining, 0.0) + _ROUNDING
        if calls.wakes:
            return min(longest, jittered(_SAFETY_POLL, _SAFETY_JITTER))
        return min(longest, jittered(place.interval, place.jitter))

    def _fail_alike(self, duration: float, error: BaseException) -> None:
        """Fail all for whom it would not have gone better than for that lease, which bounds a call too."""
        longest = duration if duration < self._calls.call_timeout else math.inf
        self._fail(error, [one for one in self._places if not one.asked and one.duration <= longest])

    def _fail(self, error: BaseException, places: list[Place]) -> None:
        for place in places:
            del self._places[place]
            place.error = _copy_of(error)
            place.settled.set()
            if place.unclear:
                self._bequeath(place)


def _copy_of(error: BaseException) -> LockBackendError:
    """Return an error for one caller, who may add notes and a traceback to it."""
    copy = type(error)(*error.args) if isinstance(error, LockBackendError) else LockAcquireError(str(error))
    copy.__cause__ = error.__cause__ or error
    return copy


class Lines:
    """The lines for the locks of one backend, in one event loop."""

    _of_backends: ClassVar[WeakKeyDictionary[Any, WeakKeyDictionary[Any, Lines]]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._asking: set[str] = set()
        """The locks that somebody asks for who came first."""

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

    def nobody(self, key: str) -> bool:
        """Say whether nobody here asks or waits for a lock."""
        return key not in self._lines and key not in self._asking

    async def ask_first(self, key: str, duration: float, asking: Awaitable[Grant | None]) -> Grant | None:
        """Ask for a lock that nobody here asks or waits for; who comes meanwhile stands in line."""
        grant = failure = None
        self._asking.add(key)
        try:
            grant = await asking
        except LockBackendError as error:
            failure = error
            raise
        finally:
            self._asking.discard(key)
            if (line := self._lines.get(key)) is not None:
                line.asked_ahead(duration, grant, failure)
        return grant

    def open(self, key: str, calls: LockCalls) -> Line:
        """Return the line for a lock."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(
                calls, key, lambda: self._lines.pop(key, None), someone_asks=key in self._asking
            )
        return line
