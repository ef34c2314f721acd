"""One watch for a namespace, shared by everybody who waits for a Lease in it.

It resumes where it was cut off. When the server has forgotten that point (410), or at the start, it begins
anew, and whoever listens looks for himself. While it does not come about, listeners poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grelmicro.providers._kubernetes.errors import (
    ApiError,
    NoReplyError,
    UnreachableError,
    explained,
)
from grelmicro.providers._kubernetes.record import MANAGED_BY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grelmicro.providers._kubernetes.api import LeaseApi

    Hear = Callable[[Mapping[str, Any] | None], object]
    """Gets a Lease as it then was, or None when it was deleted or may have changed unseen."""

logger = logging.getLogger("grelmicro.providers")

_LABELS = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
_SECONDS = 30.0
"""How long one watch lasts. One that is silent for longer is dead."""
_LONGEST_PAUSE = 10.0
_FORBIDDEN_PAUSE = 60.0


class Watch:
    """Tells listeners of the Leases that change. It runs while somebody listens, and half a minute longer."""

    def __init__(self, api: LeaseApi, where: str, namespace: str) -> None:
        self._api = api
        self._where = where
        self._namespace = namespace
        self._ears: dict[str, list[Hear]] = {}
        self._task: asyncio.Task[None] | None = None
        self._version = ""
        self._failures = 0
        self.is_up = False
        """Whether changes are told now."""

    def listen(self, lease: str, hear: Hear) -> Callable[[], None]:
        """Call `hear` for every change of a Lease; returns what ends that."""
        ears = self._ears.setdefault(lease, [])
        ears.append(hear)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="grelmicro-kubernetes-watch"
            )

        def stop() -> None:
            if hear in ears:
                ears.remove(hear)
            if not ears and self._ears.get(lease) is ears:
                del self._ears[lease]

        return stop

    def has_ears(self, lease: str) -> bool:
        """Say whether anybody listens to a Lease."""
        return lease in self._ears

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await asyncio.sleep(0)  # for the connection to close

    async def _run(self) -> None:
        try:
            while self._ears:
                try:
                    await self._watch_once()
                except (ApiError, NoReplyError, UnreachableError) as error:
                    self.is_up = False
                    await asyncio.sleep(self._pause_after(error))
        finally:
            self.is_up, self._version = False, ""

    async def _watch_once(self) -> None:
        if not self._version:
            async with self._api.slots:
                page = await self._api.page(self._namespace, labels=_LABELS, limit=1)
            self._version = page["metadata"]["resourceVersion"]
        seconds = random.uniform(_SECONDS / 2, _SECONDS)  # noqa: S311
        async with (
            self._api.watch(
                self._namespace, labels=_LABELS, version=self._version, seconds=seconds
            ) as events,
            aclosing(events),
        ):
            self._failures = 0
            if not self.is_up:
                self.is_up = True
                for lease in list(self._ears):
                    self._tell(lease, None)
            async for kind, subject in events:
                self._take(kind, subject)

    def _take(self, kind: str, subject: Mapping[str, Any]) -> None:
        match subject:
            case {"code": int() as code} if kind == "ERROR":
                raise ApiError(code, str(subject.get("reason")), str(subject.get("message")))
            case {"metadata": {"resourceVersion": str() as version}} if kind == "BOOKMARK":
                self._version = version
            case {"metadata": {"resourceVersion": str() as version, "name": str() as lease}}:
                self._version = version
                self._tell(lease, None if kind == "DELETED" else subject)
            case _:
                raise NoReplyError("the watch sent something that is no event")

    def _tell(self, lease: str, subject: Mapping[str, Any] | None) -> None:
        for hear in list(self._ears.get(lease, ())):
            hear(subject)

    def _pause_after(self, error: Exception) -> float:
        """Return the seconds until the next try, having said once that this one failed."""
        if isinstance(error, ApiError) and error.status == HTTPStatus.GONE:
            self._version = ""
            return 0.0
        self._failures += 1
        forbidden = isinstance(error, ApiError) and error.status == HTTPStatus.FORBIDDEN
        if self._failures == 1:
            verb = "watch" if self._version else "list"
            reason = explained(error, self._where, verb, None, self._namespace)
            logger.warning("Waiting for Leases polls until they can be watched: %s", reason)
        if forbidden:
            return _FORBIDDEN_PAUSE
        longest = min(0.1 * 2**self._failures, _LONGEST_PAUSE)
        return random.uniform(longest / 2, longest)  # noqa: S311
