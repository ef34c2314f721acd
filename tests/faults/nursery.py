"""Forks workers on command, so that a test gets many processes for the price of one start.

Reads lines from its standard input, `spawn WORKER` and `quit`, and answers each with a line: the worker's
process id, or the exit codes of all. Started as `python -m tests.faults.nursery MODULE ARGUMENTS`; the
module's `work(worker, *arguments)` runs in each worker.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    module, *arguments = sys.argv[1:]
    work = importlib.import_module(module).work
    children: dict[int, str] = {}
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "quit":
            break
        worker = rest[0]
        pid = os.fork()
        if pid == 0:
            _run(work, worker, arguments)
        children[pid] = worker
        print(pid, flush=True)  # noqa: T201
    for pid, worker in children.items():
        _, status = os.waitpid(pid, 0)
        print(worker, os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def _run(work: object, worker: str, arguments: list[str]) -> None:
    code = 1
    try:
        work(worker, *arguments)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
