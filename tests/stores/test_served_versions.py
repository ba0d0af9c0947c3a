"""Served names, and the reasons why nobody takes up a run."""

from __future__ import annotations

import pytest

from holdfast.stores.served_versions import (
    explain_invalid_version,
    explain_unserved,
    make_served_name,
    split_served_name,
)
from holdfast.stores.workers import Worker


def serving(*names: str, queues: tuple[str, ...] | None = None) -> Worker:
    return Worker(1, "w", "h", 1, "live", names, queues, 0.0, 10.0)


@pytest.mark.parametrize("workflow", ["etl", "a@b", "@", "a@", "@b", "", "päckchen"])
@pytest.mark.parametrize("version", ["", "1", "2026-11-15", "v 1.2"])
def test_a_served_name_stands_for_one_workflow_and_version(workflow: str, version: str):
    assert split_served_name(make_served_name(workflow, version)) == (workflow, version)


def test_without_a_version_a_workflow_is_served_under_its_name():
    assert make_served_name("etl", "") == "etl"
    assert make_served_name("etl", "2") == "etl@2"


@pytest.mark.parametrize(
    ("version", "part"), [(2, "version='2'"), ("a@b", "no '@'"), ("x" * 101, "100"), ("\n", "printable")]
)
def test_an_invalid_version_is_refused(version: object, part: str):
    assert part in (explain_invalid_version(version) or "")
    assert explain_invalid_version("2026.11-b") is None


@pytest.mark.parametrize(
    ("version", "queue", "workers", "short", "advice"),
    [
        ("1", "default", [], "no live worker serves it", "no live worker serves workflow 'etl': start one with"),
        ("1", "default", [serving("other@1")], "no live worker serves it", "no live worker serves workflow 'etl'"),
        (
            "1",
            "default",
            [serving("etl@2"), serving("etl")],
            "no live worker serves version '1'",
            "no live worker serves version '1' of workflow 'etl' (served: those without one, '2'): start a worker with "
            "the code of that version, or let other code take these runs, too: @workflow(version=..., serves=['1'])",
        ),
        (
            "",
            "default",
            [serving("etl@2")],
            "no live worker serves runs without a version",
            "no live worker serves runs without a version of workflow 'etl' (served: '2'): start a worker with the "
            "code of that version, or let other code take these runs, too: @workflow(version=..., serves=[''])",
        ),
        (
            "1",
            "slow",
            [
                serving("etl@1", queues=("fast",)),
                serving("etl@2"),
            ],  # the other one serves the queue, but not the version
            "no live worker serves it",
            "no live worker for workflow 'etl' in version '1' serves queue 'slow': start one with `holdfast worker "
            "MODULE --queue slow`",
        ),
        (
            "",
            "command:k",
            [serving("etl", queues=("command:other",))],
            "no live process executes it",
            "no live process executes script 'etl': start the same `holdfast run` command again",
        ),
    ],
)
def test_why_no_worker_claims_a_run(version: str, queue: str, workers: list[Worker], short: str, advice: str):
    found = explain_unserved("etl", version, queue, workers)
    assert found is not None
    assert found.summary == short
    assert found.message.startswith(advice)


@pytest.mark.parametrize(
    ("version", "queue", "workers"),
    [
        ("1", "slow", [serving("etl@2"), serving("etl@2", "etl@1", queues=("slow",))]),
        ("", "default", [serving("etl")]),
        (None, None, [serving("etl@7", queues=())]),
    ],
)
def test_a_run_that_a_worker_serves_needs_no_advice(version: str | None, queue: str | None, workers: list[Worker]):
    assert explain_unserved("etl", version, queue, workers) is None
