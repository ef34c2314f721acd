"""What the demo prints: a line per event, in columns, coloured where a terminal shows it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from grelmicro.demo._events import What

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grelmicro.demo._events import Event
    from grelmicro.demo._judge import Check

_RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _BOLD, _PLAIN = "31", "32", "33", "34", "35", "36", "1", ""

# Use, colour and text of each kind of event that is shown.
_LINES = {
    What.STARTED: ("", _PLAIN, "is started"),
    What.READY: ("", _PLAIN, "is up"),
    What.STUCK: ("lock", _YELLOW, "holds cart and hangs, fencing token {fence}"),
    What.WROTE: ("lock", _CYAN, "holds cart, counts {before} -> {value}, fencing token {fence}"),
    What.LEADS: ("leader", _MAGENTA, "leads"),
    What.LED: ("leader", _PLAIN, "leads no longer"),
    What.RUNS: ("job", _BLUE, "runs the scheduled job"),
    What.KILLED: ("", _RED, "is KILLED"),
}
_WITHOUT_LOCK = {What.STUCK: "hangs", What.WROTE: "counts {before} -> {value} without the lock"}


class Console:
    """Prints for people. Never a secret: events hold none."""

    def __init__(self, out: TextIO, began: float) -> None:
        self._out = out
        self._began = began
        self._colours = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def headline(self, text: str) -> None:
        """Print what comes next."""
        self._print(_BOLD, text)

    def event(self, event: Event) -> None:
        """Print an event, if it is one of those that are shown."""
        if event.what not in _LINES:
            return
        use, colour, text = _LINES[event.what]
        if event.fence is None:
            text = _WITHOUT_LOCK.get(event.what, text)
        told = text.format(before=(event.value or 0) - 1, value=event.value, fence=event.fence)
        self._print(colour, f"{event.at - self._began:6.2f} s  worker {event.worker:<2}  {use:6}  {told}")

    def verdict(self, checks: Iterable[Check]) -> None:
        """Print every sentence of the verdict."""
        for check in checks:
            mark, colour = ("ok ", _GREEN) if check.good else ("BAD", _RED)
            self._print(colour, f"  {mark} {check.name:10}  {check.text}")

    def closing(self, text: str, *, good: bool) -> None:
        """Print the last line."""
        self._print(_GREEN if good else _RED, text)

    def _print(self, colour: str, text: str) -> None:
        if self._colours and colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        self._out.write(text + "\n")
        self._out.flush()
