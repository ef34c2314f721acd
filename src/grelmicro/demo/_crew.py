"""The worker processes: starting, killing, and ending them all."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from grelmicro.demo._errors import BrokenRunError
from grelmicro.demo._events import What

if TYPE_CHECKING:
    from pathlib import Path

    from grelmicro.demo._events import Event, Recorder
    from grelmicro.demo._plan import Orders

_PATIENCE = 2.0
"""Seconds that workers get to stop by themselves."""


class Crew:
    """Workers by their numbers. None of them outlives the block."""

    def __init__(self, directory: Path, record: Recorder) -> None:
        self._directory = directory
        self._record = record
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.communicate()

    def start(self, orders: Orders) -> None:
        """Start a worker. It gets ready, then waits for `go`."""
        with self._log(orders.worker).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "grelmicro.demo._worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends its workers
            )
        self._running[orders.worker] = process
        self._record(What.STARTED, worker=orders.worker)
        self._tell(process, orders.to_line())

    def go(self, worker: int) -> None:
        """Let a worker begin."""
        self._tell(self._running[worker], "go")

    def kill(self, worker: int) -> Event:
        """Kill a worker as an out-of-memory killer would, and return the event once it is dead."""
        process = self._running.pop(worker)
        process.kill()
        process.communicate()
        return self._record(What.KILLED, worker=worker)

    def check(self) -> None:
        """Make sure that all workers live.

        Raises:
            BrokenRunError: one has ended by itself.
        """
        for worker, process in self._running.items():
            if process.poll() is not None:
                lines = self._log(worker).read_text(errors="replace").strip().splitlines()
                raise BrokenRunError(
                    f"worker {worker} ended by itself: {lines[-1] if lines else 'no message'}"
                )

    def stop(self) -> None:
        """Let all workers stop in their own orderly way.

        Raises:
            BrokenRunError: one does not, or reports an error.
        """
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.close()
        deadline = time.monotonic() + _PATIENCE
        for worker, process in self._running.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise BrokenRunError(f"worker {worker} did not stop within {_PATIENCE:g} s") from None
            if process.returncode:
                self.check()
        self._running.clear()

    def _last_words(self, worker: int) -> str:
        lines = self._log(worker).read_text(errors="replace").splitlines()
        told = [line for line in lines if line.strip(" |+-")]  # some of a traceback's lines only frame it
        return told[-1].lstrip(" |") if told else "it left no message"

    def _log(self, worker: int) -> Path:
        return self._directory / f"{worker}.log"

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], line: str) -> None:
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended, which `check` reports
                process.stdin.write(line.encode() + b"\n")
