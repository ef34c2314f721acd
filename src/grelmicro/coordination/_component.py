"""The component that gives an app its locks, elections and schedules."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast
from weakref import WeakValueDictionary

from grelmicro._registry import instantiated
from grelmicro.coordination._holders import Holders
from grelmicro.coordination._names import check_name
from grelmicro.coordination.abc import LeaderElectionBackend, LockBackend, ScheduleBackend
from grelmicro.coordination.errors import CoordinationBackendError
from grelmicro.coordination.leaderelection import LeaderElection
from grelmicro.coordination.lock import Lock
from grelmicro.coordination.tasklock import TaskLock
from grelmicro.errors import ComponentAlreadyRegisteredError, SettingsValidationError
from grelmicro.providers._base import Provider

if TYPE_CHECKING:
    from types import TracebackType

BackendT = TypeVar("BackendT")


class _Slot(NamedTuple):
    """One of the three backends: its keyword, its protocol, and the method of a provider that makes it."""

    keyword: str
    protocol: type[Any]
    method: str

    def make(self, provider: Provider) -> Any:
        return getattr(provider, self.method)()


_LOCK = _Slot("lock", LockBackend, "lock")
_ELECTION = _Slot("election", LeaderElectionBackend, "leaderelection")
_SCHEDULE = _Slot("schedule", ScheduleBackend, "schedule")
_SLOTS = (_LOCK, _ELECTION, _SCHEDULE)


class Coordination:
    """Locks, elections and schedules over one provider, or each over its own backend.

    `source` serves all three; `lock`, `election` and `schedule` each replace one. All take a provider or a
    class of one, the keywords also a backend or a class of one. Backends that are async context managers, and
    their providers, are opened and closed with the component.
    """

    kind: str = "coordination"

    def __init__(
        self,
        source: Provider | type[Provider] | None = None,
        *,
        lock: Provider | LockBackend | type[Provider | LockBackend] | None = None,
        election: Provider | LeaderElectionBackend | type[Provider | LeaderElectionBackend] | None = None,
        schedule: Provider | ScheduleBackend | type[Provider | ScheduleBackend] | None = None,
        name: str = "default",
    ) -> None:
        """Make the component; nothing is opened.

        Raises:
            SettingsValidationError: an argument is neither a provider nor a backend of its kind.
        """
        self._name = check_name(name)
        provider = instantiated(source)
        if provider is not None and not isinstance(provider, Provider):
            msg = (
                f"source: expected a provider, not a {type(provider).__name__}; "
                "pass a backend as lock=, election= or schedule="
            )
            raise SettingsValidationError(msg)
        given = {"lock": lock, "election": election, "schedule": schedule}
        self._backends: dict[str, Any] = {
            slot.keyword: _resolve(slot, given[slot.keyword], provider) for slot in _SLOTS
        }
        self._stack = AsyncExitStack()
        # Locks of one name share who holds them, so that a helper which makes the lock anew cannot wait for
        # the task that it runs in.
        self._holders: WeakValueDictionary[str, Holders] = WeakValueDictionary()

    @property
    def name(self) -> str:
        """The name among the coordination components of an app."""
        return self._name

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The providers that its backends speak through, each once."""
        found = [getattr(backend, "provider", None) for backend in self._distinct()]
        return tuple({id(one): one for one in found if isinstance(one, Provider)}.values())

    @property
    def lock_backend(self) -> LockBackend:
        """The backend of its locks.

        Raises:
            CoordinationBackendError: it has none.
        """
        return cast("LockBackend", self._require(_LOCK))

    @property
    def election_backend(self) -> LeaderElectionBackend:
        """The backend of its elections.

        Raises:
            CoordinationBackendError: it has none.
        """
        return cast("LeaderElectionBackend", self._require(_ELECTION))

    @property
    def schedule_backend(self) -> ScheduleBackend:
        """The backend of its schedules.

        Raises:
            CoordinationBackendError: it has none.
        """
        return cast("ScheduleBackend", self._require(_SCHEDULE))

    def lock(self, name: str, **kwargs: Any) -> Lock:
        """Make a `Lock` on this component's lock backend; keywords as for `Lock`.

        Locks of one name that leave `worker` to the component are one lock: a task that holds it through one
        object holds it through all.

        Raises:
            CoordinationBackendError: the component has no lock backend.
            SettingsValidationError: the name or a setting breaks a rule.
        """
        lock = Lock(name, backend=self.lock_backend, **kwargs)
        if lock.config.worker is None:
            lock.share_holders(self._holders)
        return lock

    def tasklock(self, name: str, **kwargs: Any) -> TaskLock:
        """Make a `TaskLock` on this component's lock backend; keywords as for `TaskLock`.

        Raises:
            CoordinationBackendError: the component has no lock backend.
            SettingsValidationError: the name or a setting breaks a rule.
        """
        return TaskLock(name, backend=self.lock_backend, **kwargs)

    def leaderelection(self, name: str, **kwargs: Any) -> LeaderElection:
        """Make a `LeaderElection` on this component's election backend; keywords as for `LeaderElection`.

        Raises:
            CoordinationBackendError: the component has no election backend.
            SettingsValidationError: the name or a setting breaks a rule.
        """
        return LeaderElection(name, backend=self.election_backend, **kwargs)

    def merged(self, other: Coordination) -> Coordination:
        """Return one component with the backends of both.

        Raises:
            ComponentAlreadyRegisteredError: both have a backend of the same kind.
        """
        backends: dict[str, Any] = {}
        for slot in _SLOTS:
            mine, theirs = self._backends[slot.keyword], other._backends[slot.keyword]
            if mine is not None and theirs is not None and mine is not theirs:
                msg = f"two adapters could be the {slot.keyword} backend; register Coordination(...) with one"
                raise ComponentAlreadyRegisteredError(msg)
            backends[slot.keyword] = theirs if mine is None else mine
        return Coordination(name=self._name, **backends)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for backend in self._distinct():
                if hasattr(backend, "__aenter__"):
                    await stack.enter_async_context(backend)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, tb)

    def _distinct(self) -> list[Any]:
        return list({id(one): one for one in self._backends.values() if one is not None}.values())

    def _require(self, slot: _Slot) -> Any:
        backend = self._backends[slot.keyword]
        if backend is None:
            msg = (
                f"coordination component {self._name!r} has no {slot.keyword} backend; "
                f"pass a provider, or {slot.keyword}="
            )
            raise CoordinationBackendError(msg)
        return backend


def _resolve(slot: _Slot, given: Any, source: Provider | None) -> Any:
    given = instantiated(given)
    if given is None:
        return None if source is None else slot.make(source)
    if isinstance(given, Provider):
        return slot.make(given)
    if isinstance(given, slot.protocol):
        return given
    msg = f"{slot.keyword}: a {type(given).__name__} is neither a provider nor a {slot.protocol.__name__}"
    raise SettingsValidationError(msg)
