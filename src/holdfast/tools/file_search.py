"""Searching the text files of a folder, line by line, within limits.

This process walks the folder and reads files (``agents/sandboxed_files``). Another process matches their content
(``line_matcher``), and is killed when the time is up. The result says which files were not searched.
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

from holdfast.agents.sandboxed_files import SandboxedFolder, format_path
from holdfast.errors import ModelRetry, PathRefused
from holdfast.tools.line_reader import is_binary

TIMEOUT_S = 10.0
MAX_MATCHES = 200
MAX_FILES = 10_000
MAX_TOTAL_BYTES = 256 * 1024**2
EXCLUDED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})
"""Folders that are not searched, unless they are named."""

_LIBRARY_PATH_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some builds of Python do not start without them."""
_MATCHER_PROGRAM = Path(__file__).with_name("line_matcher.py")


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search, with its limits."""

    pattern: str
    path: str
    glob: str | None
    max_bytes: int
    max_file_bytes: int
    timeout_s: float = TIMEOUT_S


@dataclass
class _SearchResult:
    lines: list[str] = field(default_factory=list[str])
    skipped_counts: Counter[str] = field(default_factory=Counter[str])
    searched_file_count: int = 0
    stop_reason: str = ""
    """Why the search is incomplete."""


class _SearchTimedOut(Exception):
    """The matcher was killed because the time is up."""


def search_folder(root: SandboxedFolder, query: SearchQuery) -> str:
    """The result of a search, as text for the model."""
    found = _SearchResult()
    with _MatcherProcess(query.pattern, query.timeout_s) as matcher:
        try:
            matcher.compile_pattern()
            _collect_matches(root, query, matcher, found)
        except _SearchTimedOut:
            found.stop_reason = f"the time of {query.timeout_s:g} seconds is up: search less, or for something simpler"
    return _format_result(query, found)


def _collect_matches(
    root: SandboxedFolder, query: SearchQuery, matcher: _MatcherProcess, result: _SearchResult
) -> None:
    room, total = query.max_bytes, 0
    for path, size in _iterate_files(root, query, result):
        if result.searched_file_count == MAX_FILES or total > MAX_TOTAL_BYTES:
            result.stop_reason = "there are too many files: search a folder in it, or give a glob"
            return
        matcher.check_deadline()
        if size > query.max_file_bytes:
            result.skipped_counts["too large"] += 1
            continue
        try:
            content = root.read(path, query.max_file_bytes)
        except PathRefused:
            result.skipped_counts["unreadable"] += 1
            continue
        if is_binary(content):
            result.skipped_counts["binary"] += 1
            continue
        result.searched_file_count += 1
        total += len(content)
        for number, text in matcher.find_matches(content, MAX_MATCHES - len(result.lines)):
            line = f"{path}:{number}: {text}"
            room -= len(line.encode()) + 1
            if room < 0:
                break
            result.lines.append(line)
        if room < 0 or len(result.lines) == MAX_MATCHES:
            result.stop_reason = "there may be more matches than can be shown: make the pattern or the glob narrower"
            return


def _iterate_files(root: SandboxedFolder, query: SearchQuery, result: _SearchResult) -> Iterator[tuple[str, int]]:
    if root.get_kind(query.path) != "folder":
        with root.open(query.path) as file:  # raises for anything but a plain file
            yield query.path, os.fstat(file.fileno()).st_size
        return
    for entry in root.walk(query.path, exclude=EXCLUDED_FOLDERS):
        if entry.kind == "file" and _is_glob_match(entry.path, query.glob):
            yield entry.path, entry.size
        elif entry.kind == "link":
            result.skipped_counts["symbolic link"] += 1
        elif entry.is_truncated:
            result.stop_reason = f"{format_path(entry.path)} has too many files"


def _is_glob_match(path: str, glob: str | None) -> bool:
    if glob is None:
        return True
    if "/" not in glob:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], glob)
    # "**/*.py" includes files at the top.
    return fnmatch.fnmatchcase(path, glob) or (glob.startswith("**/") and _is_glob_match(path, glob[3:]))


def _format_result(query: SearchQuery, result: _SearchResult) -> str:
    lines = result.lines or [
        f"No line matches {format_path(query.pattern)} ({result.searched_file_count:,} files searched)."
    ]
    skipped = [f"{count:,} {kind}" for kind, count in sorted(result.skipped_counts.items())]
    if skipped:
        lines.append(f"[Not searched: {', '.join(skipped)}.]")
    if result.stop_reason:
        lines.append(f"[Not all was searched: {result.stop_reason}.]")
    return "\n".join(lines)


class _MatcherProcess:
    def __init__(self, pattern: str, timeout_s: float) -> None:
        self._pattern = pattern
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def __enter__(self) -> _MatcherProcess:
        if not sys.executable:
            raise ModelRetry("Searching is not possible here: there is no Python to match with.")
        # Isolated (-I, -S) from the environment, the current directory, and site-packages.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_MATCHER_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _LIBRARY_PATH_VARIABLES if name in os.environ},
            cwd="/",
        )
        # Unblocks this thread's reads and writes.
        self._kill_timer = threading.Timer(self._timeout_s, self._process.kill)
        self._kill_timer.daemon = True
        self._kill_timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_timer.cancel()
        self._process.kill()
        self._process.communicate()

    def compile_pattern(self) -> None:
        """Raise ``ModelRetry`` for an invalid regular expression."""
        query = {"pattern": self._pattern, "seconds": int(self._timeout_s) + 2, "max_count": MAX_MATCHES}
        answer = self._send_request(json.dumps(query).encode() + b"\n")
        if answer["refused"] is not None:
            raise ModelRetry(
                f"{format_path(self._pattern)} is no regular expression: {answer['refused']}. Write \\ before a "
                f"character that means itself, as in \\( or \\."
            )

    def find_matches(self, content: bytes, max_count: int) -> list[tuple[int, str]]:
        return self._send_request(b"%d\n" % len(content) + content)[:max_count]

    def check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise _SearchTimedOut

    def _send_request(self, request: bytes) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.check_deadline()
            raise ModelRetry(f"Matching {format_path(self._pattern)} took too much memory: give a simpler one.")
        return json.loads(answer)
