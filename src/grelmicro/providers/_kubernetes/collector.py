"""Deletes the Leases that released locks leave behind.

A released lock keeps its Lease for a while: it holds the last fencing token, and makes harmless any write
that is still on its way. The process that released it deletes it after that. What such processes did not live
to delete, and the Leases of holders that died, are found by looking through the namespace now and then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grelmicro.providers._kubernetes.errors import (
    ApiError,
    NoReplyError,
    UnreachableError,
    UnreadableError,
    explained,
)
from grelmicro.providers._kubernetes.names import Place
from grelmicro.providers._kubernetes.record import KIND, LOCK, MANAGED_BY, parse
from grelmicro.providers._kubernetes.unsettled import SETTLED_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grelmicro.providers._kubernetes.api import LeaseApi
    from grelmicro.providers._kubernetes.record import Record

logger = logging.getLogger("grelmicro.providers")

RETENTION = SETTLED_AFTER
"""Seconds for which a released lock keeps its Lease, once a process knows of it."""

_OLD = 3600.0
"""Seconds by the server's clock after which a released lock's Lease goes also when it was just found."""

_FIRST_SWEEP = 30.0
_SWEEP = 600.0
_PAGE = 250
_MOST = 50_000
_LABELS = ",".join(f"{key}={value}" for key, value in (*MANAGED_BY.items(), (KIND, LOCK)))


class Collector:
    """Works in two background tasks, from the first lock on. What it may not do, it says once and lets be."""

    def __init__(self, api: LeaseApi, where: str, *, retention: float | None = None) -> None:
        self._api = api
        self._where = where
        self._retention = RETENTION if retention is None else retention
        self._loop = asyncio.get_running_loop()
        self._due: OrderedDict[Place, tuple[float, Record]] = OrderedDict()
        self._found: dict[tuple[str, str], tuple[str, float]] = {}
        self._namespaces: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._allowed = True

    def written(self, place: Place, record: Record) -> None:
        """Note that this process wrote a Lease."""
        if place.kind != LOCK or not self._allowed:
            return
        self._namespaces.add(place.namespace)
        self._due.pop(place, None)
        if not record.state.holder:
            self._due[place] = (self._loop.time() + self._retention, record)
            if len(self._due) > _MOST:
                self._due.popitem(last=False)
            self._wake.set()
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(work, name="grelmicro-kubernetes-collector")
                for work in (self._delete_released(), self._sweep_now_and_then())
            ]

    async def aclose(self) -> None:
        """Stop; what is left is for others to find."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def sweep(self) -> None:
        """Look through the namespaces once, and delete what was released or given up long enough ago."""
        now, found = self._loop.time(), dict[tuple[str, str], tuple[str, float]]()
        for namespace in list(self._namespaces):
            after = ""
            while True:
                page = await self._page(namespace, after)
                for record in _records(namespace, page["items"]):
                    key = (namespace, record.body["metadata"]["name"])
                    version, since = self._found.get(key, ("", now))
                    since = since if version == record.version else now
                    if self._is_over(record, now - since):
                        await self._delete(namespace, record)
                    elif len(found) < _MOST:
                        found[key] = (record.version, since)
                match page:
                    case {"metadata": {"continue": str() as after}} if after:
                        pass
                    case _:
                        break
        self._found = found

    async def _page(self, namespace: str, after: str) -> dict[str, Any]:
        async with self._api.slots:
            return await self._api.page(namespace, labels=_LABELS, limit=_PAGE, after=after)

    def _is_over(self, record: Record, unchanged: float) -> bool:
        if record.state.holder:
            return unchanged >= record.state.duration + self._retention
        age = self._api.clock.epoch() - record.state.renewed_at.timestamp()
        return unchanged >= self._retention or age >= _OLD

    async def _delete_released(self) -> None:
        while self._allowed:
            if not self._due:
                self._wake.clear()
                await self._wake.wait()
                continue
            place, (due, record) = next(iter(self._due.items()))
            if due > self._loop.time():
                await asyncio.sleep(due - self._loop.time())
                continue
            del self._due[place]
            with suppress(ApiError, NoReplyError, UnreachableError):  # a sweep will find it
                await self._delete(place.namespace, record)

    async def _sweep_now_and_then(self) -> None:
        pause = _FIRST_SWEEP
        while self._allowed:
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
            pause = _SWEEP
            try:
                await self.sweep()
            except (NoReplyError, UnreachableError):
                continue
            except ApiError as error:
                if error.status == HTTPStatus.FORBIDDEN:
                    self._give_up("list", error)
                    return

    async def _delete(self, namespace: str, record: Record) -> None:
        name = record.body["metadata"]["name"]
        try:
            async with self._api.slots:
                await self._api.delete(namespace, name, uid=record.uid, version=record.version)
        except ApiError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                return  # in use again, or somebody else was quicker
            if error.status == HTTPStatus.FORBIDDEN:
                self._allowed = False
                self._due.clear()
                self._give_up("delete", error)
                return
            raise

    def _give_up(self, verb: str, error: ApiError) -> None:
        namespace = ", ".join(sorted(self._namespaces))
        reason = explained(error, self._where, verb, None, namespace)
        logger.warning("The Leases of locks used once will stay, as they cannot be collected: %s", reason)


def _records(namespace: str, items: Iterable[Any]) -> Iterable[Record]:
    for item in items:
        match item:
            case {"metadata": {"name": str() as lease, "annotations": {"grelmicro/name": str() as name}}}:
                with suppress(UnreadableError):
                    yield parse(Place(namespace, lease, LOCK, name), item)
            case _:
                pass  # none of ours, whatever its label says
