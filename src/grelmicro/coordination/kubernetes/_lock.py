"""Locks on Leases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.coordination.abc import QueueingLockBackend, Refusal, Succession
from grelmicro.coordination.kubernetes import _decisions
from grelmicro.coordination.kubernetes._adapter import KubernetesAdapter, checked_lease, is_free
from grelmicro.errors import OutOfContextError
from grelmicro.providers._kubernetes.record import LOCK

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from grelmicro.providers.kubernetes import KubernetesProvider


class KubernetesLockAdapter(KubernetesAdapter, QueueingLockBackend):
    """A `QueueingLockBackend` on Leases. A lease ends its duration after it was seen to begin.

    No other machine's clock takes part; a process that sees a lease for the first time waits for the whole of
    its duration, unless it is released. Released locks are deleted two minutes later. Fencing tokens count
    on from the last one, or from the API server's clock, whatever is later.
    """

    component_keyword: ClassVar[str] = "lock"
    kind: ClassVar[str] = LOCK

    def __init__(
        self,
        *,
        provider: KubernetesProvider | None = None,
        namespace: str | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__(provider=provider, namespace=namespace, prefix=prefix)
        self._queued: set[str] = set()
        """The names in whose queue this process may be."""

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        decide = partial(_decisions.acquire, token, checked_lease(token, duration))
        fence: int | None = await self._submit(name, decide)
        return fence

    @override
    async def acquire_or_enqueue(self, *, name: str, token: str, duration: float) -> int | Refusal:
        duration = checked_lease(token, duration)
        decide = partial(_decisions.acquire_or_enqueue, token, self._process, duration)
        self._queued.add(name)
        answer: int | Refusal = await self._submit(name, decide)
        if not isinstance(answer, Refusal):
            self._queued.discard(name)
        return answer

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled.
        decide = partial(_decisions.release, token, self._process)
        released: bool = await self._submit(name, decide, finish=True)
        return released

    @override
    async def hand_over(self, *, name: str, token: str, to: str, duration: float) -> Succession:
        decide = partial(_decisions.hand_over, token, to, self._process, checked_lease(to, duration))
        succession: Succession = await self._submit(name, decide)
        return succession

    @override
    async def pass_on(self, *, name: str) -> None:
        await self._submit(name, partial(_decisions.pass_on, self._process))

    @override
    def on_turn(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        process = self._process

        def is_our_turn(lease: Mapping[str, Any]) -> bool:
            match lease:
                case {"metadata": {"annotations": {"grelmicro/turn": turn}}}:
                    return turn == process and is_free(lease)
                case _:
                    return False

        deafen = self._listen(name, is_our_turn, wake)

        def stop() -> None:
            deafen()
            self._leave(name)

        return stop

    @override
    async def locked(self, *, name: str) -> bool:
        locked: bool = await self._submit(name, _decisions.locked, writes=False)
        return locked

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        owned: bool = await self._submit(name, partial(_decisions.owned, token), writes=False)
        return owned

    @property
    def _process(self) -> str:
        return self._provider.exchange.process

    def _leave(self, name: str) -> None:
        """Leave the queue, in the background, if nobody here waits any more."""
        if name not in self._queued:
            return
        try:
            exchange = self._provider.exchange
            if exchange.watch(self._namespace).has_ears(self.lease_name(name)):
                return
            self._queued.discard(name)
            left = self._submit(name, partial(_decisions.leave, self._process))
        except OutOfContextError:
            return  # closed; whoever is called next in vain falls out of the queue
        left.add_done_callback(_ignore_failure)


def _ignore_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
