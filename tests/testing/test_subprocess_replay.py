"""Workflows are found again by other Python processes, however their module was imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

FLOWS = """
    from holdfast import step, workflow

    @step
    async def note(what: str) -> str:
        return what

    @workflow
    async def sorted_words() -> int:
        for word in sorted({"apple", "pear", "fig", "kiwi"}):
            await note(word)
        return 1

    @workflow
    async def any_order() -> int:
        for word in {"apple", "pear", "fig", "kiwi", "plum"}:
            await note(word)
        return 1
"""

CHECK = """
    def check(runner_of, crash_safety_error):
        try:
            runner_of().crash_everywhere_sync(any_order)
        except crash_safety_error as error:
            assert "order of a set" in str(error) and "PYTHONHASHSEED" in str(error)
        else:
            raise AssertionError("not found")
"""

TEST = """
    import pytest
    from holdfast.testing import CrashSafetyError, Runner

    def test_it():
        check(lambda: Runner(max_pairs=0, replay_processes=1), CrashSafetyError)
"""


def write(path: Path, *parts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(dedent(part) for part in parts), encoding="utf-8")
    return path


def python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTHONHASHSEED"] = "7"  # with a random one, a set now and then has the order that it has in the child
    return subprocess.run(
        [sys.executable, "-W", "error", *args], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


def run_pytest(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:asyncio", "-W", "error"]
    return python("-m", "pytest", *options, *args, cwd=cwd)


def check_success(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_in_a_test_module(tmp_path: Path, mode: str) -> None:
    write(tmp_path / "suite" / "test_words.py", FLOWS, CHECK, TEST)
    check_success(run_pytest("suite", f"--import-mode={mode}", cwd=tmp_path))


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_in_a_package_with_relative_imports(tmp_path: Path, mode: str) -> None:
    steps, _, flows = dedent(FLOWS).partition("@workflow")
    write(tmp_path / "suite" / "__init__.py", "")
    write(tmp_path / "suite" / "steps.py", steps)
    write(tmp_path / "suite" / "flows.py", "from .steps import note, workflow", f"@workflow{flows}")
    write(tmp_path / "suite" / "test_words.py", "from .flows import any_order", CHECK, TEST)
    check_success(run_pytest("suite", f"--import-mode={mode}", cwd=tmp_path))


def test_in_a_script(tmp_path: Path) -> None:
    guarded = """
        if __name__ == "__main__":
            from holdfast.testing import CrashSafetyError, Runner
            check(lambda: Runner(max_pairs=0, replay_processes=1), CrashSafetyError)
    """
    check_success(python(str(write(tmp_path / "script.py", FLOWS, CHECK, guarded)), cwd=tmp_path))


def test_a_script_without_a_guard_does_not_breed_processes(tmp_path: Path) -> None:
    unguarded = """
        from holdfast.testing import CrashSafetyError, Runner
        with open("begun", "a") as begun:
            begun.write("x")
        check(lambda: Runner(max_pairs=0, replay_processes=1), CrashSafetyError)
    """
    check_success(python(str(write(tmp_path / "script.py", FLOWS, CHECK, unguarded)), cwd=tmp_path))
    assert (tmp_path / "begun").read_text() == "xx"  # itself, and its one child


def test_what_a_dead_process_left_open_stays_so_when_python_ends(tmp_path: Path) -> None:
    script = """
        import asyncio
        from holdfast import step, workflow
        from holdfast.testing import Runner

        @step
        async def holding() -> int:
            try:
                await asyncio.sleep(0.01)
                return 1
            finally:
                open("given back", "w").close()

        @step
        async def quick() -> int:
            return 1

        @workflow
        async def both() -> None:
            await asyncio.gather(holding(), quick())

        runner = Runner()
        runner.simulate_crash_after(quick)
        assert runner.run_sync(both).has_crashed
    """
    done = python(str(write(tmp_path / "script.py", script)), cwd=tmp_path)
    check_success(done)
    assert done.stderr == ""
    assert not (tmp_path / "given back").exists()


def test_a_module_that_can_only_be_imported_here_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "moody.py", 'import os\nassert "MOOD" in os.environ, "not in the mood"', FLOWS)
    test = """
        import os
        import pytest
        os.environ["MOOD"] = "1"
        from moody import sorted_words
        del os.environ["MOOD"]
        from holdfast.testing import CrashSafetyWarning, Runner

        def test_warned():
            with pytest.warns(CrashSafetyWarning, match="not in the mood"):
                assert Runner(max_pairs=0, replay_processes=2).crash_everywhere_sync(sorted_words).process_count == 0

        def test_as_an_error_it_leaves_no_process_behind():
            with pytest.raises(CrashSafetyWarning):
                Runner(max_pairs=0, replay_processes=2).crash_everywhere_sync(sorted_words)
    """
    write(tmp_path / "test_moody.py", test)
    check_success(run_pytest("test_moody.py", cwd=tmp_path))
