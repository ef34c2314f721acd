"""The pages say nothing that is not so, as far as that can be looked up."""

from __future__ import annotations

import importlib.util
import os
import re
from datetime import datetime
from importlib import import_module
from zoneinfo import ZoneInfo

import pytest

from grelmicro.coordination import LeaderElection, Lock, TaskLock
from grelmicro.providers.kubernetes import KubernetesProvider
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.providers.redis import RedisProvider
from grelmicro.task import Outcome, Reason
from grelmicro.task._cron_expression import CronExpression
from grelmicro.testing import conformance
from tests.docs.snippets import PAGES, SNIPPETS

ROOT = PAGES.parent
ELSEWHERE = {"index.md": "tests/demo/test_readme.py", "kubernetes.md": "tests/kube"}
"""Pages whose code is tested with what it belongs to."""
OURS = sorted(page for page in PAGES.glob("*.md") if page.name not in ELSEWHERE)


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", PAGES / "_hooks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(page, after):
    text = (PAGES / page).read_text().partition(after)[2]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]


def test_all_code_is_included_from_files_that_are_run():
    included = []
    for page in OURS:
        for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            match = re.fullmatch(r'--8<-- "docs/snippets/(\S+)"\n', block)
            assert match, (page.name, block)
            included.append(match[1])
    files = sorted(str(path.relative_to(SNIPPETS)) for path in SNIPPETS.glob("*/*") if path.is_file())
    assert sorted(included) == files


def test_tests_that_are_named_exist():
    named = {
        name
        for page in PAGES.glob("*.md")
        for name in re.findall(r"`((?:tests|conformance)/[\w/]+\.py)`", page.read_text())
    }
    assert named
    places = (ROOT, ROOT / "src/grelmicro/testing")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_promise_names_its_tests():
    rows = [row for row in rows_of("guarantees.md", "# Guarantees") if not set(row[0]) <= {"-", " "}]
    assert len(rows) > 20
    for promise, _, tests in rows[1:]:
        assert ".py`" in tests, promise


def test_every_suite_is_told_of():
    rows = rows_of("extending.md", "| Suite ")
    assert {row[0].strip("`") for row in rows} >= set(conformance.__all__)


def test_pages_name_no_place_of_their_authors():
    for page in PAGES.rglob("*.md"):
        assert not re.search(r"/work/|/tmp/|/root/|/home/", page.read_text()), page.name


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "0 * * * *"])
def test_clock_changes_are_as_the_table_says(expression):
    zone = ZoneInfo("Europe/Zurich")
    (row,) = [row for row in rows_of("tasks.md", "## Cron") if row[0] == f"`{expression}`"]
    for day, cell in zip(("2026-03-29", "2026-10-25"), row[1:], strict=True):
        start = datetime.fromisoformat(day).replace(tzinfo=zone).timestamp()
        found = []
        for match in CronExpression(expression, zone).after(start - 1):
            local = datetime.fromtimestamp(match, zone)
            if local.date().isoformat() != day:
                break
            found.append(local.isoformat(timespec="minutes"))
        if expression.startswith("0 *"):
            assert sum("T02:00" in one for one in found) == (0 if "none" in cell else 2)
            assert len(found) == (23 if "none" in cell else 25)
        else:
            assert found == [cell]


def test_every_outcome_and_reason_is_explained():
    text = (PAGES / "tasks.md").read_text()
    for word in (*Outcome, *Reason):
        assert f"`{word}`" in text


MADE_FROM_THEIR_TABLE = {
    "LockConfig": (
        lambda: Lock("stock"),
        {"max_hold_duration": "50", "auto_extend": "1", "lease_duration": "7"},
    ),
    "TaskLockConfig": (
        lambda: TaskLock("report"),
        {"max_hold_duration": "50", "auto_extend": "1", "lease_duration": "7"},
    ),
    "LeaderElectionConfig": (
        lambda: LeaderElection("mailer"),
        {"lease_duration": "12", "renew_deadline": "11", "retry_interval": "3"},
    ),
    "RedisConfig": (RedisProvider, {"host": "there", "username": "me", "password": "pw"}),
    "PostgresConfig": (
        PostgresProvider,
        {"host": "there", "db": "mine", "user": "me", "password": "pw", "transaction_pooling": "true"},
    ),
    "KubernetesConfig": (
        KubernetesProvider,
        {"kubeconfig": "/there", "context": "other", "namespace": "mine"},
    ),
}
ALONE = {"url"}


def test_every_configuration_has_its_table():
    text = (PAGES / "configuration.md").read_text()
    assert set(re.findall(r"<!-- settings: \S+:(\w+) ", text)) == set(MADE_FROM_THEIR_TABLE)


@pytest.mark.parametrize("name", MADE_FROM_THEIR_TABLE)
def test_every_variable_in_a_table_is_read_and_every_setting_explained(name, tables, monkeypatch):
    for variable in os.environ:
        if variable.startswith(("GREL_", "REDIS_", "POSTGRES_", "KUBE")):
            monkeypatch.delenv(variable)
    marker = re.search(rf"<!-- settings: (\S+):{name} (\S+) -->", (PAGES / "configuration.md").read_text())
    config = getattr(import_module(marker[1]), name)
    make, values = MADE_FROM_THEIR_TABLE[name]
    lines = tables.on_page_markdown(marker[0]).splitlines()[2:]
    assert len(lines) == len(config.model_fields)
    fields = {}
    for line in lines:
        field, variable, kind, _, meaning = re.match(
            r"\| `(\w+)`<br>`(\w+)` \| (.+?) \| (.*?) \| (.*) \|$", line
        ).groups()
        assert kind
        assert meaning, f"{name}.{field} has no docstring"
        fields[field] = variable
        if field not in ALONE:
            monkeypatch.setenv(variable, values.get(field, "0.5" if kind.startswith("number") else "8"))
    made = make().config
    for field in fields.keys() - ALONE:
        assert getattr(made, field) != config.model_fields[field].default, field


def test_how_callers_wait_is_told_for_every_backend(tables):
    table = tables.on_page_markdown("<!-- waiting -->")
    assert "| Redis, Valkey | is woken | is woken |" in table
    assert len(table.splitlines()) == 6
    assert "<!-- waiting -->" in (PAGES / "backends.md").read_text()
