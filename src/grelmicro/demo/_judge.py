"""The verdict: functions of what was recorded, and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from grelmicro.demo._events import What
from grelmicro.demo._history import overlaps, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grelmicro.demo._events import Event
    from grelmicro.demo._history import Span
    from grelmicro.demo._plan import Plan

_CLOCKS = 0.05
"""Seconds by which the server's clock may differ from ours over one lease."""
_LATE_BY = 0.75
"""Ticks that a run may be recorded late on a busy machine: the next one seems to follow too soon then."""
_SLOWNESS = 1.5
"""Seconds that a busy machine may take to start what is due."""


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence of the verdict."""

    name: str
    good: bool
    text: str


def judge_lock(events: Sequence[Event], plan: Plan, *, counter: int | None) -> list[Check]:
    """Judge the counting: `counter` is what stood in the file at the end."""
    holds = spans(events, What.TOOK, What.LEAVES, lease=plan.lease)
    return [
        judge_total(events, expected=plan.total, counter=counter),
        judge_exclusion("holders", "holds of the lock", holds),
        judge_fencing(holds),
        judge_takeover(holds, lease=plan.lease),
    ]


def judge_roles(events: Sequence[Event], plan: Plan, *, window: tuple[float, float]) -> list[Check]:
    """Judge leader and schedule: `window` is when nobody was being killed."""
    terms = spans(events, What.LEADS, What.LED, renewed=What.LEADING, lease=plan.lease)
    runs = spans(events, What.RUNS, What.RAN)
    return [
        judge_exclusion("leaders", "terms of leading", terms),
        judge_succession(terms, lease=plan.lease, retry=plan.retry),
        judge_exclusion("job", "runs of the job", runs),
        judge_schedule(runs, tick=plan.tick, window=window),
    ]


def judge_total(events: Sequence[Event], *, expected: int, counter: int | None) -> Check:
    """Every increment was done, each on top of the one before, and none was lost."""
    writes = sorted((event for event in events if event.what is What.WROTE), key=lambda event: event.at)
    values = [event.value for event in writes]
    lost = len(values) - (counter or 0)
    text = f"the counter is {counter} after {len(values)} increments; {expected} were due"
    if lost > 0:
        text += f"; {lost} updates were LOST"
    good = counter == expected and values == list(range(1, expected + 1))
    return Check("total", good, text)


def judge_exclusion(name: str, what: str, found: Sequence[Span]) -> Check:
    """No two spans overlap."""
    clashes = overlaps(found)
    text = f"{len(found)} {what}, {len(clashes)} overlaps"
    if clashes:
        one, other = clashes[0]
        text += f" (first: workers {one.worker} and {other.worker})"
    return Check(name, bool(found) and not clashes, text)


def judge_fencing(holds: Sequence[Span]) -> Check:
    """Fencing tokens grow from grant to grant."""
    tokens = [hold.fence for hold in holds if hold.fence is not None]
    if not tokens or len(tokens) < len(holds):
        return Check("fencing", good=False, text=f"{len(tokens)} fencing tokens for {len(holds)} holds")
    twice = len(tokens) - len(set(tokens))
    back = sum(later < earlier for earlier, later in pairwise(tokens))
    text = f"{len(tokens)} tokens, {twice} given twice, {back} out of the order of the grants"
    return Check("fencing", not twice and not back, text)


def judge_takeover(holds: Sequence[Span], *, lease: float) -> Check:
    """A worker was killed while it held the lock, and the next one got it after the lease, not before."""
    for hold, following in pairwise(holds):
        if hold.killed is not None and hold.asked is not None:
            delay = following.start - hold.asked
            text = f"the killed holder's lock was taken {delay:.2f} s after its lease of {lease:g} s began"
            return Check("takeover", _after_lease(following, hold, lease), text)
    return Check(
        "takeover", good=False, text="nobody took the lock after a worker that was killed holding it"
    )


def judge_succession(terms: Sequence[Span], *, lease: float, retry: float) -> Check:
    """Killed leaders were replaced: not before their lease was over, and soon after."""
    replaced = [(term, following) for term, following in pairwise(terms) if term.killed is not None]
    if not replaced:
        return Check("succession", good=False, text="no leader was killed and replaced")
    delays = [following.start - term.end for term, following in replaced]
    good = all(_after_lease(following, term, lease) for term, following in replaced)
    text = ", ".join(f"{delay:.2f} s" for delay in delays)
    return Check(
        "succession",
        good and max(delays) <= lease + 1.1 * retry + _SLOWNESS,
        f"a new leader {text} after the kill; due within lease {lease:g} s + retry {retry:g} s",
    )


def judge_schedule(runs: Sequence[Span], *, tick: float, window: tuple[float, float]) -> Check:
    """The job ran once per tick over all workers: never more often, and in each while nobody was killed."""
    starts = [run.start for run in runs]
    shortest = min((later - earlier for earlier, later in pairwise(starts)), default=0.0)
    # In ticks: how much sooner than their number allows some runs followed each other.
    early = max(
        (
            number - (later - earlier) / tick
            for i, earlier in enumerate(starts)
            for number, later in enumerate(starts[i:])
        ),
        default=0.0,
    )
    seen = sum(window[0] <= start <= window[1] for start in starts)
    ticks = (window[1] - window[0]) / tick
    good = early <= _LATE_BY and ticks - 1 <= seen <= ticks + 1 + _LATE_BY
    text = f"{seen} runs in {ticks:.1f} ticks of {tick:g} s, no two closer than {shortest:.2f} s"
    return Check("schedule", good, text)


def _after_lease(following: Span, span: Span, lease: float) -> bool:
    return span.asked is not None and following.start >= span.asked + lease - _CLOCKS
