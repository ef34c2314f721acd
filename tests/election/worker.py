"""One candidate as a process of its own: takes its orders as JSON, reports events as JSON lines.

Run as `python -m tests.election.worker '{"url": …, "name": …}'`. SIGTERM stops it gracefully.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

ORDERS: dict[str, Any] = json.loads(sys.argv[1])

if ORDERS.get("wall_clock_off_by"):
    _true_time = time.time
    time.time = lambda: _true_time() + ORDERS["wall_clock_off_by"]

import anyio  # noqa: E402 - after the clock was set

from grelmicro.coordination.leaderelection import LeaderElection  # noqa: E402
from tests.election.servers import provider_for  # noqa: E402


def report(event: str, **facts: Any) -> None:
    # One write, since forked workers share the pipe. The monotonic clock is one for all of a machine.
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **facts})
    os.write(1, f"{line}\n".encode())


# Made at import, as an application does that forks its workers afterwards.
provider = provider_for(ORDERS["url"])
adapter = provider.leaderelection()
election = LeaderElection(
    ORDERS["name"], backend=adapter, worker=ORDERS.get("worker"), env_load=False, **ORDERS["settings"]
)
rounds = 0


async def body() -> None:
    global rounds  # noqa: PLW0603
    rounds += 1
    report("start", round=rounds)
    try:
        if rounds == 1 and ORDERS.get("block"):
            await asyncio.sleep(0.3)
            time.sleep(ORDERS["block"])  # noqa: ASYNC251 - the fault that is tested
            report("unblocked", leader=election.is_leader())
        await asyncio.sleep(1000)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(ORDERS.get("clean_up", 0))
        report("end", round=rounds, leader=election.is_leader())


async def block_beside() -> None:
    await election.wait_for_leader()
    await asyncio.sleep(0.3)
    time.sleep(ORDERS["block_beside"])  # noqa: ASYNC251
    report("unblocked", leader=election.is_leader())


async def main() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with adapter:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(election())
                tasks.create_task(election.lead(body, repeat=True))
                if ORDERS.get("block_beside"):
                    tasks.create_task(block_beside())
                report("running")
                if ORDERS.get("fork_when_leading"):
                    await election.wait_for_leader()
                    fork_and_look()
        except asyncio.CancelledError:
            report("stopped")


def fork_and_look() -> None:
    pid = os.fork()
    if pid == 0:
        report("child", leader=election.is_leader(), running=election.is_running())
        os._exit(0)
    os.waitpid(pid, 0)
    report("parent", leader=election.is_leader(), running=election.is_running())


if __name__ == "__main__":
    for _ in range(ORDERS.get("forks", 0)):
        if os.fork() == 0:
            break
    asyncio.run(main())
