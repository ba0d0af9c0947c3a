"""Which store a command is about: said before or behind its name, and said again by what it advises to type next."""

from __future__ import annotations

import pytest
from cli_project import Project

from holdfast.cli.shared.store_access import with_store_options

IN_GROUPS = [
    (("dead",), ("show", "etl-bad")),
    (("dead",), ("retry", "--all")),
    (("dead",), ("purge", "--all", "--older-than", "1d", "--dry-run")),
    (("queues",), ("pause", "default")),
    (("addresses",), ("set", "letters", "--lease", "60")),
    (("policies",), ("delete", "mailer")),
]


@pytest.mark.parametrize(("group", "words"), IN_GROUPS, ids=lambda words: " ".join(words))
def test_a_group_passes_store_options_to_its_commands(
    project: Project, seeded: Project, group: tuple[str, ...], words: tuple[str, ...]
):
    before = project.here(*group, "--url", seeded.url, *words)
    assert (before.code, before.err) == (0, "")
    behind = project.here(*group, *words, "--url", seeded.url)
    assert (behind.code, behind.err) == (0, "")
    assert not project.database.exists()


def test_store_options_may_come_before_and_after_the_subcommand(project: Project, seeded: Project):
    done = project.here("queues", "--url", seeded.url, "show", "llm", "--namespace", "acme")
    assert done.code == 1
    assert f"there is no database at {seeded.folder / 'runs.acme.db'} yet" in done.err


def test_what_narrows_a_list_is_not_lost_before_a_command_that_deletes(seeded: Project):
    done = seeded.here("dead", "--workflow", "etl", "purge", "--all", "--older-than", "0s", "--yes")
    assert done.code == 2
    assert "--workflow before `purge` is for the list alone" in done.err
    assert seeded.here("queues", "--json", "show", "llm").code == 2
    assert seeded.here("dead", "--workflow", "etl").out == "no run of workflow 'etl' is dead\n"


def test_what_is_advised_is_about_the_same_store(project: Project, seeded: Project):
    place = f"--url {seeded.url}"
    assert f"`holdfast resume order-7 {place}`" in project.here("pause", "order-7", "--url", seeded.url).out
    assert f"`holdfast enable etl {place}`" in project.here("disable", "etl", "--url", seeded.url).out
    assert f"`holdfast enable etl {place}`" in project.here("runs", "--url", seeded.url).out
    assert f"holdfast enable etl {place}" in project.here("doctor", "--url", seeded.url).out
    failed = project.here("show", "etl-bad", "--url", seeded.url).out
    assert f"`holdfast retry etl-bad {place}`" in failed
    assert "--url" not in seeded.here("show", "etl-bad").out


def test_commands_that_need_the_store_are_not_suggested_for_a_server():
    advice = "`holdfast worker app` serves it, `holdfast runs` lists it, `holdfast check app.py` looks at it"
    assert with_store_options(None, advice) == advice
    assert with_store_options("https://h", advice) == advice.replace("runs`", "runs --url https://h`")
    assert with_store_options("a.db", advice).count("--url a.db`") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fork", "etl-acme", "--at", "extract", "--output", "{"), "--output is not JSON"),
        (("fork", "etl-acme", "--output", "3"), "say which with --at STEP"),
        (("settle", "etl-bad", "check"), "say one of the two"),
        (("settle", "etl-bad", "check", "--output", "yes"), "A string needs its quotation marks"),
        (("addresses", "set", "mailer"), "what is to be set?"),
        (("policies", "set", "mailer"), "limits nothing"),
        (("queues", "set", "llm"), "what is to be set?"),
    ],
)
def test_mistyped_options_exit_with_2(seeded: Project, words: tuple[str, ...], message: str):
    done = seeded.here(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
