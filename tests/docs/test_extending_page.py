"""The backend that the page on extending shows keeps the promises of a backend."""

import pytest

from docs.snippets.extending.test_sqlite_locks import TestLockOnSqlite, TestSqliteLocks, backend

__all__ = ["TestLockOnSqlite", "TestSqliteLocks", "backend"]

pytestmark = pytest.mark.variant("third-party")
