"""Which moments a cron expression means, in a time zone with its clock changes.

The arithmetic is cronsim's. Against croniter it was compared at both changes in Europe/Zurich,
America/New_York, Australia/Lord_Howe (half an hour) and America/Santiago (at midnight): croniter runs a
fixed hour twice when the hour repeats, cronsim once. Two things are added here. cronsim takes
`*/15 2 * * *` for elapsed time, although its hour is fixed: the minute is spelled out first. And where clocks
change it may yield one moment twice, or one before the start: what is not later is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from grelmicro.coordination._clock import utc
from grelmicro.task.errors import TaskDeclarationError

if TYPE_CHECKING:
    from cronsim import CronSim

_FIELDS = 5
_HOURS = 24
_LONGEST_CHANGE = 3 * 3600
"""Seconds: longer than clocks change in any zone today."""


class CronExpression:
    """Five fields: minute, hour, day of month, month, day of week.

    Where clocks change, an expression with a fixed hour matches each time of day once: a time that is
    skipped, right after the gap; a time that is repeated, at its first pass. An expression whose hour
    begins with `*`, or lists every hour, follows elapsed time: nothing in the gap, and both passes of what
    is repeated. When both the day of month and the day of week are restricted, either may match.

    Moments are UTC epoch seconds.
    """

    def __init__(self, expression: str, timezone: str | tzinfo = "UTC") -> None:
        """Parse both.

        Raises:
            TaskDeclarationError: a field breaks a rule, no moment ever matches, or no such time zone is
                known.
            ImportError: the extra `cron` is not installed.
        """
        self._simulate = _simulator()
        self._known: tuple[float, float] | None = None
        self._zone = _zone(timezone)
        self._expression = self._normalised(_fields(expression))

    def after(self, moment: float) -> Iterator[float]:
        """Yield the matches later than `moment`, each later than the one before."""
        last = moment
        for match in self._simulate(self._expression, self._local(moment)):
            at = match.timestamp()
            if at > last:
                last = at
                yield at

    def next(self, moment: float) -> float:
        """Return the first match later than `moment`."""
        if self._known is None or self._known[0] != moment:
            self._known = (moment, next(self.after(moment)))
        return self._known[1]

    def latest(self, after: float, until: float) -> float | None:
        """Return the last match later than `after` and not later than `until`."""
        if self.next(after) > until:
            return None
        # Looking backwards is only a hint: where clocks change it may find other moments.
        backwards = self._simulate(self._expression, self._local(math.floor(until) + 1), reverse=True)
        hint = next(backwards, None)
        start = after if hint is None else max(after, hint.timestamp() - _LONGEST_CHANGE)
        found = self._last(start, until)
        return self._last(after, until) if found is None else found

    def count(self, after: float, before: float, *, limit: int) -> int:
        """Count the matches between the two, both excluded, up to `limit`."""
        return sum(1 for _ in islice(takewhile(lambda match: match < before, self.after(after)), limit))

    def _last(self, after: float, until: float) -> float | None:
        last = None
        for last in takewhile(lambda match: match <= until, self.after(after)):  # noqa: B007 - the last one counts
            pass
        return last

    def _local(self, moment: float) -> datetime:
        return utc(moment).astimezone(self._zone)

    def _normalised(self, fields: list[str]) -> str:
        from cronsim import CronSimError  # noqa: PLC0415 - an extra

        try:
            simulation = self._simulate(" ".join(fields), datetime(2024, 1, 1, tzinfo=UTC))
            next(simulation)
        except CronSimError as problem:
            msg = f"expr: not a cron expression ({str(problem).lower()})"
            raise TaskDeclarationError(msg) from None
        except StopIteration:
            msg = "expr: no date ever matches it"
            raise TaskDeclarationError(msg) from None
        minute, hour, *dates = fields
        if len(simulation.hours) == _HOURS:
            hour = "*"
        elif not hour.startswith("*"):
            minute = minute.replace("*", "0-59")
        return " ".join((minute, hour, *dates))


def _simulator() -> type[CronSim]:
    try:
        from cronsim import CronSim  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = 'Cron schedules need the extra "cron". Install it with: pip install ".[cron]"'
        raise ImportError(msg) from error
    return CronSim


def _fields(expression: Any) -> list[str]:
    if not isinstance(expression, str):
        msg = f"expr: must be a string, not {type(expression).__name__}"
        raise TaskDeclarationError(msg)
    fields = expression.split()
    if len(fields) != _FIELDS:
        msg = (
            f"expr: must have {_FIELDS} fields (minute, hour, day of month, month, day of week), "
            f"not {len(fields)}"
        )
        raise TaskDeclarationError(msg)
    return fields


def _zone(timezone: Any) -> tzinfo:
    if isinstance(timezone, tzinfo):
        return timezone
    if timezone == "UTC":  # known also where no time zone data is installed
        return UTC
    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, AttributeError, OSError):
        msg = "timezone: must be the name of a known IANA time zone, such as Europe/Zurich"
        raise TaskDeclarationError(msg) from None
