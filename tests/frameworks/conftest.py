"""Kill tests of agents in other frameworks: ``--kills N`` points each, on ``--kill-stores``.

The tests of a framework run in an environment of its own (see ``environments``). In another one, they are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), *(str(HERE.parent / name) for name in ("agents", "stores"))]

from environments import get_requirements, is_environment_of, list_requirements  # noqa: E402
from framework_tests import FrameworkFile  # noqa: E402
from kill_kit import App, check_kill, choose_kills, make_reference, open_store  # noqa: E402


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The tests of a framework are one test, except in the framework's environment."""
    if file_path not in list_requirements() or is_environment_of(file_path.stem) or sys.platform == "win32":
        return None
    return FrameworkFile.from_parent(parent, path=file_path)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """The folders of all other frameworks."""
    name = collection_path.name
    is_framework = collection_path.parent == HERE and get_requirements(name) in list_requirements()
    return True if is_framework and not is_environment_of(name) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kill_store" in metafunc.fixturenames:
        metafunc.parametrize("kill_store", metafunc.config.getoption("--kill-stores").split(","))


@pytest.fixture
def kill_store_url(kill_store: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a new store, for a test that kills processes itself; once for each of ``--kill-stores``."""
    with open_store(kill_store, tmp_path / kill_store) as url:
        yield url


@pytest.fixture
def check_kills(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[App], None]:
    """Kills an app at the chosen number of points on the chosen stores, and checks what its successor does again."""
    count: int = request.config.getoption("--kills")
    stores: str = request.config.getoption("--kill-stores")

    def check(app: App) -> None:
        for store in stores.split(","):
            with open_store(store, tmp_path / f"{store}-reference") as url:
                reference = make_reference(app, tmp_path / f"{store}-reference", url)
            for kill in choose_kills(reference, count):
                folder = tmp_path / f"{store}-{kill}".replace(":", "-")
                with open_store(store, folder) as url:
                    check_kill(app, reference, kill, folder, url)

    return check
