"""Each mode of the proxy does what it says."""

import socket
import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from tests.support.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Return the address of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1024):
                    connection.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=[connection]))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join()
    for thread in threads:
        thread.join()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address) as client:
        client.settimeout(5)
        yield client


def ask(client: socket.socket, data: bytes = b"ping") -> bytes:
    client.sendall(data)
    return client.recv(1024)


def silent(client: socket.socket, seconds: float = 0.1) -> bool:
    client.settimeout(seconds)
    try:
        client.recv(1024)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_passes(client: socket.socket, proxy: Proxy) -> None:
    assert ask(client) == b"ping"
    assert proxy.connections == 1
    assert proxy.accepted == 1
    assert proxy.bytes_to_server == 4


def test_an_end_of_connection_passes(client: socket.socket, proxy: Proxy) -> None:
    ask(client)
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1024) == b""


def test_delays_replies_without_adding_the_delays_up(client: socket.socket, proxy: Proxy) -> None:
    proxy.delay(0.2)
    start = time.monotonic()
    for _ in range(5):
        client.sendall(b"x")
        time.sleep(0.01)
    received = b""
    while len(received) < 5:
        received += client.recv(1024)
    assert 0.2 <= time.monotonic() - start < 0.4


def test_delays_requests(client: socket.socket, proxy: Proxy) -> None:
    proxy.delay(0.2, to_server=True, to_client=False)
    start = time.monotonic()
    assert ask(client) == b"ping"
    assert time.monotonic() - start >= 0.2


def test_black_hole_keeps_the_connection_and_delivers_on_healing(client: socket.socket, proxy: Proxy) -> None:
    assert ask(client) == b"ping"
    proxy.black_hole()
    client.sendall(b"lost?")
    assert silent(client)
    assert proxy.held_replies == 0
    proxy.heal()
    assert client.recv(1024) == b"lost?"


def test_black_hole_for_replies_lets_the_server_act(client: socket.socket, proxy: Proxy) -> None:
    assert ask(client) == b"ping"
    proxy.black_hole(to_server=False)
    client.sendall(b"done")
    proxy.wait_held_reply()
    assert silent(client)
    proxy.heal()
    assert client.recv(1024) == b"done"
    assert proxy.held_replies == 0


def test_black_hole_swallows_new_connections(proxy: Proxy) -> None:
    proxy.black_hole()
    with socket.create_connection(proxy.address, timeout=5) as client:
        client.sendall(b"hello")
        assert silent(client)
        proxy.heal()
        assert client.recv(1024) == b"hello"


def test_refuses_new_connections_until_healed(client: socket.socket, proxy: Proxy) -> None:
    assert ask(client) == b"ping"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address)
    assert ask(client) == b"ping"
    proxy.heal()
    with socket.create_connection(proxy.address, timeout=5) as other:
        assert ask(other) == b"ping"


def test_cut_resets(client: socket.socket, proxy: Proxy) -> None:
    ask(client)
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(1024)
    with socket.create_connection(proxy.address, timeout=5) as other:
        assert ask(other) == b"ping"


def test_a_lost_reply_is_a_reset_after_the_request_arrived(client: socket.socket, proxy: Proxy) -> None:
    assert ask(client) == b"ping"
    proxy.lose_reply()
    with pytest.raises(ConnectionResetError):
        ask(client, b"pay")
    assert proxy.bytes_to_server == 7
    with socket.create_connection(proxy.address, timeout=5) as other:
        assert ask(other) == b"ping"


def test_a_target_that_is_gone_resets(proxy: Proxy) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy.set_target(unused.getsockname())
        # As early as from connect(), when the reset comes quickly.
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(proxy.address, timeout=5) as client,
        ):
            client.recv(1024)


def test_url_replaces_host_and_port_only() -> None:
    proxy = Proxy(("127.0.0.1", 1))
    proxy.port = 7
    assert proxy.url("redis://:pw@h:6379/0") == "redis://:pw@127.0.0.1:7/0"
    assert proxy.url("postgresql://u@h/db?x=1") == "postgresql://u@127.0.0.1:7/db?x=1"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_works_from_any_event_loop_also_a_blocked_one(proxy: Proxy) -> None:
    async with await anyio.connect_tcp(*proxy.address) as stream:
        proxy.delay(0.05)
        await stream.send(b"x")
        time.sleep(0.2)  # noqa: ASYNC251
        with anyio.fail_after(0.04):
            assert await stream.receive() == b"x"
