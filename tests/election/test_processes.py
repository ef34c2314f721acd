"""Candidates in processes of their own, on real servers: killed, stopped, blocked, forked, misdated."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.election.servers import concurrently, overlap, workers

pytestmark = [pytest.mark.variant("redis"), pytest.mark.variant("postgres")]

TIMES = {"lease_duration": 2, "renew_deadline": 1.4, "retry_interval": 0.3, "backend_timeout": 1}
LEASE, RETRY = 2, 0.3 * 1.1
SLACK = 0.5
"""For a machine that is busy."""


def test_a_killed_leader_is_followed_within_its_lease_and_a_retry(addresses, unique):
    """The leader's lease is longer than the follower's own, which must not judge by that."""
    lease = 3

    def scenario(url):
        with workers(url, unique, **TIMES) as start:
            leader = start(settings={**TIMES, "lease_duration": lease})
            leader.wait("start")
            follower = start()
            follower.wait("running")
            killed = leader.kill()
            successor = follower.wait("start")
            assert lease - RETRY - SLACK <= successor["at"] - killed <= lease + RETRY + SLACK

    concurrently(scenario, addresses)


def test_a_stopped_leader_is_followed_at_once_and_after_its_work(addresses, unique):
    def scenario(url):
        with workers(url, unique, **TIMES) as start:
            leader = start(clean_up=0.5)
            leader.wait("start")
            follower = start()
            follower.wait("running")
            leader.stop()
            leader.wait("stopped")
            end, successor = leader.wait("end"), follower.wait("start")
            assert not end["leader"]
            assert 0 <= successor["at"] - end["at"] <= RETRY + 0.1 + SLACK

    concurrently(scenario, addresses)


def test_a_blocked_loop_stops_its_work_before_it_leads_again(addresses, unique):
    """Blocked by the work itself, and by a task beside it."""

    def scenario(url, where):
        with workers(url, f"{unique} {where}", **TIMES) as start:
            blocked = start(**{where: 3})
            blocked.wait("start")
            other = start()
            successor = other.wait("start")
            unblocked = blocked.wait("unblocked")
            assert not unblocked["leader"]
            assert unblocked["at"] - successor["at"] > 0.1, "the other did not take over during the stall"
            end = blocked.wait("end")
            assert not end["leader"]
            assert 0 <= end["at"] - unblocked["at"] <= SLACK
            other.stop()
            again = blocked.wait("start", round=2)
            assert end["at"] < other.wait("end")["at"] <= again["at"]
            assert any("stood still for at least" in line for line in blocked.errors)

    concurrently(scenario, addresses, ["block", "block_beside"])


def test_workers_forked_from_one_parent_do_not_lead_together(addresses, unique):
    def scenario(url):
        with workers(url, unique, **TIMES) as start:
            group = start(forks=3, worker="host")
            group.wait("start")
            time.sleep(1)
            assert len({entry["pid"] for entry in group.seen("running")}) == 4
            assert len({entry["pid"] for entry in group.seen("start")}) == 1

    concurrently(scenario, addresses)


def test_a_child_forked_from_a_leader_does_not_lead(addresses, unique):
    def scenario(url):
        with workers(url, unique, **TIMES) as start:
            leader = start(fork_when_leading=True)
            child, parent = leader.wait("child"), leader.wait("parent")
            assert (child["leader"], child["running"]) == (False, False)
            assert (parent["leader"], parent["running"]) == (True, True)
            leader.stop()

    concurrently(scenario, addresses)


def test_a_wrong_wall_clock_neither_steals_nor_keeps_a_lease(addresses, unique):
    def scenario(url, hours):
        with workers(url, f"{unique} {hours}", **TIMES) as start:
            leader = start(wall_clock_off_by=3600 * hours)
            leader.wait("start")
            follower = start(wall_clock_off_by=-3600 * hours)
            follower.wait("running")
            time.sleep(2 * RETRY)
            assert not follower.seen("start")
            leader.stop()
            assert len(leader.seen("start")) == 1
            follower.wait("start", within=RETRY + SLACK)

    concurrently(scenario, addresses, [-1, 1])


def test_bodies_of_workers_that_come_and_go_never_overlap(addresses, unique):
    def scenario(url):
        with workers(url, unique, **TIMES) as start:
            waiting, gone = [start(clean_up=0.05) for _ in range(3)], []
            for worker in waiting:
                worker.wait("running")
            while waiting:
                end = time.monotonic() + 5
                while not (leaders := [worker for worker in waiting if worker.seen("start")]):
                    assert time.monotonic() < end, "nobody leads"
                    time.sleep(0.02)
                assert len(leaders) == 1
                waiting.remove(leaders[0])
                gone.append(leaders[0])
                leaders[0].stop()
            spans = [worker.spans() for worker in gone]
            assert [len(spans_of_one) for spans_of_one in spans] == [1, 1, 1]
            assert [overlap(a, b) for a, b in itertools.combinations(spans, 2)] == [0, 0, 0]

    concurrently(scenario, addresses)
