"""An API server for Leases in this process, over real HTTP, which validates as the real one does.

It runs on an event loop in a thread of its own. Its methods can be called from any thread, and take effect
before they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from tests.support._process import wait_until
from tests.support.kube.rules import RefusedError
from tests.support.kube.store import Lease, LeaseStore, selected

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

T = TypeVar("T")

_HOST = "127.0.0.1"
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
TOKEN = "strict-token"
NAMESPACES = ("default", "other")


@dataclass
class _Fault:
    """What happens to the next requests of a verb instead, or besides."""

    verb: str
    times: int
    code: int = 0
    retry_after: str | None = None
    apply: bool = False
    body: str | None = None
    hold: bool = False


class StrictKube:
    """Serves from construction to `close()`, which the context manager calls."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="grel-kube-"))
        self.port = 0
        self.clock_ahead = 0.0
        """Seconds by which the server's clock, in the Date header, is ahead."""
        self.requests: list[tuple[str, str]] = []
        """Verb and Lease of every request so far."""
        self._store = LeaseStore(NAMESPACES)
        self._faults: deque[_Fault] = deque()
        self._forbidden: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._frozen = 0
        self._held_passing = asyncio.Event()
        self._held = 0
        self._changed = asyncio.Event()
        self._store.changed = self._wake
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="strict-kube")
        self._thread.start()
        self._ready.wait(10)
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(kubeconfig(self.url, TOKEN))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """The address."""
        return f"http://{_HOST}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as the proxy wants them."""
        return _HOST, self.port

    @property
    def version(self) -> str:
        """What it is, for the summary."""
        return "strict Lease API in this process"

    def leases(self, namespace: str = "default") -> dict[str, Lease]:
        """Return all Leases by name."""
        found = self._call(lambda: self._store.select(namespace))
        return {lease["metadata"]["name"]: lease for lease in found}

    def put(self, lease: Lease, namespace: str = "default") -> Lease:
        """Create or replace a Lease, unconditionally and past all faults."""
        return self._call(lambda: self._force(namespace, lease))

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a Lease, unconditionally and past all faults."""
        self._call(lambda: self._store.delete(namespace, name, None))

    def answer(
        self,
        code: int,
        verb: str = "*",
        *,
        times: int = 1,
        retry_after: str | None = None,
        apply: bool = False,
    ) -> None:
        """Answer the next requests with an error; `apply` does what they ask for all the same."""
        self._fault(_Fault(verb, times, code, retry_after, apply))

    def garble(self, body: str, verb: str = "*", *, code: int = 200, apply: bool = False) -> None:
        """Answer the next request with another body."""
        self._fault(_Fault(verb, 1, code, None, apply, body))

    def lose_reply(self, verb: str = "*", *, times: int = 1, apply: bool = True) -> None:
        """Close the connection instead of answering; without `apply`, before doing anything."""
        self._fault(_Fault(verb, times, 0, None, apply))

    def hold(self, verb: str, *, times: int = 1) -> None:
        """Let the next requests wait until `let_go`, while others pass them."""
        self._fault(_Fault(verb, times, hold=True))

    def let_go(self) -> None:
        """Carry out the requests that were held, and return when that is done."""
        self._call(self._held_passing.set)
        self._wait(lambda: not self._held)
        self._call(self._held_passing.clear)

    def wait_held(self, count: int = 1) -> None:
        """Wait until that many requests are held."""
        self._wait(lambda: self._held >= count)

    def forbid(self, *verbs: str) -> None:
        """Answer 403 to these verbs from now on."""
        self._call(lambda: self._forbidden.update(verbs))

    def freeze(self) -> None:
        """Answer nothing, as with etcd stopped. Requests wait, and are carried out even if nobody waits."""
        self._call(self._passing.clear)

    def thaw(self) -> None:
        """Carry out what waits, in order, and go on."""
        self._call(self._passing.set)

    def wait_frozen(self, count: int) -> None:
        """Wait until that many requests have come since the freeze."""
        self._wait(lambda: self._frozen >= count)

    def compact(self) -> None:
        """Forget the past, so that watches must start anew."""
        self._call(self._store.compact)

    def heal(self) -> None:
        """Take back all faults."""
        self._call(self._heal)

    def _wait(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: self._call(condition), "requests", 10)

    def _heal(self) -> None:
        self._faults.clear()
        self._forbidden.clear()
        self._passing.set()

    def _fault(self, fault: _Fault) -> None:
        self._call(lambda: self._faults.append(fault))

    def _call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _force(self, namespace: str, lease: Lease) -> Lease:
        name = lease["metadata"]["name"]
        metadata = {k: v for k, v in lease["metadata"].items() if k not in ("uid", "resourceVersion")}
        old = self._store.leases.get((namespace, name))
        if old is not None:
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
            return self._store.replace(namespace, name, {**lease, "metadata": metadata})
        return self._store.create(namespace, {**lease, "metadata": metadata})

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._passing.set()
            self._held_passing.set()
            self._loop.run_until_complete(runner.cleanup())
            self._loop.run_until_complete(_end(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", _PATH, self._serve)
        app.router.add_route("*", _PATH + "/{name}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, _HOST, 0)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        namespace, name = request.match_info["namespace"], request.match_info.get("name", "")
        data = await request.read()
        body = json.loads(data) if data else None
        verb = _verb(request)
        self.requests.append((verb, name or str(((body or {}).get("metadata") or {}).get("name", ""))))
        if not self._passing.is_set():
            self._frozen += 1
            await self._passing.wait()
            self._frozen -= 1
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(RefusedError(401, "Unauthorized", "Unauthorized"))
        if verb in self._forbidden:
            message = f'leases.coordination.k8s.io is forbidden: User "u" cannot {verb} resource "leases"'
            return self._refuse(RefusedError(403, "Forbidden", message))
        fault = self._next_fault(verb)
        if fault is not None and fault.hold:
            self._held += 1
            await self._held_passing.wait()
            self._held -= 1
            fault = None
        if fault is None or fault.apply:
            try:
                reply = await self._do(request, verb, namespace, name, body)
            except RefusedError as error:
                reply = self._refuse(error)
            if fault is None:
                return reply
        if fault.body is not None:
            return web.Response(text=fault.body, status=fault.code, headers=self._headers())
        if fault.code:
            return self._refuse(RefusedError(fault.code, "", "injected"), fault.retry_after)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _next_fault(self, verb: str) -> _Fault | None:
        for fault in self._faults:
            if fault.verb in ("*", verb):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    async def _do(
        self, request: web.Request, verb: str, namespace: str, name: str, body: Any
    ) -> web.StreamResponse:
        match verb:
            case "get":
                return self._reply(self._store.get(namespace, name))
            case "create":
                return self._reply(self._store.create(namespace, body), 201)
            case "update":
                return self._reply(self._store.replace(namespace, name, body))
            case "delete":
                return self._reply(self._store.delete(namespace, name, body))
            case "list":
                return self._list(request, namespace)
            case _:
                return await self._watch(request, namespace)

    def _list(self, request: web.Request, namespace: str) -> web.Response:
        query = request.query
        items = self._store.select(namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        after, limit = query.get("continue", ""), int(query.get("limit") or len(items) or 1)
        items = [item for item in items if item["metadata"]["name"] > after]
        metadata = {"resourceVersion": str(self._store.revision)}
        if len(items) > limit:
            metadata["continue"] = items[limit - 1]["metadata"]["name"]
        return self._reply({"kind": "LeaseList", "metadata": metadata, "items": items[:limit]})

    async def _watch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        query = request.query
        version = int(query.get("resourceVersion") or 0)
        end = self._loop.time() + float(query.get("timeoutSeconds", "60"))
        response = web.StreamResponse(headers={**self._headers(), "Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout_at(end):
                while True:
                    changed = self._changed
                    try:
                        events = self._store.since(version)
                    except RefusedError as error:
                        await response.write(_event("ERROR", _status(error)))
                        break
                    for revision, kind, lease in events:
                        version = revision
                        mine = lease["metadata"]["namespace"] == namespace
                        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
                        if mine and selected(lease, labels, fields):
                            await response.write(_event(kind, lease))
                    await changed.wait()
                    await self._passing.wait()
        return response

    def _reply(self, body: Any, code: int = 200) -> web.Response:
        return web.json_response(body, status=code, headers=self._headers())

    def _refuse(self, error: RefusedError, retry_after: str | None = None) -> web.Response:
        headers = self._headers() | ({"Retry-After": retry_after} if retry_after else {})
        return web.json_response(_status(error), status=error.code, headers=headers)

    def _headers(self) -> dict[str, str]:
        return {"Date": formatdate(time.time() + self.clock_ahead, usegmt=True)}


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def kubeconfig(url: str, token: str, *, ca_file: Path | None = None, user: str = "admin") -> str:
    """Return a kubeconfig for one cluster, user and context."""
    authority = f', certificate-authority: "{ca_file}"' if ca_file else ""
    return f"""\
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "{url}"{authority}}}}}]
users: [{{name: {user}, user: {{token: "{token}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: {user}, namespace: default}}}}]
"""


def _verb(request: web.Request) -> str:
    named = "name" in request.match_info
    match request.method:
        case "GET" if named:
            return "get"
        case "GET":
            return "watch" if request.query.get("watch") == "true" else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "DELETE":
            return "delete"
        case other:
            return other.lower()


def _status(error: RefusedError) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": error.message, "code": error.code}  # type: ignore[dict-item]
    return status | ({"reason": error.reason} if error.reason else {})


def _event(kind: str, subject: Any) -> bytes:
    return json.dumps({"type": kind, "object": subject}).encode() + b"\n"
