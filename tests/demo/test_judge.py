"""The verdict must be able to go bad: each judging function sees good histories and bad ones."""

import math
from dataclasses import replace

import pytest

from grelmicro.demo._events import Event, What
from grelmicro.demo._history import Span, overlaps, spans
from grelmicro.demo._judge import (
    judge_exclusion,
    judge_fencing,
    judge_lock,
    judge_roles,
    judge_schedule,
    judge_succession,
    judge_takeover,
    judge_total,
)
from grelmicro.demo._plan import Plan

PLAN = replace(Plan.make(workers=2, seconds=12), rounds=2)


def hold(worker, at, value, *, fence, length=0.03):
    return [
        Event(at, worker, What.TOOK, asked=at - 0.01, fence=fence, value=value),
        Event(at + length, worker, What.WROTE, fence=fence, value=value + 1),
        Event(at + length, worker, What.LEAVES),
    ]


def counting():
    """Worker 1 is killed in its second hold; worker 3 takes its place."""
    return [
        *hold(1, 1.0, 0, fence=10),
        *hold(2, 1.1, 1, fence=11),
        Event(1.2, 1, What.TOOK, asked=1.19, fence=12, value=2),
        Event(1.2, 1, What.STUCK),
        Event(1.3, 1, What.KILLED),
        *hold(2, 3.2, 2, fence=13),
        *hold(3, 3.3, 3, fence=14),
    ]


def roles():
    """Worker 1 leads, is killed, and worker 2 follows; the job runs once a second from 10 s on."""
    runs = [(10.0 + tick, 1 + tick % 2) for tick in range(5)]
    return [
        Event(1.0, 1, What.LEADS, asked=0.9),
        Event(5.0, 1, What.LEADING, asked=4.9),
        Event(5.1, 1, What.KILLED),
        Event(7.0, 2, What.LEADS, asked=6.95),
        Event(15.0, 2, What.LED),
        *(Event(at, worker, What.RUNS) for at, worker in runs),
        *(Event(at + 0.1, worker, What.RAN) for at, worker in runs),
    ]


def faults(checks):
    return {check.name for check in checks if not check.good}


def good_holds():
    return spans(counting(), What.TOOK, What.LEAVES, lease=PLAN.lease)


def test_a_good_run_is_good():
    assert faults(judge_lock(counting(), PLAN, counter=4)) == set()
    assert faults(judge_roles(roles(), PLAN, window=(10.0, 14.5))) == set()


def test_no_record_is_no_good_verdict():
    assert faults(judge_lock([], PLAN, counter=4)) == {"total", "holders", "fencing", "takeover"}
    assert faults(judge_roles([], PLAN, window=(10, 14))) == {"leaders", "succession", "job", "schedule"}


def test_the_order_in_which_events_were_read_does_not_matter():
    events = counting()[::-1]
    assert faults(judge_lock(events, PLAN, counter=4)) == set()


# total


def test_a_lost_update_is_seen():
    events = [*hold(1, 1.0, 0, fence=1), *hold(2, 1.01, 0, fence=2)]
    check = judge_total(events, expected=2, counter=1)
    assert not check.good
    assert "1 updates were LOST" in check.text


@pytest.mark.parametrize("counter", [3, 5, None])
def test_the_counter_itself_must_be_right(counter):
    assert not judge_total(counting(), expected=4, counter=counter).good


def test_an_increment_that_was_not_done_is_seen():
    assert not judge_total(counting()[:-3], expected=4, counter=3).good


def test_two_wrongs_do_not_make_a_right_total():
    # One update lost, one done on top of nothing: the sum is as it should be.
    events = [*hold(1, 1.0, 0, fence=1), *hold(2, 1.1, 0, fence=2), *hold(1, 1.2, 2, fence=3)]
    assert not judge_total(events, expected=3, counter=3).good


# exclusion


def test_an_overlap_of_holders_is_seen():
    events = [*counting(), *hold(4, 3.21, 3, fence=15)]
    check = judge_exclusion("holders", "holds", spans(events, What.TOOK, What.LEAVES))
    assert not check.good
    assert "1 overlaps (first: workers 2 and 4)" in check.text


def test_a_long_span_clashes_with_every_one_inside_it():
    ordered = [Span(1, 0, 10), Span(2, 1, 2), Span(3, 3, 4), Span(4, 10, 11)]
    assert [(a.worker, b.worker) for a, b in overlaps(ordered)] == [(1, 2), (1, 3)]


def test_spans_that_only_touch_do_not_clash():
    assert overlaps([Span(1, 0, 1), Span(2, 1, 2)]) == []


def test_a_killed_workers_hold_ends_when_it_is_killed():
    ended = good_holds()[2]
    assert (ended.worker, ended.end, ended.killed) == (1, 1.3, 1.3)


def test_a_killed_workers_hold_ends_with_its_lease_if_that_is_earlier():
    events = [Event(1.0, 1, What.TOOK, asked=0.9, fence=1), Event(9.0, 1, What.KILLED)]
    (ended,) = spans(events, What.TOOK, What.LEAVES, lease=2)
    assert (ended.end, ended.killed) == (2.9, 9.0)


def test_a_hold_that_nothing_ended_goes_on_for_ever():
    events = [Event(1.0, 1, What.TOOK), *hold(2, 100.0, 0, fence=2)]
    found = spans(events, What.TOOK, What.LEAVES, lease=2)
    assert found[0].end == math.inf
    assert not judge_exclusion("holders", "holds", found).good


def test_a_second_hold_of_the_same_worker_does_not_end_the_first():
    events = [Event(1.0, 1, What.TOOK), Event(2.0, 1, What.TOOK), Event(3.0, 1, What.LEAVES)]
    assert len(overlaps(spans(events, What.TOOK, What.LEAVES))) == 1


def test_only_renewals_of_its_own_kind_move_a_lease():
    events = [
        Event(1.0, 1, What.LEADS, asked=0.9),
        Event(2.0, 1, What.LEADING, asked=1.9),
        Event(3.0, 1, What.TOOK, asked=2.9),
        Event(3.1, 1, What.KILLED),
    ]
    (term,) = spans(events, What.LEADS, What.LED, renewed=What.LEADING, lease=2)
    assert term.asked == 1.9


# fencing


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([1, 2, 2], "1 given twice"),
        ([1, 3, 2], "1 out of the order"),
        ([1, None, 3], "2 fencing tokens for 3 holds"),
        ([None, None, None], "0 fencing tokens for 3 holds"),
    ],
)
def test_fencing_tokens_must_grow_from_grant_to_grant(tokens, told):
    check = judge_fencing([Span(1, at, at + 0.5, fence=fence) for at, fence in enumerate(tokens)])
    assert not check.good
    assert told in check.text


# takeover and succession


def test_a_lock_must_not_pass_on_before_a_killed_holders_lease_is_over():
    early = [hold if hold.killed or hold.start < 2 else replace(hold, start=2.5) for hold in good_holds()]
    assert not judge_takeover(early, lease=2).good
    assert judge_takeover(good_holds(), lease=2).good


def test_somebody_must_take_the_lock_after_the_killed_holder():
    assert not judge_takeover(good_holds()[:3], lease=2).good


def test_a_run_in_which_no_holder_was_killed_proves_nothing():
    assert not judge_takeover([replace(hold, killed=None) for hold in good_holds()], lease=2).good


@pytest.mark.parametrize(("at", "good"), [(6.8, False), (6.9, True), (7.5, True), (10.0, False)])
def test_a_killed_leader_is_replaced_after_its_lease_and_soon(at, good):
    terms = [Span(1, 1.0, 5.1, asked=4.9, killed=5.1), Span(2, at, 15.0)]
    assert judge_succession(terms, lease=2, retry=0.4).good is good


def test_every_killed_leader_counts():
    terms = [
        Span(1, 1.0, 5.1, asked=4.9, killed=5.1),
        Span(2, 5.5, 9.0, asked=8.9, killed=9.0),
        Span(3, 11.0, 15.0),
    ]
    assert not judge_succession(terms, lease=2, retry=0.4).good


def test_a_leader_that_left_in_good_order_is_no_succession():
    assert not judge_succession([Span(1, 1, 5), Span(2, 5, 9)], lease=2, retry=0.4).good


def test_leaders_must_not_overlap():
    events = [*roles(), Event(8.0, 3, What.LEADS, asked=7.9), Event(8.1, 3, What.LED)]
    assert faults(judge_roles(events, PLAN, window=(10, 14.5))) == {"leaders"}


# schedule


def schedule(*starts, window=(10.0, 14.5)):
    return judge_schedule([Span(1, at, at + 0.1) for at in starts], tick=1.0, window=window)


def test_one_run_per_tick_is_good():
    assert schedule(10, 11, 12, 13, 14).good


def test_a_run_that_is_recorded_a_little_late_is_no_second_run_in_its_tick():
    assert schedule(10, 11.4, 12, 13, 14).good


def test_two_runs_in_one_tick_are_seen():
    assert not schedule(10, 11, 11.1, 12, 13, 14).good


def test_runs_that_come_too_often_are_seen_though_none_are_close():
    assert not schedule(10, 10.7, 11.4, 12.1, 12.8, 13.5, 14.2).good


def test_two_runs_in_one_tick_are_seen_outside_the_window_too():
    assert not schedule(5, 5.1, 10, 11, 12, 13, 14).good


def test_missed_ticks_are_seen():
    assert not schedule(10, 11, 14).good


def test_missed_ticks_while_workers_are_killed_are_forgiven():
    assert schedule(5, 8, 10, 11, 12, 13, 14).good


def test_overlapping_runs_of_the_job_are_seen():
    events = [*roles(), Event(12.05, 3, What.RUNS), Event(12.06, 3, What.RAN)]
    assert "job" in faults(judge_roles(events, PLAN, window=(10.0, 14.5)))
