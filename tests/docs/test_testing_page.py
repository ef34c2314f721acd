"""The tests that the page on testing shows pass."""

import pytest

from docs.snippets.testing.test_shop import (
    anyio_backend,
    app,
    test_a_seller_that_died_blocks_nobody_for_longer_than_a_minute,
    test_an_item_is_sold,
)

__all__ = [
    "anyio_backend",
    "app",
    "test_a_seller_that_died_blocks_nobody_for_longer_than_a_minute",
    "test_an_item_is_sold",
]

pytestmark = [pytest.mark.anyio, pytest.mark.variant("memory")]
