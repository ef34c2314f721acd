"""A holder that was frozen past its lease knows so at once, and can do no harm to the next one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import anyio
import pytest

from tests.lock.places import SOON, lock_on
from tests.lock.scripts import environment

LEASE = 0.8


class Resource:
    """What the lock protects: it takes no write with a smaller fence than it has seen."""

    def __init__(self):
        self.highest, self.writers = 0, []

    def write(self, writer, fence):
        if fence < self.highest:
            raise PermissionError(writer)
        self.highest = fence
        self.writers.append(writer)


async def test_a_process_frozen_past_its_lease_cannot_pass_for_the_holder(server_place, unique, request):
    server = request.node.callspec.params["server_place"]
    resource = Resource()
    command = [sys.executable, "-m", "tests.faults.sleeper", server, server_place.url, unique, str(LEASE)]
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sleeper:
        try:

            async def hear():
                line = await anyio.to_thread.run_sync(sleeper.stdout.readline)
                return json.loads(line)

            seen = await hear()
            assert 0 < seen["expires_in"] <= LEASE
            sleeper.send_signal(signal.SIGSTOP)
            resource.write("old", seen["fence"])
            async with server_place.near() as backend:
                next_one = lock_on(backend, unique)
                handle = await next_one.acquire(timeout=SOON)
                assert handle.fencing_token > seen["fence"]
                resource.write("next", handle.fencing_token)
                print("go on", file=sleeper.stdin, flush=True)
                sleeper.send_signal(signal.SIGCONT)
                assert (await hear()) == {"expires_in": 0.0}
                with pytest.raises(PermissionError):
                    resource.write("old", seen["fence"])
                assert [await hear(), await hear()] == [{"error": "LockNotOwnedError"}] * 2
                assert await next_one.owned() is True
                assert (await next_one.extend()).fencing_token == handle.fencing_token
                await next_one.release()
        finally:
            sleeper.kill()
    assert resource.writers == ["old", "next"]
