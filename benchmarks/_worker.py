"""A process that takes part: `python -m benchmarks._worker VENDOR URL NAME MODE …`, steered over stdin."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks._vendors import adapters
from grelmicro.coordination import Lock


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def _hold(lock: Lock, reader: asyncio.StreamReader, holds: int, seconds: float) -> None:
    """Hold the lock so many times, for so long, once told to."""
    _say("ready")
    await reader.readline()
    for _ in range(holds):
        async with lock:
            await asyncio.sleep(seconds)
    _say(time.monotonic())


async def _answer(lock: Lock, reader: asyncio.StreamReader) -> None:
    """For each line, wait for the lock, and say when it came."""
    _say("ready")
    while await reader.readline():
        _say("waiting")
        async with lock:
            got = time.monotonic()
        _say(got)


async def main() -> None:
    """Do what the arguments say."""
    vendor, url, name, mode, *rest = sys.argv[1:]
    adapter, _ = adapters(vendor, url)
    reader = await _lines()
    async with adapter:
        lock = Lock(name, backend=adapter)
        async with Lock(f"{name}-warm", backend=adapter):
            pass
        if mode == "hold":
            await _hold(lock, reader, int(rest[0]), float(rest[1]))
        else:
            await _answer(lock, reader)


if __name__ == "__main__":
    asyncio.run(main())
