from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_project import APP, Project

from holdfast.services.journal_files import Journal


@pytest.fixture(scope="module")
def journals(template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(shutil.copytree(template.folder, tmp_path_factory.mktemp("journals") / "project"))
    for run in ("etl-acme", "etl-bad", "order-7"):
        assert project.here("export", run, "--output", str(project.folder / f"{run}.json")).code == 0
    return project


@pytest.fixture
def exported(journals: Project, tmp_path: Path) -> Project:
    """A folder with the journals of a completed run, a failed one and one that waits."""
    return Project(shutil.copytree(journals.folder, tmp_path / "exported"))


def rewrite(project: Project, old: str, new: str) -> None:
    assert old in APP
    (project.folder / "app.py").write_text(APP.replace(old, new))


def test_export_writes_the_journal_to_stdout(seeded: Project):
    done = seeded("export", "etl-acme")
    assert (done.code, done.err) == (0, "")
    journal = Journal.loads(done.out)
    assert journal.run.id == "etl-acme"
    assert [record.name for record in journal.records] == ["extract", "0.01 s", "load", "load", "load", "check"]
    assert json.loads(done.out)["run"]["output"] == '{"sum":6}'


def test_export_to_a_file_writes_the_same_and_says_so(seeded: Project):
    done = seeded("export", "etl-acme", "-o", "acme.json")
    assert (done.code, done.out) == (0, "")
    assert done.err == "wrote run 'etl-acme' (completed, 6 records) to acme.json\n"
    assert (seeded.folder / "acme.json").read_text() == seeded("export", "etl-acme").out


def test_export_is_exact_whatever_the_terminals_encoding(seeded: Project):
    assert seeded.here("signal", "order-7", "note", '"grüße ✓"').code == 0
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "export", "order-7"],
        cwd=seeded.folder,
        env=seeded.environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C"),
        capture_output=True,
        timeout=60,
    )
    assert Journal.loads(done.stdout).signals[0].payload == '"grüße ✓"'.encode()


def test_export_of_an_unknown_run_suggests_the_right_one(seeded: Project):
    done = seeded.here("export", "etl-acm")
    assert (done.code, done.out) == (1, "")
    assert "Did you mean etl-acme or" in done.err


def test_export_to_a_place_that_cannot_be_written_says_so(seeded: Project):
    done = seeded("export", "etl-acme", "-o", "no/such/folder.json")
    assert done.code == 1
    assert "no/such/folder.json cannot be written: No such file or directory" in done.err


def test_help_says_that_recorded_values_are_in_the_file(project: Project):
    assert "contains recorded values as they are" in " ".join(project.here("export", "--help").out.split())


def test_replay_of_unchanged_code_fits(exported: Project):
    done = exported("replay", "etl-acme.json", "app:etl")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "run 'etl-acme' of workflow 'etl' (recorded as completed): 6 records replayed, nothing executed",
        "the code matches: it ends completed, with the recorded result",
    ]


@pytest.mark.parametrize("target", ["app", "app:etl", "app.py", "app.py:etl"])
def test_replay_takes_every_form_of_target(exported: Project, target: str):
    assert exported("replay", "etl-acme.json", target).code == 0


def test_replay_reports_that_a_failed_run_fails_as_recorded(exported: Project):
    (exported.folder / "mended").touch()  # what the step would do now does not matter: it is not executed
    done = exported("replay", "etl-bad.json", "app")
    assert done.code == 0
    assert "the code matches: it fails as recorded, with ValueError: [red]no such[/red] customer \\x1b[31m" in done.out


def test_replay_shows_what_an_unfinished_run_waits_for(exported: Project):
    done = exported("replay", "order-7.json", "app")
    assert done.code == 0
    assert "(recorded as waiting): 0 records replayed" in done.out
    assert "the code matches: it continues, and waits for signal 'approved'" in done.out


def test_replay_of_code_that_drifted_shows_the_difference_and_exits_with_1(exported: Project):
    rewrite(exported, "await check(customer)\n    return", "await extract(customer)\n    return")
    done = exported("replay", "etl-acme.json", "app")
    assert (done.code, done.err) == (1, "")
    assert "5 of 6 records replayed" in done.out
    assert "the code does not match: NonDeterminismError" in done.out
    assert "≠ #5 step check" in done.out
    assert "#5 step extract" in done.out


def test_replay_of_code_with_another_result_exits_with_1(exported: Project):
    rewrite(exported, '{"sum": sum(parts)}', '{"sum": -sum(parts)}')
    done = exported("replay", "etl-acme.json", "app")
    assert done.code == 1
    assert "the code does not match: it ends differently" in done.out
    assert "recorded: {'sum': 6}" in done.out
    assert "today:    {'sum': -6}" in done.out


def test_replay_reads_stdin(exported: Project):
    text = (exported.folder / "etl-acme.json").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "replay", "-", "app"],
        cwd=exported.folder,
        env=exported.environment(),
        input=text,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert b"the code matches" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("none.json", "app"), "none.json cannot be read: No such file or directory"),
        (("app.py", "app"), "app.py is not a journal: it is not JSON"),
        (("etl-acme.json", "no_such_module"), "no module is named 'no_such_module'"),
        (("etl-acme.json", "app:order"), "a run of workflow 'etl', which is not in app:order (there: order)"),
    ],
)
def test_replay_without_anything_to_compare_exits_with_2(exported: Project, args: tuple[str, str], message: str):
    done = exported("replay", *args)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_replay_touches_no_store(exported: Project):
    before = exported.database.read_bytes()
    assert exported("replay", "etl-acme.json", "app").code == 0
    assert exported.database.read_bytes() == before


def test_runs_with_children_and_compensations_are_replayed_without_a_store(undone: Project):
    assert undone.here("pause", "nap-3600").code == 0
    for run in ("small", "broken", "trip-bad", "nap-3600"):
        assert undone.here("export", run, "-o", str(undone.folder / f"{run}.json")).code == 0
    undone.database.unlink()
    verdicts = {
        "small": "the code matches: it ends completed, with the recorded result",
        "broken": "the code matches: it fails as recorded, with RunFailed: "
        "run 'broken-leaf-2' of workflow 'leaf' failed",
        "trip-bad": "the code matches: it fails as recorded, with ValueError: [red]no such[/red] customer",
        "nap-3600": "the code matches: it continues, and waits for",
    }
    for run, expected in verdicts.items():
        done = undone("replay", f"{run}.json", "app")
        assert (done.code, done.err) == (0, "")
        assert expected in done.out
    assert not undone.database.exists()
    rewrite(undone, "@step(compensate=release)\ndef reserve", "@step\ndef reserve")
    drifted = undone("replay", "trip-bad.json", "app")
    assert drifted.code == 1
    assert "2 of 3 records replayed" in drifted.out
