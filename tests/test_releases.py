"""What a release contains. The source distribution and the wheel are built, the wheel is installed in a new environment
of each Python on this machine that Holdfast supports, and is tried there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build the source distribution or the wheel of a source tree, as ``pip install`` does."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(source_distribution: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution: what that lacks is missing here, too."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source_distribution) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


def find_pythons() -> list[str]:
    """The supported versions of Python on this machine: the one that runs the tests, and those that are on the path."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [version for version in SUPPORTED if version == own or _get_interpreter(version) is not None]


def _get_interpreter(version: str) -> str | None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    command = shutil.which(f"python{version}")
    # A version manager may have a command for a version that it has not been told to use.
    works = command and subprocess.run([command, "-c", "import ensurepip"], capture_output=True).returncode == 0
    return command if works else None


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "holdfast"
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert names == {file.relative_to(ROOT / "src").as_posix() for file in files}


def test_the_source_distribution_has_what_the_tests_need(source_distribution: Path):
    with tarfile.open(source_distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("tests", "simulation", "benchmarks", "examples", "docs", "deploy", "scripts")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    others = [ROOT / name for name in ("test", "mkdocs.yml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")]
    assert {file.relative_to(ROOT).as_posix() for file in [*files, *others]} <= names


def test_the_supported_versions_begin_with_the_required_one():
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"
    minors = [int(version.removeprefix("3.")) for version in SUPPORTED]
    assert minors == list(range(minors[0], minors[-1] + 1))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", find_pythons())
def test_the_wheel_works_in_a_new_environment(version: str, wheel: Path, tmp_path: Path):
    interpreter = _get_interpreter(version)
    assert interpreter is not None
    subprocess.run([interpreter, "-m", "venv", tmp_path / "env"], check=True)
    commands = tmp_path / "env" / "bin"
    subprocess.run([commands / "pip", "install", "-q", wheel], check=True)
    told = subprocess.run([commands / "holdfast", "--version"], check=True, capture_output=True, text=True).stdout
    assert PROJECT["version"] in told
    (tmp_path / "elsewhere").mkdir()  # nothing of the source tree is in the path there
    demo = subprocess.run(
        [commands / "holdfast", "demo", "--fast"], cwd=tmp_path / "elsewhere", capture_output=True, text=True
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "each once" in demo.stdout
