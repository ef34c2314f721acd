"""Leader election: at most one worker leads, and its work ends before another's begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import anyio
from pydantic import StrictStr, TypeAdapter, ValidationError, model_validator
from typing_extensions import override

from grelmicro.coordination._election_guard import LeaderGuard
from grelmicro.coordination._election_loop import Campaign
from grelmicro.coordination._identity import Identity, random_uuid1
from grelmicro.coordination._primitive import BaseLockConfig, LockPrimitive
from grelmicro.coordination.abc import LeaderElectionBackend
from grelmicro.coordination.errors import WouldBlockError
from grelmicro.errors import SettingsValidationError
from grelmicro.types import Jitter, Seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from uuid import UUID

    from anyio.abc import TaskStatus

    from grelmicro.coordination._election_term import Term
    from grelmicro.coordination.abc import LeaderRecord
    from grelmicro.coordination.errors import LeaderElectionBackendError

__all__ = ["LeaderElection", "LeaderElectionConfig"]

T = TypeVar("T")

_METADATA = TypeAdapter(dict[StrictStr, StrictStr])


class LeaderElectionConfig(BaseLockConfig):
    """Settings of a `LeaderElection`: retry_interval < renew_deadline < lease_duration."""

    lease_duration: Seconds = 15
    """Seconds after the last renewal until another worker may lead."""
    renew_deadline: Seconds = 10
    """Seconds from the start of the last confirmed renewal until this worker stops leading. What is left
    until `lease_duration` is the time in which its work can clean up before another worker leads."""
    retry_interval: Seconds = 2
    """Seconds between requests, for the leader and for those who want to be."""
    backend_timeout: Seconds = 5
    """Seconds that one request may take, cut to the time that is left to lead."""
    error_interval: Seconds = 30
    """Seconds between log messages while requests fail."""
    retry_jitter: Jitter = 0.1
    """Spread of the pauses between requests, in [0, 1)."""

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.renew_deadline >= self.lease_duration:
            msg = "renew_deadline must be shorter than lease_duration"
            raise ValueError(msg)
        if self.retry_interval >= self.renew_deadline:
            msg = "retry_interval must be shorter than renew_deadline"
            raise ValueError(msg)
        return self


class LeaderElection(LockPrimitive[LeaderElectionConfig, LeaderElectionBackend]):
    """A worker's candidacy for leading.

    It does something while it runs as a task: hand it to `Tasks`, or to a task group
    (`await tg.start(election)`). It then campaigns, renews, and logs what fails, until it is cancelled; a
    cancelled one ends its work, then hands over. Use `lead` for work that must run on one worker only.

    While clocks run, the event loop turns and the work yields when it is cancelled, no two workers' work runs
    at the same time. Blocking code belongs in a thread. Where that is not enough, let the written-to resource
    decide by a `Lock`'s fencing token.
    """

    _config_class: ClassVar[type[LeaderElectionConfig]] = LeaderElectionConfig
    _env_kind: ClassVar[str] = "LEADERELECTION"
    _component_attribute: ClassVar[str] = "election_backend"
    _backend_methods: ClassVar[tuple[str, ...]] = ("acquire_or_renew", "release", "get")

    def __init__(
        self,
        name: str,
        *,
        backend: LeaderElectionBackend | str | None = None,
        worker: str | UUID | None = None,
        lease_duration: Seconds | None = None,
        renew_deadline: Seconds | None = None,
        retry_interval: Seconds | None = None,
        retry_jitter: float | None = None,
        backend_timeout: Seconds | None = None,
        error_interval: Seconds | None = None,
        env_prefix: str | None = None,
        env_load: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Make a candidate; neither the event loop nor the backend is touched.

        A setting that is left out comes from the environment (`GREL_LEADERELECTION_REPORTS_LEASE_DURATION`
        for the election `reports`, `GREL_LEADERELECTION_LEASE_DURATION` for the one named `default`), else
        from `LeaderElectionConfig`. `backend` is an instance, or the name of a `Coordination` component of
        the active app. `metadata` is kept with the lease while this worker leads, for others to read.

        Raises:
            SettingsValidationError: the name, a setting or the metadata breaks a rule (also a ValueError).
        """
        super().__init__(
            name,
            backend=backend,
            env_prefix=env_prefix,
            env_load=env_load,
            worker=worker,
            lease_duration=lease_duration,
            renew_deadline=renew_deadline,
            retry_interval=retry_interval,
            retry_jitter=retry_jitter,
            backend_timeout=backend_timeout,
            error_interval=error_interval,
        )
        self._metadata.update(_check_metadata(metadata))

    @override
    def _bind(
        self, name: str, config: LeaderElectionConfig, backend: LeaderElectionBackend | str | None
    ) -> None:
        super()._bind(name, config, backend)
        self._metadata: dict[str, str] = {}
        self._campaign = Campaign(
            name,
            config=lambda: self.config,
            backend=lambda: self.backend,
            new_token=Identity(config.worker, random_uuid1).new_token,
            metadata=self._metadata,
        )
        self._block = LeaderGuard(name, self._campaign.elected)

    @override
    @classmethod
    def from_config(
        cls,
        name: str,
        config: LeaderElectionConfig,
        *,
        backend: LeaderElectionBackend | str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        self = super().from_config(name, config, backend=backend)
        self._metadata.update(_check_metadata(metadata))
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} running={self.is_running()} leader={self.is_leader()}>"

    async def __call__(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Campaign and lead until cancelled; then end the work, release the lease, and return.

        A backend that fails does not end it. Cancelled, it takes until the work has ended and the release was
        answered, at most as long as the lease lasts (without one, `backend_timeout` at most).

        Raises:
            CoordinationError: it runs already.
            OutOfContextError: no backend was given and no active app has a fitting component.
        """
        await self._campaign.run(task_status)

    @property
    def record(self) -> LeaderRecord | None:
        """Who leads and since when, by the backend's last answer; None before the first one."""
        return self._campaign.record

    @property
    def last_error(self) -> LeaderElectionBackendError | None:
        """What went wrong with the latest request, cause attached; None when it was answered."""
        return self._campaign.last_error

    def is_running(self) -> bool:
        """Say whether the candidate's task runs."""
        return self._campaign.running

    def is_leader(self) -> bool:
        """Say whether this worker leads, without asking the backend; works in any thread.

        False no later than `renew_deadline` after the start of the last confirmed renewal, whatever the
        network and the event loop do, and before another worker's lease can begin.
        """
        return self._campaign.term is not None

    def last_confirmation_age(self) -> float | None:
        """Return the seconds since the last confirmed renewal was requested, or None while not leading."""
        term = self._campaign.term
        return None if term is None else term.age

    def is_leader_confirmed_within(self, max_age: float) -> bool:
        """Say whether this worker leads and the backend confirmed it within the last `max_age` seconds."""
        age = self.last_confirmation_age()
        return age is not None and age <= max_age

    async def wait_for_leader(self) -> None:
        """Wait until this worker leads."""
        await self._campaign.elected()

    async def wait_lose_leader(self) -> None:
        """Wait until this worker leads no longer; at once if it does not."""
        term = self._campaign.term
        if term is not None:
            await term.over()

    async def lead(
        self, func: Callable[..., Awaitable[T]], /, *args: object, repeat: bool = False
    ) -> T | None:
        """Wait until this worker leads, then run `func(*args)` while it does.

        Returns what `func` returned while this worker still led. When leadership is lost first, `func` is
        cancelled, which takes effect at its next await; then None is returned, or with `repeat=True` the next
        leadership awaited and `func` run again. The candidate must be running as a task. A new leadership
        begins, and a lease is handed over, only after `func` has ended, clean-up included. Clean-up that
        awaits needs a shield: `with anyio.CancelScope(shield=True):`.

        Raises:
            TypeError: `func` cannot be called.
            Exception: whatever `func` raises, as it is.
        """
        if not callable(func):
            msg = f"lead() needs a coroutine function, not {type(func).__name__}"
            raise TypeError(msg)
        while True:
            term = await self._campaign.elected()
            with term.body():
                result = await func(*args)
                if term.alive:
                    return result
            if not repeat:
                return None

    def guard(self) -> LeaderGuard:
        """Return an async context manager that raises instead of waiting when this worker does not lead.

        Its block is cancelled, and `LockNotOwnedError` raised, when leadership is lost inside.

        Raises:
            WouldBlockError: on entering, this worker does not lead.
        """
        return LeaderGuard(self._name, self._term_nowait)

    async def __aenter__(self) -> Self:
        """Wait until this worker leads; the block is work that runs only while it does."""
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> bool | None:
        """End the work. Leadership itself goes on.

        Raises:
            LockNotOwnedError: leadership was lost and the block cancelled.
        """
        return await self._block.__aexit__(exc_type, exc, tb)

    async def _term_nowait(self) -> Term:
        term = self._campaign.term
        if term is None:
            msg = f"election {self._name!r}: this worker does not lead"
            raise WouldBlockError(msg)
        return term


def _check_metadata(metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    try:
        return _METADATA.validate_python(metadata)
    except ValidationError:
        msg = "metadata: must map strings to strings"
        raise SettingsValidationError(msg) from None
