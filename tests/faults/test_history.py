"""The judge of histories: silent on good ones, and on bad ones it says what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.faults.history import Grant, faults, grants_of, read


def grant(worker, fence, live_from, live_until, *, asked_at=None, name="x", writes=()):
    asked_at = live_from - 0.5 if asked_at is None else asked_at
    return Grant(worker, name, f"{worker}-{fence}", fence, asked_at, live_from, live_until, list(writes))


GOOD = [
    grant("a", 1, 0, 10, writes=[1, 9]),
    grant("b", 2, 10, 12, asked_at=0.5, writes=[11]),
    grant("a", 3, 13, 12.5),  # it stood still until it was over
    grant("c", 4, 12.6, 20, asked_at=12.5),
    grant("c", 1, 0, 100, name="y"),
]


def test_nothing_is_wrong_with_a_good_history():
    assert faults(GOOD) == []
    assert faults([]) == []


def test_a_write_of_one_that_stood_still_past_its_lease_is_for_the_resource_to_refuse():
    assert faults([grant("a", 1, 0, 10, writes=[15]), grant("b", 2, 11, 20, writes=[12])]) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([grant("a", 1, 0, 10), grant("b", 2, 9.999, 12)], "a and b both held it, for 0.001000 s"),
        ([grant("a", 1, 0, 10), grant("b", 2, 3, 4), grant("c", 3, 5, 6)], "a and c both held it"),
        ([grant("a", 7, 0, 1), grant("b", 7, 2, 3)], "the same fence 7"),
        ([grant("a", 8, 0, 1), grant("b", 7, 2, 3)], "a was given the fence 8 before a smaller one"),
        ([grant("a", -1, 0, 1)], "another fence"),
        (
            [grant("a", 1, 0, 10, writes=[5]), grant("b", 2, 4, 3.9, writes=[4.5])],
            "a wrote with the fence 1 after 2 had been seen",
        ),
    ],
)
def test_a_bad_history_is_found_out(bad, said):
    assert any(said in fault for fault in faults(bad))
    assert any(said in fault for fault in faults(reversed(bad)))
    assert faults([replace(one, name=one.worker) for one in bad if one.fence > 0]) == []


def notes(*events):
    return [
        {"event": "granted", "name": "x", "token": "t", "fence": 5, "asked": 1, "at": 2, "ends": 11},
        *({"token": "t"} | event for event in events),
    ]


def test_a_lease_lasts_until_its_end_when_nothing_else_is_noted():
    (one,) = grants_of("w", notes())
    assert (one.live_from, one.live_until, one.asked_at, one.fence) == (2, 11, 1, 5)


def test_a_lease_lasts_until_the_release_is_sent():
    (one,) = grants_of("w", notes({"event": "releasing", "at": 4}, {"event": "released", "at": 9}))
    assert one.live_until == 4
    (one,) = grants_of("w", notes({"event": "releasing", "at": 14}))
    assert one.live_until == 11


def test_an_extend_that_was_asked_for_in_time_moves_the_end():
    extended = {"event": "extended", "fence": 5, "asked": 10, "ends": 20, "at": 10.5}
    (one,) = grants_of("w", notes(extended))
    assert one.live_until == 20
    (one,) = grants_of("w", notes(extended | {"ends": 9}))
    assert one.live_until == 9
    (one,) = grants_of("w", notes(extended | {"asked": 12}))
    assert one.live_until == 11
    assert "another fence" in faults(grants_of("w", notes(extended | {"fence": 6})))[0]


def test_the_last_line_of_a_killed_worker_may_be_torn(tmp_path):
    path = tmp_path / "notes"
    whole = json.dumps(notes()[0])
    path.write_text(f"{whole}\n{whole[:20]}")
    assert read(path) == notes()
    path.write_text("")
    assert read(path) == []
