"""Where a lock, an election or a schedule is kept: any name of ours, as the name of a Lease."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_READABLE = 100
_HASH = 20  # hexadecimal digits: 80 bits


@dataclass(frozen=True, slots=True)
class Place:
    """One Lease, and what it stands for. `kind` is lock, election or schedule."""

    namespace: str
    lease: str
    kind: str
    name: str


def place_of(namespace: str, kind: str, prefix: str, name: str) -> Place:
    """Return the place of a name. Two names, kinds or prefixes never share one.

    The Lease is named after the prefix, the kind, the name's letters, digits and dashes, and a hash of all
    three as they are: `lock-order-17-3f2a…`, a DNS label of at most 253 characters.
    """
    exact = f"{prefix}\0{kind}\0{name}".encode()
    digest = hashlib.sha256(exact).hexdigest()[:_HASH]
    readable = [_readable(prefix)[:_READABLE], kind, _readable(name)[:_READABLE], digest]
    return Place(namespace, "-".join(part.strip("-") for part in readable if part.strip("-")), kind, name)


def _readable(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
