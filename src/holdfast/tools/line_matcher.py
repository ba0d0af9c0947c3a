"""The process that matches lines for ``file_search``: a separate program that imports nothing from Holdfast.

It reads a regular expression and answers whether it is valid. Then it reads files, each after its length, and answers
which lines match. All answers are lines of JSON. Matching a regular expression can take forever, and nothing can stop
it in a thread, but this process can be killed. If its parent has died, the system ends it at its CPU limit.
"""

from __future__ import annotations

import json
import re
import sys

MAX_MEMORY_BYTES = 1024**3
"""Without a limit, a regular expression can be made to use any amount of memory."""
CONTEXT_CHARS = 100
"""Characters of a long line that are shown before and after a match."""


def limit_resources(max_cpu_s: int) -> None:
    """Let the system end this process if its parent does not."""
    import resource

    limits = {resource.RLIMIT_CPU: max_cpu_s, resource.RLIMIT_AS: MAX_MEMORY_BYTES, resource.RLIMIT_CORE: 0}
    for kind, limit in limits.items():
        try:
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError):
            pass  # not every system has every limit


def write_json(value: object) -> None:
    """Write a line of JSON to the parent."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def cut_around(line: str, start: int, end: int) -> str:
    """The line, or the part of a long line around the match."""
    line = line.rstrip("\r")
    first = max(0, start - CONTEXT_CHARS)
    last = min(len(line), max(end, start) + CONTEXT_CHARS, start + 4 * CONTEXT_CHARS)
    return f"{'…' if first else ''}{line[first:last]}{'…' if last < len(line) else ''}"


def find_matches(expression: re.Pattern[str], content: bytes, max_count: int) -> list[tuple[int, str]]:
    """The numbers and texts of matching lines, up to ``max_count``."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        match = expression.search(line)
        if match is not None:
            found.append((number, cut_around(line, *match.span())))
            if len(found) == max_count:
                break
    return found


def main() -> None:
    """Match files until stdin ends."""
    source = sys.stdin.buffer
    query = json.loads(source.readline())
    limit_resources(query["seconds"])
    try:
        expression = re.compile(query["pattern"])
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        write_json({"refused": str(error) or type(error).__name__})
        return
    write_json({"refused": None})
    while size := source.readline():
        write_json(find_matches(expression, source.read(int(size)), query["max_count"]))


if __name__ == "__main__":
    main()
