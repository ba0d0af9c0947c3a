"""Searching the text files of a folder, line by line, within limits.

This process walks and reads (``agents/sandboxed_files``); another one is handed what was read, matches it
(``line_matcher``), and is killed when the time is up. What was not searched is told.
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agents.sandboxed_files import Root, shown
from holdfast.errors import ModelRetry, PathRefused
from holdfast.tools.line_reader import is_binary

SECONDS = 10.0
MOST_MATCHES = 200
MOST_FILES = 10_000
MOST_BYTES = 256 * 1024**2
"""Of all files together."""
LEFT_OUT = frozenset({".git", ".venv", "node_modules", "__pycache__"})
"""Folders that are not searched, unless they are named."""

_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Without them, some builds of Python do not start."""
_PROGRAM = Path(__file__).with_name("line_matcher.py")


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for, where, and how much may be told of it."""

    pattern: str
    path: str
    glob: str | None
    max_bytes: int
    max_file_bytes: int
    seconds: float = SECONDS


@dataclass
class _Found:
    lines: list[str] = field(default_factory=list[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    searched: int = 0
    stopped: str = ""
    """Why not all was searched."""


class _TimeUp(Exception):
    """The matcher was killed."""


def search(root: Root, wanted: Search) -> str:
    """What was found, in words for the model."""
    found = _Found()
    with _Matcher(wanted.pattern, wanted.seconds) as matcher:
        try:
            matcher.begin()
            _search(root, wanted, matcher, found)
        except _TimeUp:
            found.stopped = f"the time of {wanted.seconds:g} seconds is up: search less, or for something simpler"
    return _told(wanted, found)


def _search(root: Root, wanted: Search, matcher: _Matcher, found: _Found) -> None:
    room, total = wanted.max_bytes, 0
    for path, size in _files(root, wanted, found):
        if found.searched == MOST_FILES or total > MOST_BYTES:
            found.stopped = "there are too many files: search a folder in it, or give a glob"
            return
        matcher.check_time()
        if size > wanted.max_file_bytes:
            found.skipped["too large"] += 1
            continue
        try:
            content = root.read(path, wanted.max_file_bytes)
        except PathRefused:
            found.skipped["unreadable"] += 1
            continue
        if is_binary(content):
            found.skipped["binary"] += 1
            continue
        found.searched += 1
        total += len(content)
        for number, text in matcher.match(content, MOST_MATCHES - len(found.lines)):
            line = f"{path}:{number}: {text}"
            room -= len(line.encode()) + 1
            if room < 0:
                break
            found.lines.append(line)
        if room < 0 or len(found.lines) == MOST_MATCHES:
            found.stopped = "there may be more matches than can be shown: make the pattern or the glob narrower"
            return


def _files(root: Root, wanted: Search, found: _Found) -> Iterator[tuple[str, int]]:
    """The files that are to be searched, and their sizes."""
    if root.kind(wanted.path) != "folder":
        with root.open(wanted.path) as file:  # which says what is wrong with it, if it is no plain file
            yield wanted.path, os.fstat(file.fileno()).st_size
        return
    for entry in root.walk(wanted.path, without=LEFT_OUT):
        if entry.kind == "file" and _fits(entry.path, wanted.glob):
            yield entry.path, entry.size
        elif entry.kind == "link":
            found.skipped["symbolic link"] += 1
        elif entry.is_cut:
            found.stopped = f"{shown(entry.path)} has too many files"


def _fits(path: str, glob: str | None) -> bool:
    if glob is None:
        return True
    if "/" not in glob:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], glob)
    # "**/*.py" means those at the top as well.
    return fnmatch.fnmatchcase(path, glob) or (glob.startswith("**/") and _fits(path, glob[3:]))


def _told(wanted: Search, found: _Found) -> str:
    lines = found.lines or [f"No line matches {shown(wanted.pattern)} ({found.searched:,} files searched)."]
    kinds = [f"{count:,} {kind}" for kind, count in sorted(found.skipped.items())]
    if kinds:
        lines.append(f"[Not searched: {', '.join(kinds)}.]")
    if found.stopped:
        lines.append(f"[Not all was searched: {found.stopped}.]")
    return "\n".join(lines)


class _Matcher:
    """The process that matches."""

    def __init__(self, pattern: str, seconds: float) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __enter__(self) -> _Matcher:
        if not sys.executable:
            raise ModelRetry("Searching is not possible here: there is no Python to match with.")
        # Isolated (-I, -S): nothing from the environment, the working folder or site-packages has a say in it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
            cwd="/",
        )
        # Whatever this thread waits for, then ends.
        self._killer = threading.Timer(self._seconds, self._process.kill)
        self._killer.daemon = True
        self._killer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._killer.cancel()
        self._process.kill()
        self._process.communicate()

    def begin(self) -> None:
        """Refuse what is no regular expression."""
        question = {"pattern": self._pattern, "seconds": int(self._seconds) + 2, "most": MOST_MATCHES}
        answer = self._ask(json.dumps(question).encode() + b"\n")
        if answer["refused"] is not None:
            raise ModelRetry(
                f"{shown(self._pattern)} is no regular expression: {answer['refused']}. Write \\ before a character "
                f"that means itself, as in \\( or \\."
            )

    def match(self, content: bytes, most: int) -> list[tuple[int, str]]:
        """The lines that match: their numbers, and what they say."""
        return self._ask(b"%d\n" % len(content) + content)[:most]

    def check_time(self) -> None:
        """Raise when the time is up."""
        if time.monotonic() > self._deadline:
            raise _TimeUp

    def _ask(self, question: bytes) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.check_time()
            raise ModelRetry(f"Matching {shown(self._pattern)} took too much memory: give a simpler one.")
        return json.loads(answer)
