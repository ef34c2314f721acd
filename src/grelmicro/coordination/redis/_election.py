"""Elections in Redis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from grelmicro.coordination._clock import utc
from grelmicro.coordination.abc import LeaderRecord, WakingElectionBackend
from grelmicro.coordination.redis._adapter import RedisAdapter, load_script, milliseconds
from grelmicro.providers._listening import Listening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grelmicro.providers._redis.calls import Call, Reply
    from grelmicro.providers.redis import RedisProvider

_CAMPAIGN = load_script("_record", "campaign")
_RESIGN = load_script("_record", "resign")
_LEADER = load_script("_record", "leader")

_MEMORY = milliseconds(7 * 86400)
_MICROSECONDS = 1_000_000


class RedisLeaderElectionAdapter(RedisAdapter, WakingElectionBackend):
    """A `LeaderElectionBackend` on Redis: leases end, and records are dated, by the server's clock.

    `transitions` is counted on for 7 days after a lease ended, and starts at 0 after that; then nothing of
    the election is left on the server. An unreadable record is an error, never an election to take over.
    """

    component_keyword: ClassVar[str] = "election"
    kind: ClassVar[bytes] = b"election"

    def __init__(self, *, provider: RedisProvider | None = None, prefix: str = "") -> None:
        super().__init__(provider=provider, prefix=prefix)
        channel = f"{prefix}grelmicro:vacancy"
        self._channel = channel.encode()
        self._vacancies = Listening(self._provider.subscribe, self._new_channel, (channel,))

    @property
    @override
    def wakes(self) -> bool:
        return self._vacancies.heard

    @override
    def on_vacancy(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._vacancies.on(name, wake)

    @override
    async def acquire_or_renew(
        self, *, name: str, token: str, duration: float, metadata: Mapping[str, str] | None = None
    ) -> LeaderRecord:
        call = self._run(
            _CAMPAIGN,
            (self._key(name),),
            token.encode(),
            milliseconds(duration),
            repr(float(duration)).encode(),
            json.dumps(dict(metadata or {})).encode(),
            _MEMORY,
        )
        return self._record(call, await call.future)

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled. "Not held" after a lost reply: the first try ended it.
        arguments = (token.encode(), _MEMORY, self._channel, name.encode())
        call = self._run(_RESIGN, (self._key(name),), *arguments, finish=True)
        return await self._flag(call) or call.uncertain

    @override
    async def get(self, *, name: str) -> LeaderRecord | None:
        call = self._run(_LEADER, (self._key(name),))
        reply = await call.future
        return None if reply is None else self._record(call, reply)

    def _record(self, call: Call, reply: Reply) -> LeaderRecord:
        try:
            values = reply if isinstance(reply, list) else []
            holder, _, duration, acquired, renewed, transitions, metadata = [
                value.decode() for value in values if isinstance(value, bytes)
            ]
            return LeaderRecord(
                holder=holder,
                lease_duration=float(duration),
                acquired_at=utc(int(acquired) / _MICROSECONDS),
                renewed_at=utc(int(renewed) / _MICROSECONDS),
                transitions=int(transitions),
                metadata={str(key): str(value) for key, value in json.loads(metadata).items()},
            )
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._bad_reply(call) from error
