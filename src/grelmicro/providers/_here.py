"""Where something was opened: on which event loop, in which process."""

from __future__ import annotations

import asyncio
import os

from grelmicro.errors import OutOfContextError


class Here:
    """The running asyncio loop and this process, to be checked again at each use.

    Raises:
        OutOfContextError: no asyncio loop is running.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise OutOfContextError(f"{what} runs on asyncio only") from None

    def require(self) -> None:
        """Return if it is used where it was opened.

        Raises:
            OutOfContextError: it is not, and its connections cannot be used.
        """
        if os.getpid() != self._pid:
            raise OutOfContextError(
                f"{self._what} was opened before this process was forked, and a connection cannot be shared: "
                "open a provider in the child instead"
            )
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            raise OutOfContextError(
                f"{self._what} was opened on another event loop: use it there (from a thread: through "
                "from_thread), or open another one here"
            )
