"""`python -m grelmicro demo`: what was asked for, the run, the verdict, the exit code."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from grelmicro.config import mask_url
from grelmicro.demo._console import Console
from grelmicro.demo._crew import Crew
from grelmicro.demo._errors import BrokenRunError, CannotRunError
from grelmicro.demo._events import DIRECTOR, Journal, Recorder
from grelmicro.demo._judge import judge_lock, judge_roles
from grelmicro.demo._plan import (
    FEWEST_WORKERS,
    LONGEST,
    MOST_WORKERS,
    SHORTEST,
    TIME_LIMIT,
    Orders,
    Plan,
)
from grelmicro.demo._run import Run
from grelmicro.demo._server import embedded_valkey
from grelmicro.demo._stage import Stage
from grelmicro.demo._vendor import check
from grelmicro.demo._worker import COUNTER
from grelmicro.errors import GrelmicroError

if TYPE_CHECKING:
    from types import FrameType

GOOD, BAD, CANNOT_RUN = 0, 1, 2


def demo(*, workers: str, url: str | None, seconds: str, use_lock: bool) -> int:
    """Run the demo with what the command line says, print what happens, and return the exit code."""
    began = time.monotonic()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        plan = Plan.make(
            workers=int(_number("--workers", workers, FEWEST_WORKERS, MOST_WORKERS, whole=True)),
            seconds=_number("--seconds", seconds, SHORTEST, LONGEST),
        )
        return _run(plan, url, began, use_lock=use_lock)
    except CannotRunError as error:
        return _complain(str(error), CANNOT_RUN)
    except BrokenRunError as error:
        return _complain(f"verdict: BAD, {error}", BAD)
    except BrokenPipeError:  # nobody reads on, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(plan: Plan, url: str | None, began: float, *, use_lock: bool) -> int:
    console = Console(sys.stdout, began)
    with ExitStack() as stack:
        directory = _directory(stack)
        # On a server that others use, names of our own.
        prefix = "" if url is None else f"demo-{secrets.token_hex(4)}-"
        where = "an embedded Valkey" if url is None else mask_url(url).partition("?")[0]
        if url is None:
            url = stack.enter_context(embedded_valkey(directory))
        _check(url, f"{prefix}check")
        console.headline(f"{plan.workers} worker processes, on {where}")
        crew = stack.enter_context(Crew(directory, Recorder(directory, DIRECTOR)))
        stage = Stage(Journal(directory), console, crew, give_up_at=began + TIME_LIMIT)
        counter = directory / COUNTER
        counter.write_text("0")
        window = Run(stage, crew, Orders(url, str(directory), prefix, plan, use_lock)).play()
        text = counter.read_text()
        checks = judge_lock(stage.events, plan, counter=int(text) if text else None)
        if window is not None:
            checks += judge_roles(stage.events, plan, window=window)
    console.headline("What the workers recorded")
    console.verdict(checks)
    good = all(check.good for check in checks)
    console.closing(
        f"verdict: {'good' if good else 'BAD'}, after {time.monotonic() - began:.0f} s", good=good
    )
    return GOOD if good else BAD


def _check(url: str, name: str) -> None:
    try:
        anyio.run(check, url, name)
    except (GrelmicroError, ImportError) as error:
        raise CannotRunError(str(error)) from error


def _directory(stack: ExitStack) -> Path:
    """Make a directory for this user alone, in `/tmp` if there is one: the path of a socket must be short."""
    path = Path(tempfile.mkdtemp(prefix="grelmicro-", dir="/tmp" if Path("/tmp").is_dir() else None))  # noqa: S108
    stack.callback(shutil.rmtree, path, ignore_errors=True)
    return path


def _number(option: str, text: str, least: float, most: float, *, whole: bool = False) -> float:
    try:
        number = float(int(text) if whole else text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise CannotRunError(
            f"{option} must be a {'whole ' if whole else ''}number from {least:g} to {most:g}"
        )
    return number


def _complain(problem: str, code: int) -> int:
    sys.stderr.write(f"python -m grelmicro demo: {' '.join(problem.split())}\n")
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
