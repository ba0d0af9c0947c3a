"""Tools with which a model reads and changes the files of one folder, and no others.

``agents/sandboxed_files`` keeps them inside the folder. Whatever a file contains, the result of one call is bounded,
and so is the memory that it needs.

Reading can be repeated, and so can writing a whole file. Replacing a part of a file cannot: after a crash, the text may
be missing because it was already replaced. So before an edit changes the file, it durably saves digests of the old and
the new content (``StepContext.save_progress``). A later attempt compares the file with both. If it matches neither,
something else has changed the file since, and the model is asked to look at it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import Annotated, cast

from pydantic import Field

from holdfast.agents.sandboxed_files import Entry, SandboxedFolder, format_path
from holdfast.agents.tools import Tool, tool
from holdfast.core.states import Effect
from holdfast.engine.step_context import StepContext, current_context
from holdfast.errors import DefinitionError, ModelRetry
from holdfast.tools.file_search import SearchQuery, search_folder
from holdfast.tools.line_reader import is_binary, read_lines

MAX_OUTPUT_BYTES = 64 * 1024
MAX_FILE_BYTES = 1024 * 1024
MAX_ENTRIES = 500
_MAX_EDIT_TRIES = 20

_PositiveInt = Annotated[int, Field(ge=1)]


def file_tools(
    root: str | os.PathLike[str],
    *,
    write: bool = True,
    max_bytes: int = MAX_OUTPUT_BYTES,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> list[Tool]:
    """Tools for the files under a folder: ``read_file``, ``list_dir``, ``search_files``, ``write_file``, ``edit_file``.

    They cannot reach anything outside the folder, and do not follow symbolic links in it.

    Args:
        root: the folder. It must exist when a tool is called. A relative path is relative to the current directory at
            the time of this call.
        write: whether to include ``write_file`` and ``edit_file``.
        max_bytes: maximum size of one call's result.
        max_file_bytes: the largest file that is searched, written, or edited.
    """
    for name, value in (("max_bytes", max_bytes), ("max_file_bytes", max_file_bytes)):
        if value < 1:
            raise DefinitionError(f"file_tools: {name} is {value}, and has to be at least 1")
    files = _FileTools(SandboxedFolder(root), max_bytes, max_file_bytes)
    read_tool = tool(effect=Effect.READ)
    tools: list[Tool] = [read_tool(files.read_file), read_tool(files.list_dir), read_tool(files.search_files)]
    return [*tools, tool(files.write_file), tool(files.edit_file)] if write else tools


class _FileTools:
    """The tools of one folder. The model sees the docstrings of the public methods."""

    def __init__(self, root: SandboxedFolder, max_bytes: int, max_file_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._max_file_bytes = max_file_bytes

    def read_file(self, path: str, offset: _PositiveInt = 1, limit: _PositiveInt = 2000) -> str:
        """Read a text file. You get its lines as they are, without numbers.

        Args:
            path: the path from the folder that you work in, as in "notes/plan.txt".
            offset: the first line that you want; 1 is the first of the file.
            limit: the most lines that you want.
        """
        with self._root.open(path) as file:
            return read_lines(file, path, offset, limit, self._max_bytes)

    def list_dir(self, path: str = ".", depth: _PositiveInt = 1) -> str:
        """List what is in a folder: a line for each file, with its size, and for each folder, with a / at its end.

        Args:
            path: the path from the folder that you work in, which is ".".
            depth: how many levels to list; 1 is the folder alone.
        """
        lines: list[str] = []
        room = self._max_bytes
        for entry in self._root.walk(path, max_depth=depth):
            line = _format_entry(entry)
            room -= len(line.encode()) + 1
            if len(lines) == MAX_ENTRIES or room < 0:
                lines.append("[There is more. List a folder in it, or with a smaller depth.]")
                break
            lines.append(line)
        return "\n".join(lines) or f"{format_path(path)} is empty."

    def search_files(self, pattern: str, path: str = ".", glob: str | None = None) -> str:
        """Search text files for lines that match a regular expression. You get path:line: text.

        Folders called .git, .venv, node_modules and __pycache__ are left out, unless you name one as the path.

        Args:
            pattern: a regular expression as in Python. It is matched against one line at a time.
            path: the folder, or the one file, to search, from the folder that you work in, which is ".".
            glob: search only files of which the name, as in "*.py", or the path, as in "src/*.py", fits this.
        """
        return search_folder(self._root, SearchQuery(pattern, path, glob, self._max_bytes, self._max_file_bytes))

    def write_file(self, path: str, content: str) -> str:
        """Make this the whole content of a file. Folders that are missing are made.

        Args:
            path: the path from the folder that you work in, as in "notes/plan.txt".
            content: all of what the file shall hold.
        """
        encoded = self._encode_text(content, path)
        self._root.write(path, encoded)
        return f"Wrote {len(encoded):,} bytes to {format_path(path)}."

    async def edit_file(self, path: str, old: str, new: str, all: bool = False) -> str:
        """Replace a piece of a text file.

        Args:
            path: the path from the folder that you work in, as in "notes/plan.txt".
            old: the text to be replaced, exactly as it is in the file, with enough around it to be there only once.
            new: what takes its place.
            all: replace it wherever it is, however often.
        """
        if old == new or not old:
            raise ModelRetry("old and new are the same: there is nothing to do." if old else "old is empty.")
        step = current_context.get(None)
        done = f"Replaced it in {format_path(path)}."
        earlier = None if step is None else cast("dict[str, str] | None", step.progress)
        for _ in range(_MAX_EDIT_TRIES):
            before = await asyncio.to_thread(self._root.read, path, self._max_file_bytes)
            if earlier is not None and _digest(before) == earlier["after"]:
                return done
            if earlier is not None and _digest(before) != earlier["before"]:
                raise ModelRetry(
                    f"The process stopped while it edited {format_path(path)}, and the file has been changed since. "
                    f"The edit may have been made or not: read the file, and decide anew."
                )
            after = self._apply_edit(before, path, old, new, all)
            if step is not None:
                await step.save_progress({"before": _digest(before), "after": _digest(after)})
            if await asyncio.to_thread(_swap_content, self._root, step, path, before, after):
                return done
            earlier = None  # another process changed the file before this edit: try again with the new content
        raise ModelRetry(f"{format_path(path)} was not edited: somebody else keeps changing it.")

    def _apply_edit(self, before: bytes, path: str, old: str, new: str, all: bool) -> bytes:
        if is_binary(before):
            raise ModelRetry(f"{format_path(path)} is no text, and cannot be edited.")
        sought = self._encode_text(old, path)
        found = before.count(sought)
        if not found:
            ends = " Its lines end with \\r\\n: write them so." if b"\r\n" in before and "\n" in old else ""
            raise ModelRetry(
                f"{format_path(path)} was not edited: the text to be replaced is not in it. It has to be exactly as it "
                f"is there, with all its spaces and line ends.{ends}"
            )
        if found > 1 and not all:
            raise ModelRetry(
                f"{format_path(path)} was not edited: the text to be replaced is in it {found} times. Give more of "
                f"what is around it, or all=true to replace them all."
            )
        after = before.replace(sought, self._encode_text(new, path))
        if len(after) > self._max_file_bytes:
            raise self._too_large_error(path, len(after))
        return after

    def _encode_text(self, text: str, path: str) -> bytes:
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise ModelRetry(f"{format_path(path)} was not written: {text[error.start]!r} is no character.") from None
        if len(encoded) > self._max_file_bytes:
            raise self._too_large_error(path, len(encoded))
        return encoded

    def _too_large_error(self, path: str, size: int) -> ModelRetry:
        return ModelRetry(
            f"{format_path(path)} was not written: it would have {size:,} bytes, and {self._max_file_bytes:,} are "
            f"allowed. Write several smaller files."
        )


def _swap_content(root: SandboxedFolder, step: StepContext | None, path: str, before: bytes, after: bytes) -> bool:
    if step is not None:
        step.heartbeat()  # raises in a worker that has lost the run
    return root.compare_and_swap(path, before, after)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _format_entry(entry: Entry) -> str:
    if entry.is_truncated:
        return f"[{entry.path} has more than are listed.]"
    match entry.kind:
        case "folder":
            return f"{entry.path}/"
        case "file":
            return f"{entry.path} ({entry.size:,} bytes)"
        case "link":
            return f"{entry.path} (a symbolic link, never followed)"
        case "other":
            return f"{entry.path} (no plain file)"
