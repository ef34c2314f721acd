"""Processes that wait for one lock share it, cost little, and hold nobody up, neither dead nor frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tests.lock.places import ServerPlace, new_provider
from tests.wakeups.support import SOON, patient_lock, until_waiting

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["redis", "postgres"])
def where(request):
    return request.param


only_redis = pytest.mark.parametrize("where", ["redis"])
"""PostgreSQL does not know who listens, and counts statements only when it was told so at its start."""


@pytest.fixture
def server(where, request):
    """Return a server that nobody else uses, so that what it is asked can be counted."""
    return request.getfixturevalue(f"own_{where}")


class Crew:
    """Worker processes forked from one, and what they report."""

    def __init__(self, vendor, url, name, **orders):
        orders = {"vendor": vendor, "url": url, "name": name, **orders}
        self.count = orders.get("processes", 1)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.wakeups.worker", json.dumps(orders)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def reports(self, event):
        """Yield the reports of one kind as they come."""
        for line in self._process.stdout:
            report = json.loads(line)
            if report["event"] == event:
                yield report

    def wait_for(self, event):
        """Wait until each worker has reported that; return the reports."""
        reports = self.reports(event)
        return [next(reports) for _ in range(self.count)]

    def begin(self):
        self._process.stdin.write(b"." * self.count)
        self._process.stdin.flush()

    def signal(self, number):
        os.killpg(self._process.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self._process.wait()

    def close(self):
        with self._process:
            if self._process.poll() is None:
                self.signal(signal.SIGKILL)
            self._process.stdin.close()
            self._process.stdout.read()


@contextmanager
def crew(*arguments, **orders):
    workers = Crew(*arguments, **orders)
    try:
        yield workers
    finally:
        workers.close()


def shares(vendor, url, name, total, **orders):
    """Return each process's share of `total` grants in a row."""
    with crew(vendor, url, name, processes=2, mode="share", **orders) as workers:
        held, seen = [], set()
        for report in workers.reports("held"):
            seen.add(report["pid"])
            if len(seen) == 2:  # both have begun
                held.append((report["fence"], report["pid"]))
            if len(held) == total:
                break
    order = [pid for _, pid in sorted(held)]
    return [order.count(pid) / total for pid in seen]


@pytest.mark.parametrize("tasks", [1, 20])
async def test_two_saturated_processes_each_get_their_share(where, server, unique, tasks):
    found = await anyio.to_thread.run_sync(lambda: shares(where, server.url, unique, 400, tasks=tasks))
    assert min(found) >= 0.25, found


def commands(server):
    """Return how many scripts, which is what locks are made of, the server has run so far."""
    stats = server.info("commandstats")
    entries = (stats.get(f"cmdstat_{name}", "calls=0,") for name in ("evalsha", "eval"))
    return sum(int(entry.split("calls=")[1].split(",")[0]) for entry in entries)


@only_redis
@pytest.mark.parametrize(
    ("processes", "tasks", "most"),
    [
        (1, 20, 3),
        (6, 1, 6),
        pytest.param(20, 1, 6, marks=pytest.mark.soak),
    ],
)
async def test_a_hold_costs_few_commands(server, unique, processes, tasks, most):
    holds = 200
    orders = {"processes": processes, "tasks": tasks, "holds": holds // processes // tasks, "mode": "work"}

    def run():
        with crew("redis", server.url, unique, **orders) as workers:
            workers.wait_for("ready")
            before = commands(server)
            workers.begin()
            workers.wait_for("done")
            return commands(server) - before

    spent = await anyio.to_thread.run_sync(run)
    made = orders["holds"] * processes * tasks
    print(f"{spent / made:.2f} commands per hold")  # noqa: T201 - a figure to look at with -rP
    assert made <= spent <= most * made


@only_redis
async def test_who_waits_asks_for_nothing_and_holds_no_connection(server, unique):
    place = ServerPlace(server.url, lambda url, **settings: new_provider("redis", url, **settings))
    seconds = 3
    async with place.near() as backend, place.near() as other:
        holder = patient_lock(other, unique)
        await holder.acquire()
        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(patient_lock(backend, unique, retry_interval=0.01).acquire)
            await until_waiting(backend, unique, 500)
            with anyio.fail_after(SOON):
                while not backend.wakes:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            before = commands(server)
            await anyio.sleep(seconds)
            asked = commands(server) - before
            connected = int(server.info("clients")["connected_clients"])
            tasks.cancel_scope.cancel()
        await holder.release()
    assert asked <= seconds / 0.75 + 1  # the safety poll of one contender
    assert connected == 2 + 1 + 1  # two backends' commands, one that listens, and the one that asked this


@pytest.fixture
def place(where, request):
    url = request.getfixturevalue(f"{where}_url")
    return ServerPlace(url, lambda url, **settings: new_provider(where, url, **settings))


@only_redis
async def test_a_dead_process_is_passed_over(where, place, unique, monkeypatch):
    monkeypatch.setattr("grelmicro.coordination._line._SAFETY_POLL", 1000.0)
    waited = await _behind(place, where, unique, Crew.kill)
    assert waited < SOON


async def test_a_frozen_process_holds_nobody_up_for_longer_than_the_safety_poll(where, place, unique):
    with pytest.MonkeyPatch.context() as patch:
        # The bound itself would be 1.25 s: too close for a busy machine.
        patch.setattr("grelmicro.coordination._line._SAFETY_POLL", 2.0)
        waited = await _behind(place, where, unique, lambda worker: worker.signal(signal.SIGSTOP))
    assert waited < SOON


async def _behind(place, where, name, harm):
    """Return how long it takes to get a lock behind a process that comes to harm."""
    async with place.near() as one, place.near() as two:
        holder, lock = patient_lock(one, name), patient_lock(two, name)
        await holder.acquire()
        with crew(where, place.url, name, mode="wait") as worker:
            await anyio.to_thread.run_sync(worker.wait_for, "waiting")
            async with anyio.create_task_group() as tasks:
                got = anyio.Event()

                async def wait():
                    async with lock:
                        got.set()

                tasks.start_soon(wait)
                await until_waiting(two, name, 1)
                with anyio.fail_after(SOON):
                    while not two.wakes:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(harm, worker)
                for _ in range(3):  # time for the server to see a connection end
                    await one.locked(name=name)
                start = time.monotonic()
                await holder.release()
                with anyio.fail_after(2 * SOON):
                    await got.wait()
                return time.monotonic() - start


async def test_a_process_that_was_frozen_gets_the_lock_later(where, place, unique):
    async with place.near() as backend:
        holder = patient_lock(backend, unique)
        await holder.acquire()
        with crew(where, place.url, unique, mode="wait") as worker:
            await anyio.to_thread.run_sync(worker.wait_for, "waiting")
            worker.signal(signal.SIGSTOP)
            await holder.release()
            await holder.acquire(timeout=SOON)
            worker.signal(signal.SIGCONT)
            await holder.release()
            await anyio.to_thread.run_sync(worker.wait_for, "held")
