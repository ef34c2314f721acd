"""Where settings come from, what is refused, and how they change while running."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import anyio
import pytest
from anyio.lowlevel import checkpoint
from pydantic import ValidationError

from grelmicro import SettingsValidationError
from grelmicro.config import Reconfigurable, mask_url
from grelmicro.coordination import Lock, LockConfig, WouldBlockError
from grelmicro.coordination._identity import Identity, random_hex, random_uuid1
from grelmicro.coordination._names import lock_key, tasklock_key
from grelmicro.coordination.memory import MemoryLockAdapter, MemoryScheduleAdapter

SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("GREL_")]:
        monkeypatch.delenv(variable)


def test_defaults() -> None:
    config = Lock("cart").config
    assert (config.lease_duration, config.retry_interval, config.retry_jitter) == (60, 0.1, 0.1)
    assert config.worker is None


def test_keywords_win_over_the_environment_and_that_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", "30")
    monkeypatch.setenv("GREL_LOCK_CART_RETRY_INTERVAL", "2")
    config = Lock("cart", retry_interval=3).config
    assert (config.lease_duration, config.retry_interval, config.retry_jitter) == (30, 3, 0.1)
    assert config.model_fields_set == {"lease_duration", "retry_interval"}


def test_bare_variables_are_for_the_default_instance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert Lock("default").config.lease_duration == 30
    assert Lock("cart").config.lease_duration == 60


def test_a_name_becomes_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_ORDER_42_EU_LEASE_DURATION", "30")
    assert Lock("order:42-eu").config.lease_duration == 30


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", "")
    assert Lock("cart").config.lease_duration == 60


def test_the_prefix_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYAPP_LEASE_DURATION", "30")
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", "40")
    assert Lock("cart", env_prefix="MYAPP_").config.lease_duration == 30


@pytest.mark.parametrize("off", ["0", "false", "No", "OFF"])
def test_the_environment_can_be_left_unread(monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", "30")
    assert Lock("cart", env_load=False).config.lease_duration == 60
    monkeypatch.setenv("GREL_ENV_LOAD", off)
    assert Lock("cart").config.lease_duration == 60
    assert Lock("cart", env_load=True).config.lease_duration == 30
    monkeypatch.setenv("GREL_ENV_LOAD", "1")
    assert Lock("cart").config.lease_duration == 30


def test_from_config_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", "30")
    config = LockConfig(lease_duration=7)
    lock = Lock.from_config("cart", config)
    assert lock.config is config
    assert lock.name == "cart"
    with pytest.raises(TypeError, match="LockConfig"):
        Lock.from_config("cart", {"lease_duration": 7})  # type: ignore[arg-type]
    with pytest.raises(SettingsValidationError, match="name"):
        Lock.from_config("", config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease_duration", 0),
        ("lease_duration", -1),
        ("lease_duration", float("nan")),
        ("lease_duration", float("inf")),
        ("lease_duration", 2**31),
        ("lease_duration", True),
        ("lease_duration", SECRET),
        ("lease_duration", object()),
        ("retry_interval", 0.0009),
        ("retry_jitter", 1),
        ("retry_jitter", -0.1),
        ("retry_jitter", float("nan")),
        ("worker", 5),
    ],
)
def test_bad_values_are_refused_by_field_and_rule_alone(field: str, value: object) -> None:
    with pytest.raises(SettingsValidationError) as caught:
        Lock("cart", **{field: value})  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)
    assert field in str(caught.value)
    assert SECRET not in str(caught.value)
    assert repr(value) not in str(caught.value) or value in (0, 1)
    with pytest.raises(ValidationError) as raw:
        LockConfig(**{field: value})  # type: ignore[arg-type]
    assert SECRET not in str(raw.value)


def test_a_bad_variable_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREL_LOCK_CART_LEASE_DURATION", SECRET)
    with pytest.raises(SettingsValidationError, match="GREL_LOCK_CART_LEASE_DURATION") as caught:
        Lock("cart")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "name",
    ["", "x" * 256, "a\0b", "\ud800", 5, None, b"cart"],
    ids=["empty", "long", "nul", "surrogate", "int", "none", "bytes"],
)
def test_names_that_no_backend_takes_are_refused(name: object) -> None:
    with pytest.raises(SettingsValidationError, match="name"):
        Lock(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x", "x" * 255, "ä" * 255, "🔒", "A/B:c", "{x}", "a b\n"])
def test_other_names_are_taken(name: str) -> None:
    assert Lock(name).name == name


def test_lock_and_tasklock_names_never_meet() -> None:
    names = ["a", "lock:a", "tasklock:a", "lock:lock:a", "lock:tasklock:a", "tasklock:tasklock:a", "lock:"]
    keys = [lock_key(name) for name in names] + [tasklock_key(name) for name in names]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("backend", [MemoryLockAdapter, object(), MemoryScheduleAdapter(), 5])
def test_a_wrong_backend_is_refused_at_construction(backend: object) -> None:
    with pytest.raises(SettingsValidationError, match="backend"):
        Lock("cart", backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        (f"redis://:{SECRET}@h:1/0", "redis://:***@h:1/0"),
        (f"redis://user:{SECRET}@h", "redis://user:***@h"),
        (f"redis://user:a:b@{SECRET}@h", "redis://user:***@h"),
        (f"redis://user:{SECRET}/x?y@h/0", "redis://user:***@h/0"),
        (f"postgresql://u@h/db?password={SECRET}&x=1", "postgresql://u@h/db?password=***&x=1"),
        (f"redis+sentinel://u:{SECRET}@a,b/m?sentinel_password={SECRET}", None),
        (f"u:{SECRET}@h", "u:***@h"),
    ],
)
def test_urls_are_shown_without_their_password(url: str, shown: str | None) -> None:
    assert SECRET not in mask_url(url)
    if shown is not None:
        assert mask_url(url) == shown


async def test_reconfigure_takes_effect_on_the_next_call() -> None:
    lock = Lock("cart", backend=MemoryLockAdapter(), lease_duration=30)
    await lock.acquire()
    await lock.reconfigure(LockConfig(lease_duration=90))
    assert lock.config.lease_duration == 90
    handle = await lock.extend()
    assert 89 < handle.expires_in() <= 90


async def test_reconfigure_checks_the_type_and_the_worker() -> None:
    lock = Lock("cart", worker="w1")
    with pytest.raises(TypeError, match="LockConfig"):
        await lock.reconfigure({"lease_duration": 5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="worker"):
        await lock.reconfigure(LockConfig(worker="w2"))
    await lock.reconfigure(LockConfig(lease_duration=5))
    assert lock.config == LockConfig(worker="w1", lease_duration=5)


class Applied(Reconfigurable[LockConfig]):
    """Applies swaps slowly, and fails on a lease of 13 seconds."""

    def __init__(self) -> None:
        super().__init__(LockConfig())
        self.applied: list[tuple[float, float]] = []
        self.running = 0

    async def _on_reconfigured(self, old: LockConfig, new: LockConfig) -> None:
        self.running += 1
        assert self.running == 1
        await checkpoint()
        self.running -= 1
        if new.lease_duration == 13:
            raise RuntimeError
        self.applied.append((old.lease_duration, new.lease_duration))


async def test_a_swap_that_fails_is_rolled_back() -> None:
    subject = Applied()
    before = subject.config
    with pytest.raises(RuntimeError):
        await subject.reconfigure(LockConfig(lease_duration=13))
    assert subject.config is before


async def test_swaps_take_turns_and_equal_ones_do_nothing() -> None:
    subject = Applied()
    async with anyio.create_task_group() as tg:
        for lease in (1, 2, 2, 3):
            tg.start_soon(subject.reconfigure, LockConfig(lease_duration=lease))
    assert subject.applied == [(60, 1), (1, 2), (2, 3)]


def test_configurations_are_frozen() -> None:
    with pytest.raises(ValidationError):
        LockConfig().lease_duration = 5
    with pytest.raises(ValidationError):
        LockConfig(lease=5)  # type: ignore[call-arg]


def test_identities_differ_by_instance_and_are_kept() -> None:
    first, second = Identity(None, random_hex), Identity(None, random_hex)
    assert first.worker == first.worker != second.worker
    assert len(first.worker) == 16
    assert int(first.worker, 16) >= 0
    assert uuid.UUID(Identity(None, random_uuid1).worker).version == 1
    given = uuid.uuid4()
    assert Identity(given, random_hex).worker == str(given)
    assert Identity("w", random_hex).new_token() != Identity("w", random_hex).new_token()


def test_an_identity_made_before_a_fork_is_another_ones_after_it() -> None:
    script = """
import os
from grelmicro.coordination._identity import Identity, random_hex
identity = Identity(None, random_hex)
mine = identity.worker
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, identity.worker.encode())
    os._exit(0)
os.wait()
theirs = os.read(reader, 100).decode()
assert theirs and theirs != mine and identity.worker == mine
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


async def test_the_same_worker_twice_is_two_holders() -> None:
    backend = MemoryLockAdapter()
    await Lock("cart", backend=backend, worker="w").acquire()
    with pytest.raises(WouldBlockError):
        await Lock("cart", backend=backend, worker="w").acquire_nowait()


async def test_a_copy_that_was_updated_unchecked_is_refused() -> None:
    lock = Lock("cart")
    before = lock.config
    with pytest.raises(SettingsValidationError, match="lease_duration"):
        await lock.reconfigure(before.model_copy(update={"lease_duration": -5}))
    assert lock.config is before
    with pytest.raises(SettingsValidationError, match="lease_duration"):
        Lock.from_config("cart", before.model_copy(update={"lease_duration": -5}))
