"""What belongs to one call of a durable graph, for the code that runs below it.

**Attempts.** A node or a tool that calls ``interrupt`` starts again from its beginning when the answer is there: this
is how the library works. What it has done before is not done again: an ``Attempt`` keeps the outcomes of the model
calls, tools, and tasks in it, and returns them to the same calls of the next attempt.

**Message ids.** The library gives every message a random id, by which nodes replace and remove messages. After a crash
a message must have the same id again, because a recorded update of a node may name it. So below a durable graph these
ids come from a generator with a seed.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.messages import BaseMessage
from langgraph.types import Command

from holdfast.codec import compute_content_digest
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program, in_thread

T = TypeVar("T")

_MAX_SEED_LENGTH = 200
_MAX_DEPTH = 4
"""How deep in the update of a node messages are looked for: a list of messages of a channel, or of a command."""


class MessageIds:
    """The ids of the messages that one graph or node adds."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._random: random.Random | None = None

    def make(self) -> uuid.UUID:
        """The next id."""
        if self._random is None:
            self._random = random.Random(self.seed)
        return uuid.UUID(int=self._random.getrandbits(128), version=4)


class Attempt:
    """The outcomes of the calls that a node or a tool makes, for its next attempt."""

    def __init__(self) -> None:
        self._calls: list[_AttemptCall] = []
        self._unused: list[_AttemptCall] = []
        """The calls of earlier attempts that the current one has not made."""
        self._lock = threading.Lock()  # a node may make calls in several threads

    def start_again(self) -> None:
        """The next attempt begins."""
        self._unused = list(self._calls)

    def find(self, kind: str, content: object) -> list[Any]:
        """A list with the outcome of this call, if an earlier attempt made it; else the list to append it to."""
        with self._lock:
            for call in self._unused:
                if call.kind == kind and call.content == content:
                    self._unused.remove(call)
                    return call.outcome
            call = _AttemptCall(kind, content, [])
            self._calls.append(call)
            return call.outcome


class _AttemptCall(NamedTuple):
    """A call that an attempt has made."""

    kind: str
    content: object
    outcome: list[Any]
    """Empty until there is one."""


@dataclass(frozen=True, slots=True)
class GraphContext:
    """The durable graph that code runs below."""

    effects: Mapping[str, Effect]
    """The effects of tools, nodes, and tasks, by their names."""
    message_ids: MessageIds
    attempt: Attempt = field(default_factory=Attempt)
    is_inner: bool = False
    """Whether this is a node, task, or tool of the graph."""
    path: str = ""
    """Where in the program this is, whatever the input."""
    is_of_library: bool = False
    """Whether this is a node of a library, such as the one of ``create_agent`` that calls the model."""
    _model_call_numbers: Iterator[int] = field(default_factory=itertools.count)
    _entered: Counter[str] = field(default_factory=Counter[str])

    def get_effect(self, name: str) -> Effect:
        """The effect of a tool, node, or task."""
        return self.effects.get(name, Effect.IDEMPOTENT)

    @property
    def seed(self) -> str:
        """Identifies the durable call, or the node or tool in it."""
        return self.message_ids.seed

    def enter(self, *identity: object, is_of_library: bool = False) -> GraphContext:
        """The context of a node, task, or tool in it. The same one may be called several times."""
        described = repr(identity)
        self._entered[described] += 1
        inner = f"{described} {self._entered[described]}"
        seed, path = _shorten(f"{self.seed} {inner}"), _shorten(f"{self.path} {inner}")
        return GraphContext(self.effects, MessageIds(seed), is_inner=True, path=path, is_of_library=is_of_library)

    @contextlib.contextmanager
    def in_model_thread(self) -> Generator[None]:
        """The block makes a model call. The first one of a library's node has a named thread (``core.program_calls``).

        The libraries make each model call in a task of its own, whose first call it is. So a change of the request
        would go unnoticed.
        """
        program = find_program()
        if program is None or not self.is_of_library or next(self._model_call_numbers) > 0:
            yield
            return
        with in_thread(program.run.execution.calls.get_named_thread(program.thread.container, self.path)):
            yield

    @contextlib.contextmanager
    def active(self) -> Generator[None]:
        """The block whose code is below the graph."""
        token = current_graph.set(self)
        try:
            yield
        finally:
            current_graph.reset(token)

    async def once_per_attempts(self, kind: str, content: object, call: Callable[[], Awaitable[T]]) -> T:
        """The outcome of a call, also if an earlier attempt made it."""
        outcome = self.attempt.find(kind, content)
        if not outcome:
            outcome.append(await call())
        return outcome[0]

    def once_per_attempts_sync(self, kind: str, content: object, call: Callable[[], T]) -> T:
        """The same for code that is not async."""
        outcome = self.attempt.find(kind, content)
        if not outcome:
            outcome.append(call())
        return outcome[0]


current_graph: ContextVar[GraphContext | None] = ContextVar("holdfast_langgraph", default=None)


def _shorten(seed: str) -> str:
    return seed if len(seed) <= _MAX_SEED_LENGTH else compute_content_digest(seed)


def add_message_ids(graph: GraphContext, value: Any) -> None:
    """Give the messages in the result of a node or tool their ids, before the library does so at random."""
    _add_message_ids(MessageIds(f"{graph.seed} result"), value)


def _add_message_ids(ids: MessageIds, value: Any, depth: int = 0) -> None:
    if isinstance(value, BaseMessage):
        if value.id is None:
            value.id = str(ids.make())
    elif depth == _MAX_DEPTH:
        pass
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            _add_message_ids(ids, item, depth + 1)
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            _add_message_ids(ids, item, depth + 1)
    elif isinstance(value, Command):
        _add_message_ids(ids, cast("Command[Any]", value).update, depth + 1)


# The ids that the libraries make


def make_uuid4() -> uuid.UUID:
    """A random id: below a durable graph the same one after a crash."""
    graph = current_graph.get()
    return uuid.uuid4() if graph is None else graph.message_ids.make()


class SeededUuid:
    """Takes the place of the module ``uuid`` where a library makes ids that requests and updates contain."""

    def uuid4(self) -> uuid.UUID:
        """See ``make_uuid4``."""
        return make_uuid4()

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)


_MODULES_WITH_IDS = (
    "langgraph.graph.message",
    "langgraph.pregel._messages",
    "langchain.agents.middleware.summarization",
    "deepagents.middleware.filesystem",
    "deepagents.middleware.rubric",
    "deepagents.middleware.summarization",
    "deepagents.middleware._message_eviction",
    "deepagents.middleware._overflow_clip",
)
_seeded_uuid = SeededUuid()


def seed_ids() -> None:
    """Let the modules that are loaded make seeded ids below durable graphs."""
    for name in _MODULES_WITH_IDS:
        names = vars(sys.modules[name]) if name in sys.modules else {}
        if names.get("uuid") is uuid:
            names["uuid"] = _seeded_uuid
        if names.get("uuid4") is uuid.uuid4:
            names["uuid4"] = make_uuid4
