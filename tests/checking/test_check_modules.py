"""Names that are imported from modules of the same program are known by their source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from check_cases import MARK

from holdfast.checking.checker import check_code

STEPS = """
from holdfast import step, workflow

raise RuntimeError("nobody imports this")

reliable = step(retries=5)

@step
async def charge(cents): ...

@workflow
async def child(): ...

def plain(): ...
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder.joinpath(*name.split("__in__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def agrees(path: Path) -> None:
    """What is found in a file is what its marks say."""
    marks: list[tuple[int, str]] = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if match := MARK.search(line):
            marks += [(number, kind) for kind in match.group(1).split()]
    assert marks
    assert [(one.line, one.kind) for one in check_code([str(path)]).findings] == marks


def test_steps_of_a_neighboring_module(tmp_path: Path) -> None:
    app = """
import steps
from holdfast import workflow
from steps import charge, child, plain, reliable
from steps import charge as pay

@reliable
def mine():
    return open("x")

@workflow
async def flow():
    charge(1)  #! await
    pay(2)  #! await
    steps.charge(3)  #! await
    child()  #! await
    mine()  #! await
    plain()
    await charge(4)
    await steps.charge(5)
"""
    write(tmp_path, steps=STEPS, app=app)
    agrees(tmp_path / "app.py")
    assert "steps" not in sys.modules


def test_steps_of_a_package(tmp_path: Path) -> None:
    app = """
import shop.steps
from holdfast import workflow
from shop.steps import charge
from . import again, clients, steps
from .clients import model
from .steps import charge as pay

@workflow
async def flow():
    charge(1)  #! await
    pay(1)  #! await
    again(1)  #! await
    steps.charge(1)  #! await
    shop.steps.charge(1)  #! await
    await model.responses.create()  #! io
    await clients.model.responses.create()  #! io
"""
    clients = "from openai import AsyncOpenAI\nmodel = AsyncOpenAI()\n"
    write(
        tmp_path,
        shop__in__steps=STEPS,
        shop__in__app=app,
        shop__in__clients=clients,
        shop__in____init__="from .steps import charge as again\n",
    )
    agrees(tmp_path / "shop" / "app.py")


def test_a_module_of_ones_own_is_not_the_library_of_that_name(tmp_path: Path) -> None:
    app = "import redis, secrets\nfrom holdfast import workflow\n\n@workflow\nasync def flow():\n"
    write(tmp_path, redis="class Redis: ...\n", secrets="def choice(x): ...\n", app=app + "    secrets.choice([])\n")
    assert check_code([str(tmp_path / "app.py")]).findings == []


def test_imports_in_a_circle_have_an_end(tmp_path: Path) -> None:
    write(tmp_path, one="from two import thing\n", two="from one import thing\n")
    write(
        tmp_path,
        app="from one import thing\nfrom holdfast import workflow\n\n@workflow\nasync def flow():\n    thing()\n",
    )
    assert check_code([str(tmp_path)]).findings == []


def test_a_broken_neighboring_module_does_not_matter(tmp_path: Path) -> None:
    app = "from steps import charge\nfrom holdfast import workflow\n\n@workflow\nasync def flow():\n    charge()\n"
    write(tmp_path, steps="def (", app=app)
    report = check_code([str(tmp_path / "app.py")])
    assert (report.findings, report.read_errors) == ([], [])


def test_a_module_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "import time\nfrom holdfast import workflow\n\n@workflow\nasync def flow():\n    time.time()\n"
    write(tmp_path, pkg__in____init__="raise RuntimeError\n", pkg__in__jobs=bad)
    monkeypatch.chdir(tmp_path)
    assert [one.file for one in check_code(["pkg.jobs"]).findings] == [str(tmp_path / "pkg" / "jobs.py")]
    assert len(check_code(["pkg"]).findings) == 1


def test_folders_of_others_are_left_out(tmp_path: Path) -> None:
    bad = "import time\nfrom holdfast import workflow\n\n@workflow\nasync def flow():\n    time.time()\n"
    write(tmp_path, app=bad, venv__in__lib__in__app=bad, hidden__in__app=bad)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "hidden").rename(tmp_path / ".hidden")
    report = check_code([str(tmp_path), str(tmp_path / "app.py")])
    assert [one.file for one in report.findings] == [str(tmp_path / "app.py")]
    assert report.file_count == 1
