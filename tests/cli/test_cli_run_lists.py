"""``holdfast runs``: narrowing a list, and going through it page by page."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta

import click
import pytest
from cli_project import Project

from holdfast.cli.runs.list import RunQuery
from holdfast.cli.shared.parsing import parse_past_datetime


def ids(project: Project, *options: str) -> list[str]:
    return [run["id"] for run in project.here("runs", "--json", *options).json]


def test_runs_can_be_narrowed_by_text_parent_and_time(relatives: Project):
    assert ids(relatives, "--text", "PRINTER is") == ["mailer"]
    assert ids(relatives, "--text", "nightly") == ["etl-bad", "etl-acme"]
    assert ids(relatives, "--parent", "small") == ["small-leaf-1", "small-leaf-0", "nap-0", "nap-3600"]
    assert ids(relatives, "--parent", "small", "--state", "pending", "--state", "waiting") == ["nap-3600"]
    everything = ids(relatives, "--limit", "500")
    assert ids(relatives, "--since", "2h", "--limit", "500") == everything
    assert ids(relatives, "--until", "2h") == []
    for run in relatives.here("runs", "--json", "--limit", "20").json:
        since, until = ids(relatives, "--since", run["created_at"]), ids(relatives, "--until", run["created_at"])
        assert run["id"] in since
        assert run["id"] not in until


def test_a_list_ends_with_the_command_that_shows_the_next_page(relatives: Project):
    everything = ids(relatives, "--limit", "500")
    options = ["--limit", "15", "--since", "3d"]
    seen: list[str] = []
    for _ in range(len(everything) // 15 + 1):
        _, *lines = relatives.here("runs", *options).out.splitlines()
        more = lines.pop() if lines[-1].startswith("more: ") else None
        seen += [line.split()[0] for line in lines]
        if more is None:
            break
        words = shlex.split(more.removeprefix("more: "))
        assert words[:2] == ["holdfast", "runs"]
        options = words[2:]
    assert seen == everything
    assert relatives.here("runs", "--limit", str(len(everything))).out.count("more: ") == 0


def test_the_command_for_the_next_page_has_the_same_options():
    at = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
    wanted = RunQuery(states=["failed", "dead"], workflow="a b", tag="t", text="it's", parent="-p", since=at, limit=7)
    assert wanted.format_next_page_command("last one", "sqlite:///x.db") == (
        "holdfast runs --state failed --state dead --workflow 'a b' --tag t --text 'it'\"'\"'s' --parent=-p "
        "--since 2026-11-15T08:30:00+00:00 --limit 7 --url sqlite:///x.db --before 'last one'"
    )
    assert RunQuery().format_next_page_command("x", None) == "holdfast runs --before x"


def test_a_page_after_an_unknown_run_is_an_error(relatives: Project):
    done = relatives.here("runs", "--before", "mailr")
    assert (done.code, done.out) == (1, "")
    assert "Did you mean mailer or" in done.err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("3d", 259200), ("1w", 604800), ("1.5 H", 5400), ("1h 30m", 5400), ("h", 3600)],
)
def test_a_time_may_be_given_by_how_long_ago_it_was(text: str, seconds: int):
    assert abs(datetime.now(UTC) - timedelta(seconds=seconds) - parse_past_datetime(text)) < timedelta(seconds=5)


def test_a_time_may_be_a_date_or_a_date_and_time():
    assert parse_past_datetime("2026-11-15") == datetime(2026, 11, 15).astimezone()
    assert parse_past_datetime("2026-11-15T08:30") == datetime(2026, 11, 15, 8, 30).astimezone()
    assert parse_past_datetime("2026-11-15 08:30:01+02:00") == datetime(2026, 11, 15, 6, 30, 1, tzinfo=UTC)
    assert parse_past_datetime("2026-11-15T08:30:00Z") == datetime(2026, 11, 15, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "90", "-2h", "2026-13-01", "99999999999w", "9" * 400 + "d"])
def test_anything_else_is_not_a_time(text: str):
    with pytest.raises(click.BadParameter, match="is not a date or time"):
        parse_past_datetime(text)


def test_an_invalid_time_is_a_usage_error_with_examples(relatives: Project):
    done = relatives.here("runs", "--since", "yesterday")
    assert done.code == 2
    error_text = " ".join(done.err.split())
    assert (
        "Invalid value for '--since': 'yesterday' is not a date or time: give a date or time such as 2026" in error_text
    )


def test_the_list_says_what_is_paused_cancelled_started_by_another_and_forked(undone: Project):
    assert undone.here("pause", "nap-3600").code == 0
    assert undone.here("cancel", "order-7").code == 0
    assert undone.here("fork", "etl-acme", "--at", "1", "--id", "second").code == 0
    runs = {run["id"]: run for run in undone.here("runs", "--json").json}
    assert [name for name, run in runs.items() if run["is_paused"]] == ["nap-3600"]
    assert [name for name, run in runs.items() if run["is_cancelling"]] == ["order-7"]
    assert [name for name, run in runs.items() if run["forked_from"]] == ["second"]
    assert (runs["second"]["forked_from"], runs["nap-3600"]["parent"]) == ("etl-acme", "small")
    assert runs["small"]["parent"] is None
    lines = {line.split()[0]: line for line in undone.here("runs").out.splitlines()}
    assert "paused (" in lines["nap-3600"]
    assert lines["order-7"].endswith("cancelling; no live worker serves it")
