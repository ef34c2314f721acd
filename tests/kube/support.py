"""What several Kubernetes tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


FIXTURES = {"kubernetes": "strict_kube", "kube-apiserver": "kube_api"}
"""Places, and the fixtures that give their API servers."""


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition of the outside world holds."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.01)
