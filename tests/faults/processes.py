"""Processes that a test starts, kills and freezes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.lock.scripts import environment

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Nursery:
    """A process that forks others, each running `work(worker, *arguments)` of a module."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.faults.nursery", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.workers: dict[str, int] = {}
        """Process ids of those that were not killed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for pid in self.workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def spawn(self, worker: str) -> None:
        """Start a worker."""
        self._tell(f"spawn {worker}")
        self.workers[worker] = int(self._process.stdout.readline())

    def signal(self, worker: str, number: int) -> None:
        """Send a signal to a worker."""
        os.kill(self.workers[worker], number)

    def kill(self, worker: str) -> None:
        """Kill a worker for good, frozen or not."""
        self.signal(worker, signal.SIGKILL)
        del self.workers[worker]

    def finish(self) -> dict[str, int]:
        """Ask all that are left to end; returns the exit codes of all there ever were."""
        for worker in self.workers:
            self.signal(worker, signal.SIGTERM)
        self._tell("quit")
        self.workers = {}
        codes = {}
        for line in self._process.stdout:
            worker, code = line.split()
            codes[worker] = int(code)
        assert self._process.wait() == 0
        return codes

    def _tell(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
