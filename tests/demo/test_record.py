"""What is recorded arrives, in order of time, and only whole."""

import pytest

from grelmicro.demo._events import Journal, Recorder, What
from grelmicro.demo._plan import LONGEST, MOST_WORKERS, SHORTEST, Orders, Plan


def test_what_several_processes_record_is_read_once_and_in_order(tmp_path):
    journal, one, two = Journal(tmp_path), Recorder(tmp_path, 1), Recorder(tmp_path, 2)
    events = [one(What.READY), two(What.TOOK, asked=1.5, fence=7, value=0), one(What.KILLED, worker=2)]
    assert journal.new() == events
    assert journal.new() == []
    later = two(What.LEAVES)
    assert journal.new() == [later]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    whole = b'{"at": 1.0, "worker": 3, "what": "ready"}\n'
    path = tmp_path / "3.jsonl"
    journal = Journal(tmp_path)
    path.write_bytes(whole + whole[:20])
    assert len(journal.new()) == 1
    path.write_bytes(whole + whole)
    assert len(journal.new()) == 1


def test_a_worker_reads_the_orders_that_were_written():
    plan = Plan.make(workers=3, seconds=7)
    orders = Orders("redis://host", "/somewhere", "demo-", plan, worker=2, rounds=5, hang_in=2)
    line = orders.to_line()
    assert "\n" not in line
    assert Orders.from_line(line) == orders


@pytest.mark.parametrize("seconds", [SHORTEST, 12, LONGEST])
@pytest.mark.parametrize("workers", [2, 4, MOST_WORKERS])
def test_every_plan_is_one_that_can_work(workers, seconds):
    plan = Plan.make(workers=workers, seconds=seconds)
    assert plan.retry < plan.renew_deadline < plan.lease
    assert plan.rounds >= 3
    assert plan.total == workers * plan.rounds
