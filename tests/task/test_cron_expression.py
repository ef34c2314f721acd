"""Cron arithmetic, above all where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from grelmicro.task import TaskDeclarationError
from grelmicro.task._cron_expression import CronExpression

# A day at noon before each change: forward, then back.
CHANGES = {
    "Europe/Zurich": ("2026-03-28", "2026-10-24"),
    "America/New_York": ("2026-03-07", "2026-10-31"),
    "Australia/Lord_Howe": ("2026-10-03", "2026-04-04"),
    "America/Santiago": ("2026-09-05", "2026-04-04"),
}
EXPRESSIONS = (
    "30 2 * * *",
    "15 2 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "0 0 * * *",
    "*/15 2 * * *",
    "30 23 * * *",
)
EXPRESSIONS += ("0 */2 * * *", "* 1,2 * * *")


def matches(expression, zone, day, hours=26):
    start = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone))
    end = start.timestamp() + hours * 3600
    found = []
    for match in CronExpression(expression, zone).after(start.timestamp()):
        if match > end:
            return found
        found.append(match)
    raise AssertionError


def local(found, zone):
    return [datetime.fromtimestamp(match, ZoneInfo(zone)).isoformat(timespec="minutes") for match in found]


@pytest.mark.parametrize(
    ("zone", "expression", "forward", "back"),
    [
        ("Europe/Zurich", "30 2 * * *", "2026-03-29T03:00+02:00", "2026-10-25T02:30+02:00"),
        ("Europe/Zurich", "0 0 * * *", "2026-03-29T00:00+01:00", "2026-10-25T00:00+02:00"),
        ("America/New_York", "30 2 * * *", "2026-03-08T03:00-04:00", "2026-11-01T02:30-05:00"),
        ("America/New_York", "30 1 * * *", "2026-03-08T01:30-05:00", "2026-11-01T01:30-04:00"),
        ("America/New_York", "0 0 * * *", "2026-03-08T00:00-05:00", "2026-11-01T00:00-04:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04T02:30+11:00", "2026-04-05T02:15+10:30"),
        ("Australia/Lord_Howe", "30 2 * * *", "2026-10-04T02:30+11:00", "2026-04-05T02:30+10:30"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-10-04T01:45+10:30", "2026-04-05T01:45+11:00"),
        ("Australia/Lord_Howe", "0 0 * * *", "2026-10-04T00:00+10:30", "2026-04-05T00:00+11:00"),
        ("America/Santiago", "30 2 * * *", "2026-09-06T02:30-03:00", "2026-04-05T02:30-04:00"),
        ("America/Santiago", "0 0 * * *", "2026-09-06T01:00-03:00", "2026-04-05T00:00-04:00"),
        ("America/Santiago", "30 23 * * *", "2026-09-05T23:30-04:00", "2026-04-04T23:30-03:00"),
    ],
)
def test_a_fixed_hour_matches_once_and_inside_the_gap_right_after_it(zone, expression, forward, back):
    for day, expected in zip(CHANGES[zone], (forward, back), strict=True):
        assert local(matches(expression, zone, day), zone) == [expected]


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize(
    ("expression", "period"), [("*/15 * * * *", 900), ("* * * * *", 60), ("0-59/5 0-23 * * *", 300)]
)
def test_a_wildcard_hour_follows_elapsed_time(zone, expression, period):
    for day in CHANGES[zone]:
        found = matches(expression, zone, day)
        assert {later - earlier for earlier, later in pairwise(found)} == {period}
        assert len(found) == 26 * 3600 / period


@pytest.mark.parametrize("zone", ["Europe/Zurich", "America/New_York", "America/Santiago"])
def test_an_hourly_job_runs_every_hour_through_a_change_of_a_whole_hour(zone):
    for day in CHANGES[zone]:
        found = matches("0 * * * *", zone, day)
        assert {later - earlier for earlier, later in pairwise(found)} == {3600}


def test_an_hourly_job_keeps_to_the_full_hour_through_a_change_of_half_an_hour():
    for day in CHANGES["Australia/Lord_Howe"]:
        found = matches("0 * * * *", "Australia/Lord_Howe", day)
        assert {moment[14:16] for moment in local(found, "Australia/Lord_Howe")} == {"00"}
        assert sorted({later - earlier for earlier, later in pairwise(found)}) == [3600, 5400]


def test_minutes_of_a_fixed_hour_match_once_too():
    forward, back = CHANGES["Europe/Zurich"]
    assert local(matches("*/15 2 * * *", "Europe/Zurich", forward), "Europe/Zurich") == [
        "2026-03-29T03:00+02:00"
    ]
    assert local(matches("*/15 2 * * *", "Europe/Zurich", back), "Europe/Zurich") == [
        f"2026-10-25T02:{minute}+02:00" for minute in ("00", "15", "30", "45")
    ]


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_from_every_start_around_a_change_the_same_matches_follow(zone, expression):
    cron = CronExpression(expression, zone)
    for day in CHANGES[zone]:
        found = matches(expression, zone, day)
        assert all(earlier < later for earlier, later in pairwise(found))
        begin = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone)).timestamp()
        for minutes in range(7 * 60, 25 * 60, 11):
            now = begin + minutes * 60 + 0.25
            later = [match for match in found if match > now]
            earlier = [match for match in found if match <= now]
            if later:
                assert cron.next(now) == later[0]
            assert cron.latest(begin, now) == (earlier[-1] if earlier else None)


@pytest.mark.timeout(20)  # all since 1970 would take minutes
def test_the_latest_match_is_found_without_walking_through_all_of_them():
    cron = CronExpression("* * * 1 *")
    now = datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC)
    assert cron.latest(0, now.timestamp()) == datetime(2026, 1, 31, 23, 59, tzinfo=UTC).timestamp()


def test_a_match_at_this_very_moment_is_the_latest_one_and_not_the_next():
    cron = CronExpression("0 12 * * *")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert cron.latest(0, noon.timestamp()) == noon.timestamp()
    assert cron.next(noon.timestamp()) == (noon + timedelta(days=1)).timestamp()


def test_counting_stops_at_the_limit():
    cron = CronExpression("* * * * *")
    assert cron.count(0, 601, limit=1000) == 10
    assert cron.count(0, 10**9, limit=1000) == 1000
    assert cron.count(0, 60, limit=1000) == 0


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 */31 2 MON#5",
        "60 * * * *",
        "* 24 * * *",
        "a b c d e",
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "*/0 * * * *",
        "5-1 * * * *",
        None,
        5,
    ],
)
def test_what_can_never_fire_is_refused(expression):
    with pytest.raises(TaskDeclarationError, match=r"^expr: "):
        CronExpression(expression)


@pytest.mark.parametrize("zone", ["Nowhere/City", "", "../../etc/passwd", "America", "\0", "Zürich", 5, None])
def test_an_unknown_time_zone_is_refused(zone):
    with pytest.raises(TaskDeclarationError, match=r"^timezone: "):
        CronExpression("* * * * *", zone)


def test_february_29_is_waited_for():
    cron = CronExpression("0 0 29 2 *", "Europe/Zurich")
    assert (
        cron.next(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
        == datetime(2028, 2, 28, 23, tzinfo=UTC).timestamp()
    )
