"""A service under uvicorn that takes a lock, two task locks and the lead, and keeps them until it is stopped.

Run as `python -m tests.task.served '{"url": …, "name": …, "settings": {…}}'`; reports events as JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import time

import anyio
import uvicorn

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection, Lock, TaskLock
from grelmicro.task import Tasks
from tests.task.worker import provider_for

ORDERS = json.loads(sys.argv[1])
NAME = ORDERS["name"]
LEASE, RETRY, LONG_HOLD = (ORDERS["settings"][key] for key in ("lease", "retry", "long_hold"))

lock = Lock(NAME, lease_duration=LEASE, retry_interval=RETRY)
election = LeaderElection(NAME, lease_duration=LEASE, renew_deadline=LEASE / 2, retry_interval=RETRY)
tasks = Tasks(tasks=[election], shutdown_timeout=RETRY)
micro = Grelmicro(uses=[Coordination(provider_for(ORDERS["url"])), tasks])


def report(event, **facts):
    os.write(1, f"{json.dumps({'event': event, 'at': time.monotonic(), **facts})}\n".encode())


async def work(what):
    report("start", what=what)
    try:
        await anyio.sleep_forever()
    finally:
        report("end", what=what, leader=election.is_leader())


async def hold_the_lock():
    async with lock:
        await work("lock")


@tasks.interval(
    seconds=RETRY, name=f"{NAME} short", lock=TaskLock(lease_duration=LEASE, min_hold_duration=RETRY)
)
async def short():
    await work("short hold")


@tasks.interval(
    seconds=RETRY, name=f"{NAME} long", lock=TaskLock(lease_duration=LEASE, min_hold_duration=LONG_HOLD)
)
async def long():
    await work("long hold")


async def app(scope, receive, send):
    """Serve nothing but the protocol of the server's own life."""
    assert scope["type"] == "lifespan"
    await receive()
    async with anyio.create_task_group() as around, micro, anyio.create_task_group() as within:
        within.start_soon(hold_the_lock)
        around.start_soon(election.lead, work, "lead")
        await send({"type": "lifespan.startup.complete"})
        report("running")
        await receive()
        within.cancel_scope.cancel()
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    uvicorn.run(app, port=0, log_level="warning")
