"""What is sent to Redis: scripts, and calls that carry one to a server and its reply back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncio

Reply: TypeAlias = "bytes | int | list[Reply] | None"
"""What a server answers, undecoded."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"


def pack(*parts: bytes) -> bytes:
    """Return the parts as the arguments of a command, without the line that counts them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Script:
    """A Lua script with its digest, computed once."""

    def __init__(self, source: bytes) -> None:
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self.by_digest = pack(b"EVALSHA", digest)
        self.in_full = pack(b"EVAL", source)


@dataclass(slots=True, eq=False)
class Call:
    """One request on its way. Everything but its future belongs to the channel that has it."""

    future: asyncio.Future[Reply]
    deadline: float
    """Loop time after which its caller is told that no reply came."""
    script: Script | None
    """What runs; without one, `arguments` is a whole command."""
    count: int
    arguments: bytes
    key: bytes = b""
    """The key that it is about, if any."""
    finish: bool = False
    """Whether it is carried through when its caller has gone."""
    sent_at: float = 0.0
    in_full: bool = False
    """Whether the script's source travels along, the server not having it."""
    asking: bool = False
    skip: int = 0
    """How many replies come before its own."""
    redirects: int = 0
    retried: bool = False
    uncertain: bool = False
    """Whether a try before the last one may have taken effect, its reply being lost."""

    @property
    def wanted(self) -> bool:
        """Whether it still has a purpose."""
        return self.finish or not self.future.done()

    def packed(self) -> bytes:
        """Return the bytes to send."""
        self.skip = int(self.asking)
        prefix = ASKING if self.asking else b""
        if self.script is None:
            return b"%b*%d\r\n%b" % (prefix, self.count, self.arguments)
        head = self.script.in_full if self.in_full else self.script.by_digest
        return b"%b*%d\r\n%b%b" % (prefix, self.count, head, self.arguments)

    def resolve(self, reply: Reply) -> None:
        """Hand the reply to the caller, if there is one."""
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: BaseException) -> None:
        """Raise in the caller, if there is one."""
        if not self.future.done():
            self.future.set_exception(error)
