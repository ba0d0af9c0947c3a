"""Sources for the check, as text: a line that is to be found says so in a comment, ``#! kind``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from holdfast.checking.checker import check_code

MARK = re.compile(r"#! ([\w-]+(?: [\w-]+)*)")

HEAD = """
import asyncio
import holdfast
from holdfast import step, wait_for_signal, workflow


@step
async def charge(cents: int = 0) -> int:
    return cents


@step
def note(what=None):
    return what
"""


def source(text: str) -> str:
    """A source with the usual imports and two steps, ``charge`` and ``note``."""
    return HEAD + "\n\n" + textwrap.dedent(text)


def expected(text: str) -> list[tuple[int, str]]:
    """What the marks say."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if match := MARK.search(line):
            found += [(number, kind) for kind in match.group(1).split()]
    return found


def found(folder: Path, text: str) -> list[tuple[int, str]]:
    """What the check finds in a source: line and kind."""
    file = folder / "app.py"
    file.write_text(text)
    report = check_code([str(file)])
    assert report.read_errors == []
    return [(one.line, one.kind) for one in report.findings]
