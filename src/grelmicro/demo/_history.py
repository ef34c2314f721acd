"""From events to spans: who held, led or ran, from when to when."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grelmicro.demo._events import What

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from grelmicro.demo._events import Event


@dataclass(frozen=True, slots=True)
class Span:
    """A time during which one worker had something that no other may have."""

    worker: int
    start: float
    end: float
    asked: float | None = None
    """When the last known request for it was made: its lease does not end before that plus its length."""
    fence: int | None = None
    killed: float | None = None
    """When its worker was killed inside it."""


def spans(
    events: Iterable[Event], first: What, last: What, *, renewed: What | None = None, lease: float = math.inf
) -> list[Span]:
    """Pair the events `first` and `last` of each worker, ordered by their start.

    `renewed` events tell of later requests for what is held. The last span of a killed worker ends when it
    was killed, or with its lease when that was earlier. One that nothing ended goes on for ever.
    """
    open_: dict[int, Span] = {}
    found: list[Span] = []
    for event in sorted(events, key=lambda event: event.at):
        span = open_.get(event.worker)
        if event.what is first:
            if span is not None:
                found.append(span)
            open_[event.worker] = Span(event.worker, event.at, math.inf, event.asked, event.fence)
        elif span is None:
            continue
        elif event.what is last:
            found.append(replace(open_.pop(event.worker), end=event.at))
        elif event.what is What.KILLED:
            end = event.at if span.asked is None else min(event.at, span.asked + lease)
            found.append(replace(open_.pop(event.worker), end=end, killed=event.at))
        elif event.what is renewed:
            open_[event.worker] = replace(span, asked=event.asked)
    return sorted([*found, *open_.values()], key=lambda span: span.start)


def overlaps(ordered: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Return every two spans that share an instant."""
    return [
        (one, other)
        for index, one in enumerate(ordered)
        for other in ordered[index + 1 :]
        if other.start < one.end
    ]
