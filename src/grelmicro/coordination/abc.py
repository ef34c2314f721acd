"""The protocols that vendors implement, and the values that cross them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "LeaderElectionBackend",
    "LeaderRecord",
    "LockBackend",
    "QueueingLockBackend",
    "Refusal",
    "ScheduleBackend",
    "Succession",
    "WakingElectionBackend",
]


@runtime_checkable
class LockBackend(Protocol):
    """What a vendor implements to hold locks: four atomic operations, nothing else.

    At any instant at most one token is live per name, judged by the backend's own clock. Taking a lock and
    giving it an expiry are one step. An operation whose outcome is unclear raises: it never returns a grant,
    and never a refusal.

    A backend may be an async context manager, and may set `_loop` to the running event loop on entry so that
    `from_thread` finds its way back; otherwise the loop of the first call is used. A backend whose calls run
    on when their caller is cancelled, and which keeps the calls of one name and token in order, says so with
    `survives_cancellation = True`; the calls of any other are run in tasks of their own.
    """

    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        """Grant `name` to `token` for `duration` seconds from now, or renew its grant.

        Returns the fencing token, or None while another token is live. The fencing token grows strictly per
        name each time the lock goes from free (or expired) to held. A token that is live gets its remaining
        time set to `duration` and the same fencing token as before, so a repeated request is harmless.
        """
        ...

    async def release(self, *, name: str, token: str) -> bool:
        """Free `name` if `token` is live, and say whether it was."""
        ...

    async def locked(self, *, name: str) -> bool:
        """Say whether any token is live."""
        ...

    async def owned(self, *, name: str, token: str) -> bool:
        """Say whether `token` is live."""
        ...


class Refusal(NamedTuple):
    """Why a lock was not granted, as far as a waiter needs to know."""

    remaining: float
    """Seconds until the holder's lease ends, by the backend's clock."""


class Succession(NamedTuple):
    """What became of a lock that its holder handed over."""

    fencing_token: int | None
    """The successor's, or None when the holder's lease had ended and nothing was granted."""
    others_wait: bool
    """Whether somebody waits in another process."""


@runtime_checkable
class QueueingLockBackend(LockBackend, Protocol):
    """What a `LockBackend` may offer besides, so that waiting costs nothing and ends at once.

    The backend keeps, per name, a queue of the processes that wait. A release wakes the first of them, and
    only that one. The queue is advice: it keeps nobody from taking a free lock, an entry that nobody renews
    vanishes by itself, and a wake-up may get lost, which waiters cover by asking again now and then.
    """

    @property
    def wakes(self) -> bool:
        """Whether wake-ups reach this process now. While they do not, waiters poll."""
        ...

    async def acquire_or_enqueue(self, *, name: str, token: str, duration: float) -> int | Refusal:
        """Grant like `acquire`; when refused, also enqueue this process, or renew its entry in its place."""
        ...

    async def hand_over(self, *, name: str, token: str, to: str, duration: float) -> Succession:
        """End the lease of `token` and grant `name` to `to`, with a fencing token of its own, in one step.

        Nothing changes when `token` is not live, unless `to` is: it gets the answer that it got before.
        """
        ...

    async def pass_on(self, *, name: str) -> None:
        """Wake the next process in the queue, this one having no use for its turn."""
        ...

    def on_turn(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` whenever it is this process's turn for `name`; returns what ends that."""
        ...


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads an election and since when, in the shape of the Kubernetes `LeaderElectionRecord`.

    `transitions` counts changes of holder; it is information, not a fencing token, and may restart when the
    backend loses its data.
    """

    holder: str
    """Token of the worker that holds the lease."""
    lease_duration: float
    """Seconds from `renewed_at` until the lease ends."""
    acquired_at: datetime
    """When this holder took the lease (aware, UTC)."""
    renewed_at: datetime
    """When this holder last renewed the lease (aware, UTC)."""
    transitions: int
    """How often the lease has changed hands."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the holder says about itself."""


@runtime_checkable
class LeaderElectionBackend(Protocol):
    """What a vendor implements to hold elections: one renewable lease per name, with a record.

    Liveness, atomicity and unclear outcomes follow the rules of `LockBackend`.
    """

    async def acquire_or_renew(
        self, *, name: str, token: str, duration: float, metadata: Mapping[str, str] | None = None
    ) -> LeaderRecord:
        """Take a free or expired lease, or renew one that `token` holds, for `duration` seconds from now.

        Returns the record as it then stands: the caller leads exactly when `record.holder == token`. A take,
        also by the holder of an expired lease, counts in `transitions` and sets `acquired_at`; a renewal
        moves `renewed_at` and replaces the metadata.
        """
        ...

    async def release(self, *, name: str, token: str) -> bool:
        """End the lease if `token` holds it, and say whether it did."""
        ...

    async def get(self, *, name: str) -> LeaderRecord | None:
        """Return the live record, or None when nobody leads."""
        ...


@runtime_checkable
class WakingElectionBackend(LeaderElectionBackend, Protocol):
    """What a `LeaderElectionBackend` may offer besides: word that a leader has let go."""

    @property
    def wakes(self) -> bool:
        """Whether such word reaches this process now. While it does not, candidates poll."""
        ...

    def on_vacancy(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` whenever a leader of `name` has released its lease; returns what ends that."""
        ...


@runtime_checkable
class ScheduleBackend(Protocol):
    """What a vendor implements to let one of many replicas run a scheduled fire."""

    async def claim(self, name: str, due: float) -> bool:
        """Store `due` (UTC epoch seconds) as the last fire of `name`, unless that much or more is stored.

        Atomic: of any number of concurrent claims for one `due`, exactly one returns True.
        """
        ...

    async def last_fired(self, name: str) -> float | None:
        """Return the last fire claimed for `name` (UTC epoch seconds), or None."""
        ...
