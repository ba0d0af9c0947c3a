"""Databases that real processes have filled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from agents_project import make_lab
from cli_project import SEED_FAMILIES, Project, make_project, seed


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder without a database."""
    return make_project(tmp_path / "project")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("template") / "project")
    seed(project)
    return project


@pytest.fixture
def seeded(template: Project, tmp_path: Path) -> Project:
    """A completed run, a failed one and one that waits for a signal."""
    return Project(shutil.copytree(template.folder, tmp_path / "seeded"))


@pytest.fixture(scope="session")
def history(template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same, and a run that is dead, and one whose worker died in a ``once`` step. Only for reading."""
    project = Project(shutil.copytree(template.folder, tmp_path_factory.mktemp("history") / "project"))
    project.start("crasher")
    for _ in range(3):
        worker = project.worker("app:crasher")
        assert worker.wait(timeout=30) == 9
    # The next worker finds the third death.
    project.start("payer")
    worker = project.worker("app:payer")
    assert worker.wait(timeout=30) == 9
    project.start("order", 8)
    return project


@pytest.fixture(scope="session")
def relatives(template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """As the template, and runs that have started others, were undone, or returned a lot. Only for reading."""
    project = Project(shutil.copytree(template.folder, tmp_path_factory.mktemp("relatives") / "project"))
    seed(project, SEED_FAMILIES)
    return project


@pytest.fixture
def undone(relatives: Project, tmp_path: Path) -> Project:
    """The same, to be changed."""
    return Project(shutil.copytree(relatives.folder, tmp_path / "undone"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Agents, and runs of theirs. Only for reading."""
    return make_lab(tmp_path_factory.mktemp("lab") / "project")


@pytest.fixture
def own_lab(lab: Project, tmp_path: Path) -> Project:
    """The same, to be changed."""
    return Project(shutil.copytree(lab.folder, tmp_path / "lab"))
