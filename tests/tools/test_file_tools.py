"""The file tools, called as a model calls them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from holdfast import Agent, DefinitionError, Effect, Runtime, Tool
from holdfast.agents.sandboxed_files import SandboxedFolder
from holdfast.errors import InvalidToolArguments, ModelRetry, PathRefused
from holdfast.testing import ScriptedModel, call
from holdfast.tools import file_search, file_tools, line_reader
from holdfast.tools.file_search import SearchQuery, search_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="refused there")

KIB = 1024
GIB = 1024**3


class Files:
    """The tools of a folder, by name."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.tools: dict[str, Tool] = {one.name: one for one in file_tools(folder, **options)}

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        """The result for the model, or the exception of the call."""
        step = self.tools[name].make_call(ToolCallPart(name, arguments, "call_1"), "the-agent", None)
        result = step.step.function(*step.args, **step.kwargs)
        return asyncio.run(result) if step.step.is_async else result

    def write(self, path: str, content: str | bytes) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = tmp_path / "work"
    folder.mkdir()
    return Files(folder)


# What there is


def test_reading_tools_may_be_repeated_and_writing_ones_can_be_left_out(files: Files):
    effects = {name: one.definition.effect for name, one in files.tools.items()}
    assert effects == {
        "read_file": Effect.READ,
        "list_dir": Effect.READ,
        "search_files": Effect.READ,
        "write_file": Effect.IDEMPOTENT,
        "edit_file": Effect.IDEMPOTENT,
    }
    assert [one.name for one in file_tools(files.folder, write=False)] == ["read_file", "list_dir", "search_files"]


def test_the_model_sees_every_parameter(files: Files):
    for one in files.tools.values():
        assert len(one.description) > 20
        for name, schema in one.schema["properties"].items():
            assert schema.get("description"), f"{one.name}: {name}"


@pytest.mark.parametrize("option", ["max_bytes", "max_file_bytes"])
def test_a_limit_of_nothing_is_refused(tmp_path: Path, option: str):
    with pytest.raises(DefinitionError, match=f"{option} is 0"):
        file_tools(tmp_path, **{option: 0})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}),
        ("write_file", {"content": "changed"}),
        ("edit_file", {"old": "SECRET", "new": "changed"}),
        ("list_dir", {}),
        ("search_files", {"pattern": "SECRET"}),
    ],
)
def test_no_tool_leaves_its_folder(files: Files, tmp_path: Path, name: str, arguments: dict[str, Any]):
    outside = tmp_path / "secret.txt"
    outside.write_text("SECRET")
    (files.folder / "link.txt").symlink_to(outside)
    (files.folder / "up").symlink_to(tmp_path)
    for path in ("../secret.txt", str(outside), "link.txt", "up", "up/secret.txt", "..", "a/../../secret.txt", "\0"):
        with pytest.raises(PathRefused) as refused:
            files(name, path=path, **arguments)
        assert str(tmp_path) not in str(refused.value).replace(path, "")
    assert outside.read_text() == "SECRET"


# read_file


def test_a_file_is_read_as_it_is(files: Files):
    files.write("sub/täxt.txt", "one\ntwo ✓\n\n  four")
    assert files("read_file", path="sub/täxt.txt") == "one\ntwo ✓\n\n  four"
    files.write("empty", "")
    assert files("read_file", path="empty") == "['empty' is empty.]"


def test_a_part_of_a_file_is_read_with_a_note_on_how_to_continue(files: Files):
    files.write("five", "1\n2\n3\n4\n5\n")
    assert files("read_file", path="five", limit=2) == "1\n2\n[Lines 1 to 2 of 'five'. Read on with offset=3.]"
    assert files("read_file", path="five", offset=3, limit=2) == (
        "3\n4\n[Lines 3 to 4 of 'five'. Read on with offset=5.]"
    )
    assert files("read_file", path="five", offset=5) == "5\n[Lines 5 to 5 of 'five', to its end.]"
    assert files("read_file", path="five", limit=5) == "1\n2\n3\n4\n5"
    assert files("read_file", path="five", offset=6) == "['five' has 5 lines.]"
    with pytest.raises(InvalidToolArguments):
        files("read_file", path="five", offset=0)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_lines_are_found_wherever_pieces_end(files: Files, monkeypatch: pytest.MonkeyPatch, piece: int):
    monkeypatch.setattr(line_reader, "_CHUNK_BYTES", piece)
    for end in ("", "\n"):
        lines = ["a", "", "ccc", "dddd", "", "f"]
        files.write("f", "\n".join(lines) + end)
        for offset, line in enumerate(lines, 1):
            assert files("read_file", path="f", offset=offset, limit=1).split("\n")[0] == line
        assert files("read_file", path="f", offset=7) == "['f' has 6 lines.]"


def test_no_more_is_shown_than_the_limit(tmp_path: Path):
    files = Files(tmp_path, max_bytes=20)
    files.write("lines", "".join(f"line {number}\n" for number in range(1000)))
    assert files("read_file", path="lines") == "line 0\nline 1\n[Lines 1 to 2 of 'lines'. Read on with offset=3.]"
    files.write("long", "ä" * 100 + "\nnext")
    shown, words = files("read_file", path="long").split("\n")
    assert shown == "ä" * 10
    assert words.startswith("[Line 1 of 'long' is longer than can be shown")
    assert files("read_file", path="long", offset=2) == "next\n[Lines 2 to 2 of 'long', to its end.]"
    files.write("odd", "x" + "ä" * 100)
    assert files("read_file", path="odd").startswith("x" + "ä" * 9 + "\n[Line 1")


def test_binary_files_are_reported_and_not_shown(files: Files):
    files.write("image", b"\x89PNG\0\0" + b"x" * 94)
    files.write("latin", "Grüße".encode("latin-1"))
    files.write("late", (b"x" * 99 + b"\n") * 100 + b"\0" * 10)
    for path, size in (("image", "100"), ("latin", "5"), ("late", "10,010")):
        with pytest.raises(ModelRetry, match=f"'{path}' is no UTF-8 text, and is not shown. It has {size} bytes."):
            files("read_file", path=path)


def test_a_huge_file_takes_little_memory(files: Files, monkeypatch: pytest.MonkeyPatch):
    """Eight gigabytes: some text, and then nothing for ever."""
    monkeypatch.setattr(line_reader, "MAX_SCANNED_BYTES", 16 * KIB**2)
    with open(files.write("huge", "line\n" * 100_000), "r+b") as file:
        file.truncate(8 * GIB)
    with open(files.write("hole", ""), "r+b") as file:
        file.truncate(8 * GIB)
    tracemalloc.start()
    try:
        assert files("read_file", path="huge", offset=99_000, limit=2).startswith("line\nline\n[Lines 99000 to 99001")
        with pytest.raises(ModelRetry, match=r"is too far in: only the first 16,777,216 bytes .* have 100,001 lines"):
            files("read_file", path="huge", offset=200_000)
        with pytest.raises(ModelRetry, match=r"no UTF-8 text, and is not shown. It has 8,589,934,592 bytes"):
            files("read_file", path="hole")
        with pytest.raises(PathRefused, match="too large"):
            files("edit_file", path="huge", old="line", new="")
        assert "[Not searched: 2 too large.]" in files("search_files", pattern="line")
        assert tracemalloc.get_traced_memory()[1] < 4 * KIB**2
    finally:
        tracemalloc.stop()


# list_dir


def test_a_folder_is_listed_with_kinds_and_sizes(files: Files):
    files.write("b/inner/deep.txt", "x" * 1234)
    files.write("a.txt", "")
    (files.folder / "link").symlink_to("a.txt")
    os.mkfifo(files.folder / "pipe")
    assert files("list_dir").split("\n") == [
        "a.txt (0 bytes)",
        "b/",
        "link (a symbolic link, never followed)",
        "pipe (no plain file)",
    ]
    assert files("list_dir", path="b", depth=2).split("\n") == ["b/inner/", "b/inner/deep.txt (1,234 bytes)"]
    (files.folder / "none").mkdir()
    assert files("list_dir", path="none") == "'none' is empty."


def test_a_long_list_is_cut(tmp_path: Path):
    for number in range(600):
        (tmp_path / f"{number:03}").touch()
    lines = Files(tmp_path)("list_dir").split("\n")
    assert (len(lines), lines[499]) == (501, "499 (0 bytes)")
    assert lines[-1].startswith("[There is more.")
    assert len(Files(tmp_path, max_bytes=100)("list_dir").split("\n")) == 8


# search_files


def test_lines_that_match_are_found_with_their_numbers(files: Files):
    files.write("src/a.py", "import os\n\ndef main():\r\n    return 1\n")
    files.write("src/b.txt", "def not_python\n")
    files.write("top.py", "def top(): ...")
    files.write("node_modules/x.py", "def hidden")
    assert files("search_files", pattern=r"^def \w+").split("\n") == [
        "src/a.py:3: def main():",
        "src/b.txt:1: def not_python",
        "top.py:1: def top(): ...",
    ]

    def found(**arguments: Any) -> list[str]:
        return [line.split(":")[0] for line in files("search_files", pattern="def", **arguments).split("\n")]

    assert found(glob="*.py") == ["src/a.py", "top.py"]
    assert found(glob="src/*.py") == ["src/a.py"]
    assert found(glob="**/*.py") == ["src/a.py", "top.py"]
    assert found(path="src") == ["src/a.py", "src/b.txt"]
    assert found(path="top.py") == ["top.py"]
    assert found(path="node_modules") == ["node_modules/x.py"]
    assert files("search_files", pattern="nowhere", glob="*.py") == "No line matches 'nowhere' (2 files searched)."


def test_the_result_names_files_that_were_not_searched(tmp_path: Path):
    files = Files(tmp_path, max_file_bytes=1000)
    files.write("binary", b"needle\0")
    files.write("large", "needle" * 1000)
    files.write("text", "needle")
    (tmp_path / "link").symlink_to("text")
    assert files("search_files", pattern="needle").split("\n") == [
        "text:1: needle",
        "[Not searched: 1 binary, 1 symbolic link, 1 too large.]",
    ]


def test_of_a_long_line_what_is_around_the_match_is_shown(files: Files):
    files.write("min.js", "x" * 5000 + "needle" + "y" * 5000)
    [line] = files("search_files", pattern="needle").split("\n")
    assert line == "min.js:1: …" + "x" * 100 + "needle" + "y" * 100 + "…"
    [everything] = files("search_files", pattern=".*").split("\n")
    assert len(everything) < 600


def test_matches_files_and_bytes_are_bounded(files: Files, monkeypatch: pytest.MonkeyPatch):
    files.write("many", "needle\n" * 1000)
    lines = files("search_files", pattern="needle").split("\n")
    assert (len(lines), lines[199]) == (201, "many:200: needle")
    assert "narrower" in lines[-1]
    short = Files(files.folder, max_bytes=100)("search_files", pattern="needle")
    assert len(short.split("\n")[:-1]) == 6
    for name, limit in (("MAX_FILES", 1), ("MAX_TOTAL_BYTES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(file_search, name, limit)
            files.write("more", "")
            assert files("search_files", pattern="nowhere").endswith(
                "too many files: search a folder in it, or give a glob.]"
            )


def test_a_regular_expression_that_never_ends_is_stopped(files: Files):
    files.write("bad", "a" * 60 + "!")
    begun = time.monotonic()
    told = search_folder(
        SandboxedFolder(files.folder), SearchQuery(r"(a+)+$", ".", None, 10_000, 10_000, timeout_s=0.5)
    )
    assert told == (
        "No line matches '(a+)+$' (1 files searched).\n"
        "[Not all was searched: the time of 0.5 seconds is up: search less, or for something simpler.]"
    )
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?P<x", "a{2,1}"])
def test_an_invalid_regular_expression_is_reported(files: Files, pattern: str):
    with pytest.raises(ModelRetry, match="is no regular expression"):
        files("search_files", pattern=pattern)


def test_a_regular_expression_that_takes_all_memory_ends_with_its_process(files: Files):
    files.write("x", "x")
    with pytest.raises(ModelRetry, match=r"memory|no regular expression"):
        files("search_files", pattern="(?:" * 5 + "x{1000}" + "{1000})" * 5)


# write_file and edit_file


def test_a_file_is_written_with_its_folders_and_again(files: Files):
    for _ in range(2):
        assert files("write_file", path="a/b/c.txt", content="Grüße") == "Wrote 7 bytes to 'a/b/c.txt'."
        assert (files.folder / "a" / "b" / "c.txt").read_text("utf-8") == "Grüße"
        assert os.listdir(files.folder / "a" / "b") == ["c.txt"]


def test_what_is_too_large_is_not_written(tmp_path: Path):
    files = Files(tmp_path, max_file_bytes=10)
    with pytest.raises(ModelRetry, match=r"it would have 12 bytes, and 10 are allowed"):
        files("write_file", path="f", content="ä" * 6)
    assert not (tmp_path / "f").exists()
    files("write_file", path="f", content="12345")
    with pytest.raises(ModelRetry, match=r"it would have 11 bytes"):
        files("edit_file", path="f", old="5", new="5678901")
    assert (tmp_path / "f").read_text() == "12345"


def test_a_piece_is_replaced_where_it_is_once(files: Files):
    file = files.write("f", "one two two\r\nthree")
    assert files("edit_file", path="f", old="one", new="1 ✓") == "Replaced it in 'f'."
    assert file.read_text("utf-8") == "1 ✓ two two\nthree"
    refusals = {
        ("two", "2"): "is in it 2 times",
        ("five", "5"): "is not in it",
        ("two\nthree", "2"): r"Its lines end with \\r\\n",
        ("", "x"): "old is empty",
        ("two", "two"): "the same",
    }
    before = file.read_bytes()
    for (old, new), words in refusals.items():
        with pytest.raises(ModelRetry, match=words):
            files("edit_file", path="f", old=old, new=new)
        assert file.read_bytes() == before
    files("edit_file", path="f", old="two", new="2", all=True)
    assert file.read_bytes() == "1 ✓ 2 2\r\nthree".encode()
    files.write("binary", b"one\0")
    with pytest.raises(ModelRetry, match="no text"):
        files("edit_file", path="binary", old="one", new="two")


def test_a_file_that_changes_while_it_is_edited_is_edited_as_it_is_then(files: Files, monkeypatch: pytest.MonkeyPatch):
    file = files.write("f", "one two")
    exchange = SandboxedFolder.compare_and_swap

    def late(root: SandboxedFolder, path: str, before: bytes, after: bytes) -> bool:
        monkeypatch.setattr(SandboxedFolder, "compare_and_swap", exchange)
        file.write_text("one two three")
        return root.compare_and_swap(path, before, after)

    monkeypatch.setattr(SandboxedFolder, "compare_and_swap", late)
    files("edit_file", path="f", old="two", new="2")
    assert file.read_text() == "one 2 three"
    monkeypatch.setattr(SandboxedFolder, "compare_and_swap", lambda *_: False)
    with pytest.raises(ModelRetry, match="keeps changing"):
        files("edit_file", path="f", old="one", new="1")


# In a run


@pytest.mark.asyncio
async def test_an_agent_works_with_files_and_gets_feedback(tmp_path: Path):
    edits = [call("edit_file", path="f.txt", old=f"<{number}>", new=str(number)) for number in range(5)]
    model = ScriptedModel(
        [
            call("write_file", path="f.txt", content="".join(f"<{number}>" for number in range(5))),
            edits,
            call("read_file", path="f.txt"),
            call("read_file", path="../f.txt"),
            "done",
        ]
    )
    agent = Agent(model, name="file_tools_clerk", tools=[*file_tools(tmp_path / "work")])
    (tmp_path / "work").mkdir()
    async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
        result = await agent.run("Go.")
    assert result.output == "done"
    told = [part for message in result.messages for part in message.parts if isinstance(part, ToolReturnPart)]
    assert [part.content for part in told if part.tool_name == "read_file"] == [
        "01234",
        "The path '../f.txt' has '..' in it: give the path from the folder that you work in.",
    ]
