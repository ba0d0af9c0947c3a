"""``holdfast costs``."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import click
import pytest
from cli_project import Project

from holdfast.cli.shared.parsing import parse_day


def test_the_costs_of_all_runs_are_shown_by_day_agent_and_model(lab: Project):
    data = lab.here("costs", "--json").json
    assert {line["workflow"] for line in data["daily_usage"]} >= {"rich", "sub", "poor", "research"}
    rich = [line for line in data["daily_usage"] if line["workflow"] in ("rich", "sub")]
    assert sum(line["usage"]["calls"] for line in rich) == 3, "each call counts once"
    assert sum(line["usage"]["input_tokens"] for line in rich) == 21_000
    assert {line["model"] for line in rich} == {"openai:gpt-4o"}
    for name in ("calls", "input_tokens", "output_tokens", "cached_tokens", "unpriced"):
        assert data["total"][name] == sum(line["usage"][name] for line in data["daily_usage"])
    assert {(line["workflow"], line["run_count"]) for line in data["daily_runs"]} >= {("rich", 1), ("sub", 2)}

    out = lab.here("costs").out
    assert re.match(r"day +agent +runs +model +calls +tokens in +cached +tokens out +cost\n\d{4}-\d\d-\d\d  ", out)
    assert re.search(rf"^total +\d+ .* {data['total']['input_tokens']:,} ", out, re.M)
    assert f"\n{data['total']['calls']} model calls: " in out


def test_the_costs_of_one_agent_and_of_some_days(lab: Project):
    only = lab.here("costs", "--workflow", "rich", "--since", "1d", "--json").json
    assert {line["workflow"] for line in only["daily_usage"]} == {"rich"}
    assert {line["workflow"] for line in only["daily_runs"]} == {"rich"}
    before = lab.here("costs", "--since", "2020-01-01", "--until", "2020-01-31")
    assert (before.code, before.out) == (0, "no model calls from 2020-01-01 to 2020-01-31 (UTC), in 0 runs\n")
    wrong = lab.here("costs", "--since", "2020-02-01", "--until", "2020-01-31")
    assert (wrong.code, wrong.out) == (1, "")
    assert "the first one comes after the last one" in wrong.err


def test_days_are_read_as_people_write_them():
    assert parse_day("2026-11-15") == date(2026, 11, 15)
    today = datetime.now(UTC).date()
    assert parse_day("0d") in (today, today + timedelta(days=1))
    assert parse_day("2w") - parse_day("3 w") in (timedelta(days=7), timedelta(days=6))
    for wrong in ("yesterday", "2026-13-01", "2h", "99999999999d"):
        with pytest.raises(click.BadParameter, match="is not a day"):
            parse_day(wrong)
