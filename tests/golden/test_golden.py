"""Whatever a release has recorded, the code of today can carry on: same result, same calls, same idempotency keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden_flows import FLOWS
from record_journals import CURRENT, HERE, STATES, trace_replay

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.services.journal_files import Journal
from holdfast.testing.journal_replay import replay, replay_journal

JOURNALS = sorted(HERE.glob("*/*.json"))


def get_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def read_journal(name: str) -> Journal:
    return Journal.read(CURRENT / f"{name}.json")


@pytest.mark.parametrize("path", JOURNALS, ids=get_name)
def test_a_recorded_run_comes_to_the_same_end_by_the_same_calls(path: Path):
    journal = Journal.read(path)
    replayed = replay_journal(path, FLOWS[journal.run.workflow])
    assert replayed.replayed_count == len(journal.records)
    assert replayed.output_bytes == journal.run.output
    assert trace_replay(replayed) == path.with_suffix(".trace").read_bytes().decode()


@pytest.mark.parametrize("path", JOURNALS, ids=get_name)
def test_a_run_that_was_killed_after_any_of_its_records_can_go_on(path: Path):
    journal = Journal.read(path)
    trace = trace_replay(replay(journal, FLOWS[journal.run.workflow]))
    under_way = replace(journal.run, state=RunState.PENDING, output=None, error=None)
    for length in range(len(journal.records)):
        replayed = replay(Journal(under_way, journal.records[:length]), FLOWS[journal.run.workflow])
        assert replayed.is_match
        assert trace.startswith(trace_replay(replayed))


@pytest.mark.parametrize("path", JOURNALS, ids=get_name)
def test_a_journal_that_is_read_is_written_as_it_was(path: Path):
    assert Journal.read(path).dumps().encode() == path.read_bytes()


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_replay_does_not_depend_on_the_hash_seed(seed: str):
    code = (
        "import golden_flows, record_journals, pathlib\n"
        "from holdfast.testing.journal_replay import replay_journal\n"
        "for path in sorted(record_journals.HERE.glob('*/*.json')):\n"
        "    trace = record_journals.trace_replay(replay_journal(path))\n"
        "    assert trace.encode() == path.with_suffix('.trace').read_bytes(), path\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_workflow_has_been_recorded_by_this_version():
    recorded = {path.stem: Journal.read(path) for path in CURRENT.glob("*.json")}
    assert sorted(recorded) == sorted(FLOWS), "record what is missing with `python tests/golden/record_journals.py`"
    for name, journal in recorded.items():
        assert journal.run.workflow == name
        assert journal.run.state is STATES.get(name, RunState.COMPLETED)


def test_no_workflow_was_taken_away():
    assert {Journal.read(path).run.workflow for path in JOURNALS} <= set(FLOWS)


def test_a_steps_recorded_idempotency_key_is_the_one_of_today():
    journal = read_journal("golden_keys")
    replayed = replay(journal, FLOWS["golden_keys"])
    recorded = {record.position: json.loads(record.payload or b"") for record in journal.records}
    assert replayed.idempotency_keys == recorded


def test_the_set_contains_the_cases_that_it_is_there_for():
    journals = {path.stem: Journal.read(path) for path in CURRENT.glob("*.json")}
    records = {name: journal.records for name, journal in journals.items()}
    in_order = [record.position for record in records["golden_gather"]]
    assert in_order != sorted(in_order)
    assert journals["golden_timers"].run.epoch > 1, "it was parked"
    assert journals["golden_once"].run.epoch > 1, "it was taken over"
    assert any(b"StepOutcomeUnknown" in (record.payload or b"") for record in records["golden_once"])
    assert [record.attempts for record in records["golden_retries"]] == [3, 2]
    assert records["golden_deadline"][1].kind is RecordKind.DEADLINE
    assert [record.position for record in records["golden_mailbox"] if record.kind is RecordKind.SIGNAL] == [0]
    assert any(record.payload is not None and record.payload[:1] == b"\x01" for record in records["golden_tagged"])
    [attempt] = journals["golden_in_flight"].attempts
    assert (attempt.name, attempt.progress) == ("copy", b'{"rows":3}')
    assert [signal.name for signal in journals["golden_waiting"].signals] == ["note"]


def test_the_set_contains_children_compensations_cancels_retries_forks_and_patches():
    journals = {path.stem: Journal.read(path) for path in CURRENT.glob("*.json")}
    kinds = {name: [record.kind for record in journal.records] for name, journal in journals.items()}
    assert {RecordKind.CHILD, RecordKind.START} <= set(kinds["golden_children"])
    assert not all(record.ok for record in journals["golden_children"].records if record.kind is RecordKind.CHILD)
    assert journals["golden_child"].run.parent == "golden_children"
    assert "golden_waiting_for_child:golden_listener-2" in journals["golden_waiting_for_child"].run.waits_for
    assert kinds["golden_undone"].count(RecordKind.COMPENSATION) == 3
    assert [record.ok for record in journals["golden_not_undone"].records][-2:] == [True, False]
    assert kinds["golden_class_undone"] == [RecordKind.STEP, RecordKind.STEP, RecordKind.COMPENSATION]
    assert kinds["golden_cancelled"] == [RecordKind.STEP, RecordKind.CANCEL, RecordKind.STEP, RecordKind.COMPENSATION]
    numbers = [record.seq for record in journals["golden_retried"].records]
    assert numbers != list(range(len(numbers))), "a retry has taken records back"
    fork = journals["golden_fork"].run
    assert (fork.forked_from, len(fork.seed) > 16) == ("golden_fork-origin", True)
    patches = [record.name for record in journals["golden_patched"].records if record.kind is RecordKind.PATCH]
    assert (patches[0], patches[-1], len(patches)) == ("in both branches", "at the end", 4)
    names = [record.name for record in journals["golden_class"].records]
    assert (names.count("weigh"), names.count("split"), names[-1]) == (3, 0, "report")


def test_a_released_folder_is_not_recorded_again():
    done = subprocess.run(
        [sys.executable, HERE / "record_journals.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "is there already" in done.stderr
