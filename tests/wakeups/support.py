"""Looking at lines, and a backend that counts and misbehaves."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint

from grelmicro._threads import running_loop
from grelmicro.coordination import Lock
from grelmicro.coordination._line import Lines

SOON = 10.0
"""Seconds that a busy machine may need for what takes a moment."""
NEVER = 300.0
"""Seconds of leases and polls that have no part in a test."""


def patient_lock(backend, name, **settings):
    """Return a lock that is got by being woken, or not in time."""
    settings = {"lease_duration": NEVER, "retry_interval": NEVER} | settings
    return Lock(name, backend=backend, env_load=False, **settings)


def waiting(backend, name):
    """Return how many stand in line here."""
    line = Lines.of(backend, running_loop()).get(name)
    return 0 if line is None else len(line._places)


async def until(condition, within=SOON):
    with anyio.fail_after(within):
        while not condition():
            await checkpoint()


async def until_waiting(backend, name, count):
    await until(lambda: waiting(backend, name) == count)


async def can_hear(backend):
    await until(lambda: backend.wakes)


class Served:
    """Who held a lock, in which order; fails at once when two do."""

    def __init__(self):
        self.order = []
        self.fences = []
        self.inside = 0

    @asynccontextmanager
    async def hold(self, lock, who, timeout=None):
        handle = await lock.acquire(timeout=timeout)
        self.inside += 1
        assert self.inside == 1
        self.order.append(who)
        assert not self.fences or handle.fencing_token > self.fences[-1]
        self.fences.append(handle.fencing_token)
        try:
            yield handle
        finally:
            self.inside -= 1
            await lock.release()

    async def once(self, lock, who, timeout=None):
        async with self.hold(lock, who, timeout):
            await checkpoint()


class Watched:
    """A backend that counts the calls to another.

    `fail[operation]` is a list of errors, each for one call: raised before the call is made, or, in a tuple
    with "after", in place of its answer. `gates[operation]` is an event that calls wait for.
    """

    survives_cancellation = True

    def __init__(self, backend):
        self.backend = backend
        self.call_timeout = backend.call_timeout
        self.calls = Counter()
        self.fail = {}
        self.gates = {}

    @property
    def wakes(self):
        return self.backend.wakes

    def on_turn(self, name, wake):
        for error in self.fail.pop("on_turn", []):
            raise error
        return self.backend.on_turn(name, wake)

    async def _call(self, operation, **arguments):
        self.calls[operation] += 1
        if operation in self.gates:
            await self.gates[operation].wait()
        failures = self.fail.get(operation, [])
        failure = failures.pop(0) if failures else None
        if isinstance(failure, Exception):
            raise failure
        answer = await getattr(self.backend, operation)(**arguments)
        if failure is not None:
            raise failure[1]
        return answer

    async def acquire(self, *, name, token, duration):
        return await self._call("acquire", name=name, token=token, duration=duration)

    async def release(self, *, name, token):
        return await self._call("release", name=name, token=token)

    async def locked(self, *, name):
        return await self._call("locked", name=name)

    async def owned(self, *, name, token):
        return await self._call("owned", name=name, token=token)

    async def acquire_or_enqueue(self, *, name, token, duration):
        return await self._call("acquire_or_enqueue", name=name, token=token, duration=duration)

    async def hand_over(self, *, name, token, to, duration):
        return await self._call("hand_over", name=name, token=token, to=to, duration=duration)

    async def pass_on(self, *, name):
        return await self._call("pass_on", name=name)
