import pytest

from docs.snippets.extending.sqlite_locks import SqliteLocks
from grelmicro.testing.conformance import LockBackendSuite, LockSuite


@pytest.fixture
def backend(tmp_path):
    return SqliteLocks(tmp_path / "locks.db")


class TestSqliteLocks(LockBackendSuite):
    racers = 10
    many = 100


class TestLockOnSqlite(LockSuite):
    racers = 10
