"""Real servers for elections: providers by address, and candidates in processes of their own."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grelmicro.providers._base import Provider

ROOT = Path(__file__).parents[2]


def provider_for(url: str, **settings: Any) -> Provider:
    if url.startswith("postgres"):
        from grelmicro.providers.postgres import PostgresProvider

        return PostgresProvider(url, env_load=False, **settings)
    from grelmicro.providers.redis import RedisProvider

    return RedisProvider(url, env_load=False, **settings)


class Worker:
    """A process that runs a module and what it has reported."""

    module = "tests.election.worker"
    exit_code = 0
    """After a graceful stop."""

    def __init__(self, url: str, name: str, **orders: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._incoming: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                self.module,
                json.dumps({"url": url, "name": name, **orders}),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._incoming.put(json.loads(line))
        self._incoming.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def seen(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Return what was reported so far, of that kind and with these facts."""
        while not self._incoming.empty():
            entry = self._incoming.get()
            if entry is not None:
                self.events.append(entry)
        return [entry for entry in self.events if entry["event"] == event and facts.items() <= entry.items()]

    def wait(self, event: str, *, within: float = 20, **facts: Any) -> dict[str, Any]:
        """Wait for a report."""
        end = time.monotonic() + within
        while True:
            if found := self.seen(event, **facts):
                return found[0]
            try:
                self._note(self._incoming.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                message = f"no {event!r} {facts} within {within} s: {self.events} {''.join(self.errors)}"
                raise AssertionError(message) from None

    def spans(self) -> list[tuple[float, float]]:
        """Return when the body ran, by the machine's monotonic clock."""
        ends = {entry["round"]: entry["at"] for entry in self.seen("end")}
        return [(entry["at"], ends.get(entry["round"], float("inf"))) for entry in self.seen("start")]

    def stop(self) -> None:
        """Stop it gracefully and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == self.exit_code, "".join(self.errors)
        for reader in self._readers:
            reader.join()

    def kill(self) -> float:
        """Kill it and return when."""
        at = time.monotonic()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        return at

    def close(self) -> None:
        """End it and its children for good."""
        if self.process.poll() is None:
            self.kill()
        for reader in self._readers:
            reader.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _note(self, entry: dict[str, Any] | None) -> None:
        if entry is None:
            message = f"the worker has ended: {self.events} {''.join(self.errors)}"
            raise AssertionError(message)
        self.events.append(entry)


def concurrently(scenario: Callable[..., None], *choices: list[Any]) -> None:
    """Run a scenario for every combination, all at the same time, since it mostly waits."""
    combinations = list(itertools.product(*choices))
    with ThreadPoolExecutor(len(combinations)) as pool:
        for outcome in [pool.submit(scenario, *combination) for combination in combinations]:
            outcome.result()


@contextmanager
def workers(
    url: str, name: str, *, of: type[Worker] = Worker, **settings: Any
) -> Iterator[Callable[..., Worker]]:
    """Give a function that starts workers, and end them all."""
    started: list[Worker] = []

    def start(**orders: Any) -> Worker:
        worker = of(url, name, **{"settings": settings, **orders})
        started.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.close()


def overlap(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """Return for how many seconds a span of one and a span of the other ran at the same time."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)
