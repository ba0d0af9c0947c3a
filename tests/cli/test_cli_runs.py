from __future__ import annotations

from dataclasses import fields

from cli_project import Project

from holdfast import RunInfo


def test_runs_are_listed_newest_first_with_what_they_wait_for_or_died_of(history: Project):
    done = history("runs")
    assert done.code == 0
    head, *lines = done.out.splitlines()
    assert head.split() == ["id", "workflow", "state", "started", "took", "waiting", "for", "/", "error"]
    assert [line.split()[0] for line in lines] == ["order-8", "payer", "crasher", "order-7", "etl-bad", "etl-acme"]
    by_id = {line.split()[0]: line for line in lines}
    assert "completed" in by_id["etl-acme"]
    assert "ValueError: [red]no such[/red] customer" in by_id["etl-bad"]
    assert "died 3 times while this was the only run it held" in by_id["crasher"]
    assert "no live worker serves it" in by_id["order-8"]
    assert by_id["order-7"].endswith("signal 'approved'; no live worker serves it")


def test_output_to_a_pipe_has_no_colours_and_recorded_text_cannot_steer_the_terminal(history: Project):
    out = history("runs").out
    assert "\x1b" not in out
    assert "\\x1b[31m" in out


def test_ids_are_never_cut(project: Project):
    seed = "import asyncio; from app import etl; asyncio.run(etl('x' * 150))"
    assert project.python("-c", seed).code == 0
    assert f"etl-{'x' * 150} " in project.here("runs").out


def test_runs_as_json_are_an_array_with_stable_names(history: Project):
    runs = history.here("runs", "--json").json
    assert [run["id"] for run in runs] == ["order-8", "payer", "crasher", "order-7", "etl-bad", "etl-acme"]
    assert set(runs[0]) == {field.name for field in fields(RunInfo)}
    bad = runs[4]
    assert (bad["state"], bad["tags"], bad["queue"]) == ("failed", ["nightly"], "default")
    assert bad["error"] == {"type": "builtins.ValueError", "message": "[red]no such[/red] customer \x1b[31m"}
    assert runs[3]["waits_for"] == "signal 'approved'"


def test_runs_can_be_narrowed_by_state_workflow_tag_and_number(history: Project):
    def ids(*options: str) -> list[str]:
        return [run["id"] for run in history.here("runs", "--json", *options).json]

    assert ids("--state", "failed", "--state", "dead") == ["crasher", "etl-bad"]
    assert ids("--workflow", "order") == ["order-8", "order-7"]
    assert ids("--tag", "nightly") == ["etl-bad", "etl-acme"]
    assert ids("--limit", "2") == ["order-8", "payer"]
    assert ids("--state", "cancelled") == []
    assert "no run matches" in history.here("runs", "--state", "cancelled").out


def test_a_state_that_does_not_exist_is_a_usage_error_that_lists_the_states(history: Project):
    done = history.here("runs", "--state", "finished")
    assert done.code == 2
    assert "'completed'" in done.err


def test_a_missing_database_is_not_created(project: Project):
    for command in (["runs"], ["show", "x"], ["signal", "x", "go"], ["retry", "x"], ["cancel", "x"], ["disable"]):
        done = project.here(*command)
        assert done.code == 1
        assert done.out == ""
        assert f"there is no database at {project.database} yet" in done.err
        assert "--url" in done.err
        assert "Traceback" not in done.err
    assert not project.database.exists()


def test_a_url_that_names_no_store_is_one_readable_message(project: Project):
    done = project("runs", "--url", "mysql://somewhere")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: no store is known for mysql:// URLs")
    assert "Traceback" not in done.err


def test_a_file_of_another_kind_is_one_readable_message(project: Project):
    project.database.write_text("these are not the runs you are looking for " * 20)
    done = project.here("runs")
    assert done.code == 1
    assert "is not a SQLite database" in done.err
    assert "Traceback" not in done.err
