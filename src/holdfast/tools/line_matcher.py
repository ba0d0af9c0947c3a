"""The process that matches lines for ``file_search``: a program of its own, which imports nothing of Holdfast.

It reads a regular expression and says whether it is one. Then it reads files, each behind its length, and says for each
which lines match. All that it says is lines of JSON. A regular expression can take for ever, and nothing stops one in a
thread; this process is killed. Should nobody be left to do so, the system ends it when it has used up its seconds.
"""

from __future__ import annotations

import json
import re
import sys

MAX_MEMORY_BYTES = 1024**3
"""The most bytes of memory: a regular expression can be made to take any number."""
CONTEXT_CHARS = 100
"""How many characters of a long line are shown before and behind a match."""


def limit_resources(max_cpu_s: int) -> None:
    """Let the system end this process if nobody else does."""
    import resource

    for what, most in (
        (resource.RLIMIT_CPU, max_cpu_s),
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(what, (most, most))
        except (OSError, ValueError):
            pass  # not every system has every limit


def write_json(value: object) -> None:
    """Hand over a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def cut_around(line: str, start: int, end: int) -> str:
    """The line, or of a long one what is around the match."""
    line = line.rstrip("\r")
    first, last = (
        max(0, start - CONTEXT_CHARS),
        min(len(line), max(end, start) + CONTEXT_CHARS, start + 4 * CONTEXT_CHARS),
    )
    return f"{'…' if first else ''}{line[first:last]}{'…' if last < len(line) else ''}"


def find_matches(expression: re.Pattern[str], content: bytes, max_count: int) -> list[tuple[int, str]]:
    """The numbers and texts of the lines that match, at most so many."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        match = expression.search(line)
        if match is not None:
            found.append((number, cut_around(line, *match.span())))
            if len(found) == max_count:
                break
    return found


def main() -> None:
    """Match until there is nothing more to read."""
    source = sys.stdin.buffer
    question = json.loads(source.readline())
    limit_resources(question["seconds"])
    try:
        expression = re.compile(question["pattern"])
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        write_json({"refused": str(error) or type(error).__name__})
        return
    write_json({"refused": None})
    while size := source.readline():
        write_json(find_matches(expression, source.read(int(size)), question["most"]))


if __name__ == "__main__":
    main()
