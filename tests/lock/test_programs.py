"""What depends on the process: forks, `python -O`, and being ended in the middle of a call."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import anyio
import pytest

from tests.lock.places import PLACES, SERVERS, take_and_free
from tests.lock.scripts import environment, run_module
from tests.support.proxy import Proxy


@pytest.mark.parametrize("server", PLACES)
async def test_a_forked_child_shares_neither_identity_nor_holds_nor_tokens(request, server, unique):
    url = "" if server == "memory" else request.getfixturevalue(f"{server}_url")
    seen = json.loads(await run_module("tests.lock.fork_scene", server, url, unique))
    children = seen["children"]
    assert len(children) == 3
    for child in children:
        assert child["lost"] == [True] * 4
        assert child["owned"] is False
        assert child.get("refused", True) is True
    identities = [seen["identity"], *(child["identity"] for child in children)]
    assert len(set(identities)) == 4
    tokens = [seen["token"], *(child["token"] for child in children)]
    assert len(set(tokens)) == 4
    assert seen["still owned"] is True


async def test_nesting_is_refused_also_when_assertions_are_off():
    out = await run_module("tests.lock.nesting_scene", flags=("-O",))
    assert json.loads(out) == {
        "assertions": False,
        "task": ["LockReentrantError"] * 3,
        "helper": "LockReentrantError",
        "thread": ["LockReentrantError"] * 3,
        "order": ["parent", "child", "child"],
        "free": True,
    }


@pytest.mark.parametrize("server", SERVERS)
async def test_a_program_interrupted_while_it_acquires_leaves_nothing_held(request, server, unique, place_of):
    """Ctrl-C while the server's grant is on its way: closing the provider lets the clean-up through."""
    place = place_of(server)
    with Proxy(place.address) as proxy:
        command = [sys.executable, "-m", "tests.lock.interrupted_scene", server, proxy.url(place.url), unique]
        with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                line = await anyio.to_thread.run_sync(program.stdout.readline)
                assert line == "ready\n", program.stderr.read()
                proxy.delay(0.15)
                program.send_signal(signal.SIGUSR1)
                await anyio.to_thread.run_sync(proxy.wait_held_reply)
                program.send_signal(signal.SIGINT)
                await anyio.to_thread.run_sync(program.wait)
            finally:
                program.kill()
            assert "KeyboardInterrupt" in program.stderr.read()
    async with place.near() as backend:
        await take_and_free(backend, unique)
