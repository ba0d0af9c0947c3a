"""A late turn of a conversation costs as much as an early one: in bytes, in operations, and in copied messages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json

from holdfast import Agent, Runtime, tool
from holdfast.agents.models.messages import dump_messages
from holdfast.stores.operations import Op
from holdfast.stores.sqlite import SqliteStore

TURNS = 100
SIZE = 2000
"""Characters of each answer, and of each result of a tool."""


@dataclass
class Seen:
    """What was seen of the run while it went on."""

    turn: int = 0
    lists: list[list[ModelMessage]] = field(default_factory=list[list[ModelMessage]])
    """The messages that the model got, turn by turn."""
    pages: list[int] = field(default_factory=list[int])
    """How large the database was, before each model call."""
    operations: dict[int, list[str]] = field(default_factory=dict[int, list[str]])


class Talkative(Model):
    """Says much, and calls a tool that finds much."""

    def __init__(self, seen: Seen, database: Path) -> None:
        super().__init__()
        self._seen = seen
        self._database = database

    @property
    def model_name(self) -> str:
        return "talkative"

    @property
    def system(self) -> str:
        return "tests"

    async def request(self, messages: list[ModelMessage], *_: Any) -> ModelResponse:
        turn = len(messages) // 2 + 1
        self._seen.turn = turn
        self._seen.lists.append(messages)
        self._seen.pages.append(_size_of(self._database))
        usage = RequestUsage(input_tokens=1000 * turn, output_tokens=500)
        said = TextPart(f"{turn:0{SIZE}d}")
        if turn == TURNS:
            return ModelResponse([said], usage=usage, model_name="talkative")
        return ModelResponse([said, ToolCallPart("find", {"number": turn})], usage=usage, model_name="talkative")


@tool
async def find(number: int) -> str:
    """Finds much."""
    return f"{number:0{SIZE}d}"


@dataclass
class Journal:
    """The run afterwards."""

    seen: Seen
    messages: list[ModelMessage]
    turns: list[int]
    """Bytes of the records of each turn, as they are stored: all columns."""
    file: int
    """Bytes that the run has added to the database."""

    @property
    def bytes_of_messages(self) -> int:
        """The messages themselves, in whichever form is shorter."""
        return min(len(ModelMessagesTypeAdapter.dump_json(self.messages)), len(to_json(dump_messages(self.messages))))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    database = tmp_path_factory.mktemp("growth") / "runs.db"
    seen = Seen()
    commit = SqliteStore.commit

    async def counted(self: SqliteStore, ops: Sequence[Op]) -> Any:
        seen.operations.setdefault(seen.turn, []).extend(type(op).__name__ for op in ops)
        return await commit(self, ops)

    async def talk() -> list[ModelMessage]:
        agent = Agent(Talkative(seen, database), name="growth-talkative", tools=[find], max_turns=TURNS)
        async with Runtime(f"sqlite:///{database}"):
            return (await agent.run("Talk.")).messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "commit", counted)
        messages = asyncio.run(talk())
    return Journal(seen, messages, _bytes_by_turn(database), _size_of(database) - seen.pages[0])


def _size_of(database: Path) -> int:
    """What is committed, whether it is in the file or still in its log."""
    connection = sqlite3.connect(database)
    try:
        [pages], [size] = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return pages * size
    finally:
        connection.close()


def _bytes_by_turn(database: Path) -> list[int]:
    connection = sqlite3.connect(database)
    names = [row[1] for row in connection.execute("PRAGMA table_info(records)")]
    # A number is taken for 8 bytes, which is more than SQLite needs for most.
    each = " + ".join(
        f"CASE typeof({name}) WHEN 'text' THEN length(CAST({name} AS BLOB)) WHEN 'blob' THEN length({name}) ELSE 8 END"
        for name in names
    )
    turns = [0] * TURNS
    for position, size in connection.execute(f"SELECT position, {each} FROM records"):
        turns[position // 2] += size  # a model call and a tool call
    connection.close()
    return turns


def test_late_turns_add_no_more_to_the_journal_than_early_ones(journal: Journal) -> None:
    early, late = sum(journal.turns[10:20]), sum(journal.turns[90:100])
    assert min(journal.turns[:-1]) > 2 * SIZE
    assert late <= 1.2 * early


def test_late_turns_add_no_more_to_the_file_than_early_ones(journal: Journal) -> None:
    sizes = journal.seen.pages
    page = 16 * 1024  # it grows by whole pages, of which some more are for the index
    early, late = sizes[20] - sizes[10], sizes[99] - sizes[89]
    assert early > 0
    assert late <= 1.2 * early + page


def test_the_journal_is_hardly_larger_than_the_messages_themselves(journal: Journal) -> None:
    messages = journal.bytes_of_messages
    assert messages > 2 * SIZE * (TURNS - 1)
    assert sum(journal.turns) < 1.1 * messages
    assert journal.file < 1.5 * messages


def test_each_turn_is_two_operations(journal: Journal) -> None:
    counts = Counter(tuple(journal.seen.operations[turn]) for turn in range(1, TURNS))
    assert counts == {("AppendRecord", "AppendRecord"): TURNS - 1}
    assert len(journal.seen.operations[TURNS]) <= 3  # the last answer, the end of the run, and that of the worker


def test_the_model_gets_the_conversation_itself_not_a_copy(journal: Journal) -> None:
    first = journal.seen.lists[0]
    assert len(journal.seen.lists) == TURNS
    assert all(one is first for one in journal.seen.lists)
    assert len(first) == 2 * TURNS
