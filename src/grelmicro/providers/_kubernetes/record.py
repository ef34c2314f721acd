"""What a Lease says, read tolerantly and written so that client-go and kubectl understand it.

The spec holds what they know: the holder, whole seconds rounded up, times, transitions. Annotations hold what
it has no room for. Those about a holder count only while the write that set them is the last one, so that
another tool's renewal cannot be read with them.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from grelmicro.providers._kubernetes.errors import UnreadableError
from grelmicro.types import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grelmicro.providers._kubernetes.names import Place

MANAGED_BY = {"app.kubernetes.io/managed-by": "grelmicro"}
KIND = "grelmicro/kind"
NAME = "grelmicro/name"
LOCK, ELECTION, SCHEDULE = "lock", "election", "schedule"

_WRITE = "grelmicro/write"
_TOUCH = "grelmicro/touch"
_DURATION = "grelmicro/duration"
_METADATA = "grelmicro/metadata"
_FENCE = "grelmicro/fence"
_FIRED = "grelmicro/fired"
_QUEUE = "grelmicro/queue"
_TURN = "grelmicro/turn"

_UNSTATED = 15.0
"""Seconds of a lease whose holder wrote no duration: client-go's default."""

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class State:
    """What one Lease stands for. Of a free one, everything about the holder is of the last one."""

    holder: str = ""
    """The token that holds it; empty when it was given up."""
    duration: float = 0.0
    acquired_at: datetime = _EPOCH
    renewed_at: datetime = _EPOCH
    transitions: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    fence: int = 0
    """The last fencing token."""
    fired: float | None = None
    """The last fire claimed."""
    queue: tuple[str, ...] = ()
    """The processes that wait, the first first."""
    turn: str = ""
    """The process that was woken when it became free."""
    expires_at: float = -math.inf
    """When its holder's time is over, by this process's monotonic clock; never stored."""

    def is_beside(self, other: State) -> bool:
        """Say whether it differs only in who waits, which is nothing that a holder wrote."""
        return replace(self, queue=other.queue, turn=other.turn) == other


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as it was read."""

    body: Mapping[str, Any]
    uid: str
    version: str
    state: State
    write: str
    """Names the last write by this library."""

    @property
    def signature(self) -> tuple[object, ...]:
        """What changes whenever a holder writes, and when nobody else does."""
        spec = _part(self.body, "spec")
        times = (spec.get("acquireTime"), spec.get("renewTime"), spec.get("leaseTransitions"))
        return (self.uid, self.write, self.state.holder, spec.get("leaseDurationSeconds"), *times)


def new_write() -> str:
    """Return a name for a write, unlike any other."""
    return os.urandom(8).hex()


def parse(place: Place, body: Mapping[str, Any]) -> Record:
    """Read a Lease. That of an election may have been written by somebody else, as client-go.

    Raises:
        UnreadableError: it is something else.
    """
    metadata, spec = _part(body, "metadata"), _part(body, "spec")
    annotations = _part(metadata, "annotations")
    name = annotations.get(NAME)
    write, _, written_at = str(annotations.get(_WRITE, "")).partition(" ")
    if name != place.name and not (place.kind == ELECTION and name is None):
        raise UnreadableError("it was not written for this name")
    try:
        renewed_at = _time(spec.get("renewTime"))
        ours = bool(write) and renewed_at is not None and _time(written_at) == renewed_at
        renewed_at = renewed_at or _time(metadata.get("creationTimestamp")) or _EPOCH
        seconds = spec.get("leaseDurationSeconds")
        state = State(
            holder=spec.get("holderIdentity") or "",
            duration=_UNSTATED if seconds is None else float(seconds),
            acquired_at=_time(spec.get("acquireTime")) or renewed_at,
            renewed_at=renewed_at,
            transitions=int(spec.get("leaseTransitions") or 0),
            fence=int(annotations.get(_FENCE, 0)),
            fired=float(annotations[_FIRED]) if _FIRED in annotations else None,
            queue=tuple(annotations.get(_QUEUE, "").split()),
            turn=annotations.get(_TURN, ""),
        )
        if ours:
            said: dict[object, object] = json.loads(annotations.get(_METADATA, "{}"))
            state = replace(
                state,
                duration=float(annotations.get(_DURATION, state.duration)),
                metadata={str(key): str(value) for key, value in said.items()},
            )
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableError(f"{type(error).__name__} while reading it") from error
    # managedFields are long, and the server keeps them when they are left out.
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    return Record(
        body={**body, "metadata": kept},
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        state=state,
        write=write,
    )


def render(place: Place, state: State, base: Record | None, write: str) -> dict[str, Any]:
    """Return the Lease that says `state`, replacing `base`, with all in it that is none of our business."""
    body = base.body if base else {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    metadata = _part(body, "metadata") or {"name": place.lease, "namespace": place.namespace}
    annotations = _part(metadata, "annotations")
    renewed_at = _micro_time(state.renewed_at)
    annotations[NAME] = place.name
    annotations[_WRITE] = f"{write} {renewed_at}"
    _put(annotations, _DURATION, repr(state.duration) if state.holder else None)
    _put(annotations, _METADATA, json.dumps(dict(state.metadata)) if state.metadata else None)
    _put(annotations, _FENCE, str(state.fence) if state.fence else None)
    _put(annotations, _FIRED, None if state.fired is None else repr(state.fired))
    _put_waiting(annotations, state)
    metadata["annotations"] = annotations
    metadata["labels"] = {**_part(metadata, "labels"), **MANAGED_BY, KIND: place.kind}
    spec = _part(body, "spec") | {
        "holderIdentity": state.holder,
        "leaseDurationSeconds": min(max(math.ceil(state.duration), 1), MAX_SECONDS),
        "acquireTime": _micro_time(state.acquired_at),
        "renewTime": renewed_at,
        "leaseTransitions": min(state.transitions, MAX_SECONDS),
    }
    return {**body, "metadata": metadata, "spec": spec}


def touched(record: Record, state: State) -> dict[str, Any]:
    """Return the same Lease with nothing changed but who waits, and its resourceVersion once written."""
    metadata = _part(record.body, "metadata")
    annotations = {**_part(metadata, "annotations"), _TOUCH: new_write()}
    _put_waiting(annotations, state)
    metadata["annotations"] = annotations
    return {**record.body, "metadata": metadata}


def _put_waiting(annotations: dict[str, Any], state: State) -> None:
    _put(annotations, _QUEUE, " ".join(state.queue) or None)
    _put(annotations, _TURN, state.turn or None)


def _part(whole: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of an object in an object; one that is null or absent is empty."""
    part = whole.get(key)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise UnreadableError(f"its {key} is no object")
    return dict(cast("dict[str, Any]", part))


def _put(annotations: dict[str, Any], key: str, value: str | None) -> None:
    if value is None:
        annotations.pop(key, None)
    else:
        annotations[key] = value


def _micro_time(moment: datetime) -> str:
    """Return what the server takes: exactly six decimals and an offset."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _time(text: Any) -> datetime | None:
    """Return a time with or without a fraction, in UTC unless it says otherwise."""
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
