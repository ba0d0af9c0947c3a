"""The pytest plugin: fixtures for every way of writing async tests, and no weight for those who do not use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

FLOWS = """
    import asyncio
    from datetime import timedelta
    import pytest
    from holdfast import now, step, workflow

    @step
    async def note(what: int) -> int:
        return what

    @workflow(id="nap-{days}")
    async def nap(days: int) -> str:
        await note(1)
        await asyncio.sleep(days * 86400)
        await note(2)
        return now().date().isoformat()
"""

PLAIN = """
    def test_plain(holdfast_runner, holdfast_clock):
        holdfast_runner.simulate_crash_after(step=1)
        assert holdfast_runner.run_sync(nap, 7).has_crashed
        result = holdfast_runner.resume_sync("nap-7")
        assert result.output == "2030-01-08"
        assert result.steps[1].was_replayed
        assert holdfast_clock.datetime.day == 8

    def test_each_test_has_a_runner_of_its_own(holdfast_runner, holdfast_clock):
        assert holdfast_clock is holdfast_runner.clock
        assert holdfast_clock.datetime.day == 1
        started = holdfast_runner.start_sync(nap, 7)
        holdfast_clock.advance(timedelta(days=7))
        holdfast_runner.advance_sync(0)
        assert holdfast_runner.result_sync(started.run_id).status == "completed"
"""

ASYNC = """
    async def test_async(holdfast_runner, holdfast_clock):
        holdfast_runner.simulate_crash_during(step=2)
        assert (await holdfast_runner.run(nap, 7)).has_crashed
        assert (await holdfast_runner.resume("nap-7")).output == "2030-01-08"
        started = await holdfast_runner.start(nap, 1)
        await holdfast_runner.advance(timedelta(days=1))
        assert (await holdfast_runner.result(started.run_id)).status == "completed"
"""

AS_ANYIO = "pytestmark = pytest.mark.anyio\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"


WARNINGS = ("-W", "error", "-W", "ignore:The configuration option:pytest.PytestDeprecationWarning")
"""All are errors but one, which is about a setting of pytest-asyncio that its users may leave open."""


def run_pytest(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *WARNINGS, *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("head", "body", "args"),
    [
        ("", PLAIN, ["-p", "no:asyncio", "-p", "no:anyio"]),
        (AS_ANYIO, ASYNC, ["-p", "no:asyncio"]),
        (AS_ANYIO, ASYNC, []),
        ("pytestmark = pytest.mark.asyncio\n", ASYNC, ["-p", "no:anyio", "-o", "asyncio_mode=strict"]),
        ("", ASYNC, ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"]),
    ],
    ids=["plain", "anyio", "anyio beside asyncio", "asyncio", "asyncio, auto"],
)
def test_the_fixtures_work_for_every_kind_of_test(tmp_path: Path, head: str, body: str, args: list[str]) -> None:
    (tmp_path / "test_nap.py").write_text("\n".join([dedent(FLOWS), head, dedent(body)]), encoding="utf-8")
    done = run_pytest(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_fixtures_are_listed_with_what_they_are_for(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass", encoding="utf-8")
    listed = run_pytest(tmp_path, "--fixtures").stdout
    assert "holdfast_runner" in listed
    assert "workflows in memory and in virtual time" in listed
    assert "holdfast_clock" in listed


def test_the_plugin_weighs_nothing_until_it_is_used(tmp_path: Path) -> None:
    check = """
        import sys

        def test_light():
            assert "holdfast.testing.plugin" in sys.modules
            heavy = [name for name in sys.modules if name.startswith(("pydantic", "sqlite3", "holdfast."))]
            known = ["installation", "lazy_exports", "testing", "testing.plugin"]
            assert sorted(heavy) == [f"holdfast.{name}" for name in known]
    """
    (tmp_path / "test_light.py").write_text(dedent(check), encoding="utf-8")
    done = run_pytest(tmp_path, "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout + done.stderr
