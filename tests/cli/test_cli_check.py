from __future__ import annotations

import pytest
from cli_project import APP, Project

BAD = """
import time
from holdfast import step, workflow

print("imported")


@step
async def charge(): ...


@workflow
async def flow(x):
    "ünï"; time.time()
    charge()
"""


@pytest.fixture
def shop(project: Project) -> Project:
    (project.folder / "bad.py").write_text(BAD)
    return project


def test_each_finding_is_a_line_with_its_place_and_the_way_out(shop: Project):
    done = shop("check", "bad.py")
    assert done.code == 1
    assert done.out.splitlines() == [
        "bad.py:14:12: clock: `time.time()`: the clock shows another time at every replay → use `holdfast.now()`, or "
        "read the clock in a step",
        "bad.py:15:5: await: `charge()`: the step is not awaited, so it never runs → `await` it, or hand it to "
        "`asyncio.gather`",
    ]
    assert done.err == "2 findings: 1 workflow in 1 file\n"


def test_findings_for_programs(shop: Project):
    done = shop("check", "bad.py", "--json")
    assert done.code == 1
    assert done.json[0] == {
        "file": "bad.py",
        "line": 14,
        "column": 12,
        "kind": "clock",
        "code_text": "`time.time()`",
        "reason": "the clock shows another time at every replay",
        "remedy": "use `holdfast.now()`, or read the clock in a step",
        "workflow": "flow",
    }
    assert done.err == ""
    assert shop("check", "app.py", "--json").json == []


def test_nothing_found_is_a_success(shop: Project):
    done = shop("check", "app.py")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"nothing found: {APP.count('@workflow')} workflows in 1 file\n"


def test_a_folder_is_checked_with_all_that_is_in_it(shop: Project):
    (shop.folder / "deep" / "er").mkdir(parents=True)
    (shop.folder / "deep" / "er" / "worse.py").write_text(BAD)
    done = shop("check", ".")
    assert done.code == 1
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["bad.py"] * 2 + ["deep/er/worse.py"] * 2
    assert shop("check", "deep", "bad.py").err == "4 findings: 2 workflows in 2 files\n"


def test_a_module_is_checked_by_its_name(shop: Project):
    done = shop("check", "bad")
    assert done.code == 1
    assert "bad.py:14:12: clock" in done.out
    assert "imported" not in done.out


@pytest.mark.parametrize(
    ("comment", "silenced"),
    [
        ("# holdfast: ignore", True),
        ("#holdfast:ignore", True),
        ("# noqa  # holdfast: ignore  (measured only for the log)", True),
        ("# holdfast: ignore[clock]", True),
        ("# holdfast: ignore[io, clock]", True),
        ("# holdfast: ignore[io]", False),
        ("# holdfast: ignored", False),
        ("# ignore", False),
        ("; '# holdfast: ignore'", False),
    ],
)
def test_a_comment_silences_its_line(shop: Project, comment: str, silenced: bool):
    (shop.folder / "bad.py").write_text(BAD.replace("time.time()", f"time.time()  {comment}"))
    done = shop("check", "bad.py")
    assert ("clock" in done.out) is not silenced
    assert "await" in done.out


def test_a_comment_may_stand_at_the_end_of_a_long_call(shop: Project):
    (shop.folder / "bad.py").write_text(BAD.replace("time.time()", "time.time(\n    )  # holdfast: ignore"))
    assert "clock" not in shop("check", "bad.py").out


def test_files_that_cannot_be_parsed_are_named_and_the_others_are_checked(shop: Project):
    (shop.folder / "broken.py").write_text("def f(:\n")
    (shop.folder / "latin.py").write_bytes(b"x = '\xe4'\n")
    done = shop("check", "broken.py", "latin.py", "bad.py")
    assert done.code == 2
    assert "bad.py:14:12: clock" in done.out
    assert "broken.py:1:7 cannot be parsed: invalid syntax" in done.err
    assert "latin.py cannot be read as text" in done.err
    assert "in 1 file\n" in done.err
    assert "Traceback" not in done.err


def test_files_that_cannot_be_read_have_no_summary(shop: Project):
    done = shop("check", f"{'a' * 300}.py")
    assert done.code == 2
    assert "File name too long" in done.err
    assert "nothing found" not in done.err


@pytest.mark.parametrize("target", ["nowhere.py", "no/where", "nomodule", "app:etl", "a" * 300])
def test_what_is_not_there_is_named(shop: Project, target: str):
    done = shop("check", target, "app.py")
    assert done.code == 2
    assert done.err.count("error: ") == 1
    assert target in done.err


def test_a_target_is_needed(shop: Project):
    assert shop("check").code == 2
