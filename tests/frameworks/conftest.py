"""Kill tests of agents in other frameworks: ``--kills N`` points each, on ``--kill-stores``.

The tests of a framework run in an environment of its own (see ``environments``). In another one, they are left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), *(str(HERE.parent / name) for name in ("agents", "stores"))]

from kill_kit import App, check_kill, choose_kills, make_reference  # noqa: E402

MODULES = {
    "langgraph": "langgraph",
    "openai_agents": "agents.run",
    "crewai": "crewai",
    "google_adk": "google.adk",
    "claude_agent": "claude_agent_sdk",
    "fastapi": "fastapi",
    "clients": "openai",
}
"""By the folder of its tests, what a framework is imported as."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.is_dir() and collection_path.parent == HERE and collection_path.name in MODULES:
        return None if _is_installed(MODULES[collection_path.name]) else True
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


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


@contextlib.contextmanager
def open_store(store: str, folder: Path) -> Iterator[str]:
    """The URL of a new store: ``sqlite``, ``postgres``, or ``temporal``."""
    folder.mkdir(parents=True, exist_ok=True)
    if store == "sqlite":
        yield f"sqlite:///{folder / 'runs.db'}"
    elif store == "postgres":
        import postgres_server

        with postgres_server.database() as url:
            yield url
    else:
        import temporal_server

        yield temporal_server.fresh_url()
