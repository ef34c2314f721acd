"""A TCP proxy that misbehaves on demand.

It runs on an event loop in a thread of its own, so it keeps working while a test blocks its loop, and its
methods can be called from any thread and from any event loop, asyncio or trio.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

T = TypeVar("T")

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)


class _Direction:
    """What happens to the bytes that flow one way."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.passing = asyncio.Event()
        self.passing.set()
        self.held = 0
        self.seen = 0

    def heal(self) -> None:
        self.delay = 0.0
        self.passing.set()


class _Connection:
    """One client's connection and its twin to the target."""

    def __init__(self, proxy: _Engine) -> None:
        self._proxy = proxy
        self._transports: list[asyncio.Transport] = []

    async def serve(self, client: socket.socket) -> None:
        try:
            from_client, to_client = await self._streams(client, self._proxy.context)
            await self._proxy.to_server.passing.wait()
            upstream = socket.socket()
            upstream.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(upstream, self._proxy.target)
            except BaseException:
                upstream.close()
                raise
            from_server, to_server = await self._streams(upstream, None)
            await asyncio.gather(
                self._pump(from_client, to_server, self._proxy.to_server),
                self._pump(from_server, to_client, self._proxy.to_client),
            )
        except OSError:
            self.reset()
        finally:
            client.close()
            for transport in self._transports:
                transport.abort()

    def reset(self) -> None:
        for transport in self._transports:
            raw = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    async def _streams(
        self, connection: socket.socket, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        self._transports.append(transport)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: _Direction) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self._write(queue, sink, way))
        try:
            data = b"."
            while data:
                try:
                    data = await source.read(65536)
                except OSError:
                    data = b""
                way.held += 1
                way.seen += len(data)
                queue.put_nowait((asyncio.get_running_loop().time() + way.delay, data))
                if way is self._proxy.to_client and data and self._proxy.take_lost_reply():
                    self.reset()
            await writing
        finally:
            writing.cancel()
            way.held -= queue.qsize()

    async def _write(
        self, queue: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter, way: _Direction
    ) -> None:
        data = b"."
        while data:
            due, data = await queue.get()
            try:
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                await way.passing.wait()
                with contextlib.suppress(OSError, RuntimeError):
                    if data:
                        sink.write(data)
                        await sink.drain()
                    elif sink.can_write_eof():
                        sink.write_eof()
                    else:
                        sink.close()
            finally:
                way.held -= 1


class _Engine:
    """The part that lives on the proxy's own loop."""

    def __init__(self, target: tuple[str, int], context: ssl.SSLContext | None) -> None:
        self.target = target
        self.context = context
        self.to_server = _Direction()
        self.to_client = _Direction()
        self.connections: dict[asyncio.Task[None], _Connection] = {}
        self.accepted = 0
        self.replies_to_lose = 0
        self._listener: socket.socket | None = None

    def listen(self, port: int) -> None:
        if self._listener is not None:
            return
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            listener.listen(1024)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def unlisten(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def take_lost_reply(self) -> bool:
        if self.replies_to_lose == 0:
            return False
        self.replies_to_lose -= 1
        return True

    def reset_all(self) -> int:
        cut = list(self.connections.items())
        for task, connection in cut:
            connection.reset()
            task.cancel()
        return len(cut)

    async def close(self) -> None:
        self.unlisten()
        tasks = list(self.connections)
        self.reset_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = listener.accept()
            client.setblocking(False)
            self.accepted += 1
            connection = _Connection(self)
            task = asyncio.get_running_loop().create_task(connection.serve(client))
            self.connections[task] = connection
            task.add_done_callback(self.connections.pop)
            # Cancelled before its first step, a task does not close anything.
            task.add_done_callback(lambda _: client.close())


def server_context(certificate: Path | str) -> ssl.SSLContext:
    """Load a key with its chain for the accepting side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class Proxy:
    """A proxy on a port of its own, from `with` to the end of the block.

    Modes hold for present and future connections and do not add up: each call replaces the one before, and
    `heal()` ends them. Bytes that a mode holds back are delivered when it ends, as after a network partition.
    """

    def __init__(
        self, target: tuple[str, int], *, tls: ssl.SSLContext | None = None, port: int | None = None
    ) -> None:
        self._target = target
        self._tls = tls
        self._fixed_port = port
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.host = HOST
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect."""
        return self.host, self.port

    def url(self, original: str) -> str:
        """Return a server's address with this proxy's host and port in place of its own."""
        head, _, tail = original.partition("://")
        credentials, at, rest = tail.rpartition("@")
        _, slash, path = rest.partition("/")
        return f"{head}://{credentials}{at}{self.host}:{self.port}{slash}{path}"

    def heal(self) -> None:
        """Pass everything at once, what was held back first."""

        def change() -> None:
            self._engine.to_server.heal()
            self._engine.to_client.heal()
            self._engine.replies_to_lose = 0
            self._engine.listen(self.port)

        self._call(change)

    def delay(self, seconds: float, *, to_server: bool = False, to_client: bool = True) -> None:
        """Deliver later: by default only replies, so the server acts at once and the client learns late."""
        self.heal()

        def change() -> None:
            self._engine.to_server.delay = seconds if to_server else 0.0
            self._engine.to_client.delay = seconds if to_client else 0.0

        self._call(change)

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Deliver nothing and close nothing, the end of a connection included."""
        self.heal()

        def change() -> None:
            if to_server:
                self._engine.to_server.passing.clear()
            if to_client:
                self._engine.to_client.passing.clear()

        self._call(change)

    def refuse(self) -> None:
        """Refuse new connections; those that exist stay (`cut()` ends them)."""
        self.heal()
        self._call(self._engine.unlisten)

    def lose_reply(self, count: int = 1) -> None:
        """Reset the connection in place of each of the next replies: done there, unknown here."""

        def change() -> None:
            self._engine.replies_to_lose = count

        self._call(change)

    def cut(self) -> int:
        """Reset every connection, on both sides; return how many there were."""
        return self._call(self._engine.reset_all)

    def set_target(self, target: tuple[str, int]) -> None:
        """Send future connections elsewhere; present ones stay where they are."""

        def change() -> None:
            self._engine.target = target

        self._call(change)

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return self._call(lambda: len(self._engine.connections))

    @property
    def accepted(self) -> int:
        """How many connections there were since the start."""
        return self._call(lambda: self._engine.accepted)

    @property
    def held_replies(self) -> int:
        """How many pieces of reply are held back now: the server has acted, the client does not know."""
        return self._call(lambda: self._engine.to_client.held)

    @property
    def bytes_to_server(self) -> int:
        """How many bytes clients have sent since the start."""
        return self._call(lambda: self._engine.to_server.seen)

    def wait_held_reply(self, timeout: float = 5.0) -> None:
        """Block until a reply is held back. In an event loop, run it in a worker thread."""
        deadline = time.monotonic() + timeout
        while not self.held_replies:
            if time.monotonic() > deadline:
                message = f"no reply was held back within {timeout} s"
                raise TimeoutError(message)
            time.sleep(0.001)

    def _call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._engine = _Engine(self._target, self._tls)
        try:
            self._listen()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._started.set()
        await self._over.wait()

    def _listen(self) -> None:
        if self._fixed_port is not None:
            self.port = self._fixed_port
            return self._engine.listen(self.port)
        for _ in range(100):
            # Below the range of outgoing connections: a refused port must not be given to a client meanwhile.
            self.port = 12_000 + secrets.randbelow(20_000)
            with contextlib.suppress(OSError):
                return self._engine.listen(self.port)
        message = "no free port found"
        raise OSError(message)


def main() -> None:
    """Serve in a process of its own: HOST PORT LISTEN_PORT CERTIFICATE."""
    host, port, listen_port, certificate = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with Proxy((host, int(port)), tls=server_context(certificate), port=int(listen_port)):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
