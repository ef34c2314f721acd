"""Python programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return an environment in which a program finds the library and the tests."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return os.environ | {"PYTHONPATH": path}


async def run_module(module: str, *arguments: str, flags: tuple[str, ...] = ()) -> str:
    """Run a module to its end and return what it printed."""
    command = [sys.executable, *flags, "-m", module, *arguments]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment(), check=False, capture_output=True, text=True, timeout=60
        )

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    return done.stdout
