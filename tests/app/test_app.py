"""The app: what it registers, in which order it opens and closes, what it finds."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Self

import anyio
import pytest

from grelmicro import (
    ComponentAlreadyRegisteredError,
    ComponentNotRegisteredError,
    Grelmicro,
    NoActiveAppError,
    OutOfContextError,
    SettingsValidationError,
)
from grelmicro.coordination import Coordination, CoordinationBackendError, Lock, LockReentrantError
from grelmicro.coordination._adapter import ProviderAdapter
from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter,
    MemoryLockAdapter,
    MemoryScheduleAdapter,
)
from grelmicro.providers._base import Provider
from grelmicro.providers.memory import MemoryProvider


class RecordingLockAdapter(ProviderAdapter["RecordingProvider"]):
    """A lock adapter over a recording provider."""

    component_keyword = "lock"

    def __init__(self, provider: RecordingProvider) -> None:
        super().__init__(provider)
        locks = MemoryLockAdapter()
        self.acquire, self.release = locks.acquire, locks.release
        self.locked, self.owned = locks.locked, locks.owned


pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


class Recorder:
    """A component that notes when it opens and closes."""

    kind = "recorder"

    def __init__(self, log: list[str], name: str = "default", *, fails: bool = False, providers=()) -> None:
        self.name = name
        self.providers = providers
        self._log = log
        self._fails = fails

    async def __aenter__(self) -> Self:
        if self._fails:
            raise ValueError(self.name)
        self._log.append(f"open {self.name}")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._log.append(f"close {self.name}")


class RecordingProvider(Provider):
    """A provider that notes when it opens and closes."""

    vendor = "recording"
    client = None

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log
        self._memory = MemoryProvider()

    def lock(self) -> RecordingLockAdapter:
        return RecordingLockAdapter(self)

    def leaderelection(self) -> MemoryLeaderElectionAdapter:
        return MemoryLeaderElectionAdapter()

    def schedule(self) -> MemoryScheduleAdapter:
        return MemoryScheduleAdapter()

    async def check(self) -> None:
        self._require_open()

    async def _open(self, stack) -> None:
        self._log.append("open provider")
        stack.callback(self._log.append, "close provider")


async def test_opens_in_order_and_closes_in_reverse() -> None:
    log: list[str] = []
    async with Grelmicro(uses=[Recorder(log, "a"), Recorder(log, "b")]):
        assert log == ["open a", "open b"]
    assert log == ["open a", "open b", "close b", "close a"]


async def test_a_failure_while_opening_closes_what_was_open_in_reverse() -> None:
    log: list[str] = []
    micro = Grelmicro(uses=[Recorder(log, "a"), Recorder(log, "b"), Recorder(log, "c", fails=True)])
    with pytest.raises(ValueError, match="c"):
        await micro.__aenter__()
    assert log == ["open a", "open b", "close b", "close a"]
    with pytest.raises(NoActiveAppError):
        Grelmicro.current()


async def test_a_failed_opening_can_be_tried_again() -> None:
    log: list[str] = []
    bad = Recorder(log, "a", fails=True)
    micro = Grelmicro(uses=[bad])
    with pytest.raises(ValueError, match="a"):
        await micro.__aenter__()
    bad._fails = False
    async with micro:
        assert log == ["open a"]


async def test_a_shared_provider_opens_once_before_its_users_and_closes_last() -> None:
    log: list[str] = []
    provider = RecordingProvider(log)
    first = Recorder(log, "first", providers=(provider,))
    micro = Grelmicro(uses=[first, Coordination(lock=provider), Coordination(lock=provider, name="other")])
    assert micro.providers == (provider,)
    async with micro:
        assert log == ["open provider", "open first"]
    assert log == ["open provider", "open first", "close first", "close provider"]


async def test_current_is_the_open_app_and_nests() -> None:
    outer, inner = Grelmicro(), Grelmicro()
    with pytest.raises(NoActiveAppError):
        Grelmicro.current()
    async with outer:
        assert Grelmicro.current() is outer
        async with inner:
            assert Grelmicro.current() is inner
        assert Grelmicro.current() is outer
    with pytest.raises(NoActiveAppError):
        Grelmicro.current()


async def test_child_tasks_see_the_app() -> None:
    seen: list[Grelmicro] = []

    async def child() -> None:
        seen.append(Grelmicro.current())

    async with Grelmicro() as micro, anyio.create_task_group() as tg:
        tg.start_soon(child)
    assert seen == [micro]


async def test_opening_twice_and_using_while_open_are_refused() -> None:
    micro = Grelmicro()
    async with micro:
        with pytest.raises(OutOfContextError, match="open already"):
            await micro.__aenter__()
        with pytest.raises(OutOfContextError, match="before"):
            micro.use(MemoryProvider())
    with pytest.raises(OutOfContextError, match="not open"):
        await micro.__aexit__(None, None, None)
    async with micro:
        pass


async def test_a_provider_alone_stands_for_a_default_component() -> None:
    async with Grelmicro(uses=[MemoryProvider]) as micro, micro.coordination.lock("cart") as handle:
        assert handle.name == "cart"
        assert await Lock("cart").locked()


async def test_an_explicit_component_takes_the_place_of_an_implied_one() -> None:
    first, second = MemoryProvider(), MemoryProvider()
    explicit = Coordination(second)
    micro = Grelmicro(uses=[first, second, explicit])
    assert micro.components == (explicit,)
    assert micro.coordination is explicit
    assert micro.providers == (first, second)


async def test_two_providers_alone_are_ambiguous() -> None:
    micro = Grelmicro(uses=[MemoryProvider(), MemoryProvider()])
    with pytest.raises(ComponentAlreadyRegisteredError, match="Coordination"):
        await micro.__aenter__()


async def test_components_of_one_kind_are_told_apart_by_name() -> None:
    default, analytics = Coordination(MemoryProvider), Coordination(MemoryProvider, name="analytics")
    micro = Grelmicro(uses=[default, analytics])
    assert micro.get("coordination", "analytics") is analytics
    assert micro.coordination is default
    async with micro:
        async with Lock("cart", backend="analytics"):
            assert await analytics.lock("cart").locked()
            assert not await default.lock("cart").locked()
        with pytest.raises(OutOfContextError, match="reports"):
            await Lock("cart", backend="reports").acquire()


async def test_the_same_kind_and_name_twice_is_refused() -> None:
    micro = Grelmicro(uses=[Coordination(MemoryProvider)])
    with pytest.raises(ComponentAlreadyRegisteredError, match="name="):
        micro.use(Coordination(MemoryProvider))


async def test_adapters_alone_become_one_component() -> None:
    lock, election, schedule = MemoryLockAdapter(), MemoryLeaderElectionAdapter(), MemoryScheduleAdapter()
    async with Grelmicro(uses=[lock, election, schedule]) as micro:
        assert micro.coordination.lock_backend is lock
        assert micro.coordination.election_backend is election
        assert micro.coordination.schedule_backend is schedule
    with pytest.raises(ComponentAlreadyRegisteredError, match="lock backend"):
        Grelmicro(uses=[lock, MemoryLockAdapter()])


async def test_what_is_missing_is_named_with_what_there_is() -> None:
    micro = Grelmicro(uses=[Coordination(MemoryProvider)])
    with pytest.raises(ComponentNotRegisteredError, match="coordination \\(default\\)"):
        micro.get("cache")
    assert not hasattr(micro, "cache")
    assert not hasattr(micro, "_private")


@pytest.mark.parametrize("item", [object(), 3, "redis://localhost", Lock])
async def test_what_an_app_cannot_use_is_refused_at_once(item: object) -> None:
    with pytest.raises(SettingsValidationError) as caught:
        Grelmicro(uses=[item])
    assert "localhost" not in str(caught.value)


async def test_override_replaces_for_the_block_and_is_closed_with_it() -> None:
    log: list[str] = []
    provider = RecordingProvider(log)
    original = Coordination(MemoryProvider)
    lock = Lock("cart")
    async with Grelmicro(uses=[original]) as micro:
        async with micro.override(Coordination(provider)) as same:
            assert same is micro
            assert log == ["open provider"]
            assert micro.coordination is not original
            async with lock:
                assert not await original.lock("cart").locked()
                assert await micro.coordination.lock("cart").locked()
        assert log == ["open provider", "close provider"]
        assert micro.coordination is original


async def test_override_is_seen_by_running_tasks() -> None:
    seen: list[object] = []
    replaced, looked = anyio.Event(), anyio.Event()

    async def runner(micro: Grelmicro) -> None:
        await replaced.wait()
        seen.append(micro.coordination)
        looked.set()

    replacement = Coordination(MemoryProvider)
    async with Grelmicro(uses=[MemoryProvider]) as micro, anyio.create_task_group() as tg:
        tg.start_soon(runner, micro)
        async with micro.override(replacement):
            replaced.set()
            await looked.wait()
    assert seen == [replacement]


async def test_override_around_the_app_keeps_what_it_replaces_closed() -> None:
    log: list[str] = []
    micro = Grelmicro(uses=[Coordination(RecordingProvider(log))])
    async with micro.override(Coordination(MemoryProvider)), micro:
        async with Lock("cart"):
            pass
        assert log == []


async def test_a_lock_keeps_its_backend_through_an_override() -> None:
    lock = Lock("cart")
    async with Grelmicro(uses=[Coordination(MemoryProvider)]) as micro:
        await lock.acquire()
        async with micro.override(Coordination(MemoryProvider)):
            await lock.release()
        assert not await lock.locked()


async def test_a_lock_outside_an_app_says_what_to_do() -> None:
    with pytest.raises(OutOfContextError, match="backend="):
        await Lock("cart").acquire()


async def test_component_locks_of_one_name_are_one_lock() -> None:
    async with Grelmicro(uses=[MemoryProvider]) as micro:
        async with micro.coordination.lock("cart"):
            with pytest.raises(LockReentrantError):
                await micro.coordination.lock("cart", lease_duration=5).acquire()
            other = micro.coordination.lock("cart", worker="other")
            with pytest.raises(TimeoutError):
                await other.acquire(timeout=0)
        await micro.coordination.lock("cart").acquire()
        gc.collect()
        await micro.coordination.lock("cart").release()
        assert not await other.locked()


async def test_a_component_without_a_backend_says_so() -> None:
    component = Coordination(lock=MemoryProvider)
    assert component.lock("cart").name == "cart"
    with pytest.raises(CoordinationBackendError, match="election="):
        component.leaderelection("worker")
    with pytest.raises(CoordinationBackendError, match="schedule="):
        component.schedule_backend  # noqa: B018
    with pytest.raises(CoordinationBackendError, match="lock="):
        Coordination().tasklock("cart")


async def test_vendors_can_be_mixed_in_one_component() -> None:
    provider, lock = MemoryProvider(), MemoryLockAdapter()
    component = Coordination(provider, lock=lock)
    assert component.lock_backend is lock
    assert component.election_backend.provider is provider  # type: ignore[attr-defined]
    assert set(component.providers) == {provider, lock.provider}


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": MemoryLockAdapter()},
        {"lock": MemoryScheduleAdapter()},
        {"schedule": object()},
        {"lock": "redis://user:secret@host"},
        {"name": ""},
    ],
)
async def test_a_wrong_argument_is_refused_at_construction(arguments: dict[str, object]) -> None:
    with pytest.raises(SettingsValidationError) as caught:
        Coordination(**arguments)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_importing_loads_no_vendor(anyio_backend: str) -> None:
    code = (
        "import sys, grelmicro, grelmicro.coordination, grelmicro.coordination.memory\n"
        "bad = {'redis', 'asyncpg', 'kubernetes_asyncio', 'cronsim', 'croniter', 'typer', 'trio', 'pytest'}\n"
        "sys.exit(', '.join(sorted(bad & set(sys.modules))) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_app_imports_no_component(anyio_backend: str) -> None:
    code = (
        "import sys, grelmicro\n"
        "kinds = ('grelmicro.coordination', 'grelmicro.task', 'grelmicro.providers')\n"
        "sys.exit(', '.join(m for m in sys.modules if m.startswith(kinds)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
