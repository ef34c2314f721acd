"""Who a primitive is towards its backend, and the tokens of its acquisitions."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from itertools import count
from uuid import UUID, uuid1

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the one value that must differ between parent and child
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """Return how many forks lie between this process and the one that imported this module."""
    return _forks


def random_hex() -> str:
    """Return 16 random hexadecimal digits."""
    return os.urandom(8).hex()


def random_uuid1() -> str:
    """Return a version 1 UUID with a random node (RFC 9562, 6.10): containers may share MAC addresses."""
    return str(uuid1(node=secrets.randbits(48) | (1 << 40), clock_seq=secrets.randbits(14)))


class Identity:
    """A worker's name: as given, or made on first use and made anew in a forked child."""

    def __init__(self, worker: str | UUID | None, generate: Callable[[], str]) -> None:
        self._given = None if worker is None else str(worker)
        self._generate = generate
        self._made: tuple[int, str, Iterator[int]] | None = None

    @property
    def worker(self) -> str:
        """The worker's name in this process."""
        return self._here()[1].partition(":")[0] if self._given is None else self._given

    def new_token(self) -> str:
        """Return a token that no other acquisition has, whatever shares the worker's name."""
        _, stem, numbers = self._here()
        return f"{stem}{next(numbers):x}"

    def _here(self) -> tuple[int, str, Iterator[int]]:
        made = self._made
        if made is None or made[0] != _forks:
            worker = self._generate() if self._given is None else self._given
            made = self._made = (_forks, f"{worker}:{random_hex()}:", count())
        return made
