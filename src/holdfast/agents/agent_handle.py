"""A run of an agent that somebody follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from holdfast.agents.conversation import Recorded, Told
from holdfast.agents.sessions import earlier_messages
from holdfast.client.handle import Handle
from holdfast.client.store_runs import Link, StoreRuns
from holdfast.errors import UsageError
from holdfast.reports.agent_result import AgentResult
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

T = TypeVar("T")


class _Reader(Protocol):
    """A link that can read journals: that of a runtime."""

    async def read_journal(self, run_id: str) -> tuple[Run, History]: ...


class AgentHandle(Handle[AgentResult[T]]):
    """A started run of an agent."""

    __slots__ = ("_link", "_told")

    def __init__(self, link: Link, run_id: str, decode: Callable[..., AgentResult[T]], told: Told) -> None:
        super().__init__(StoreRuns(link, partial(decode, what=f"the result of run {run_id!r}")), run_id)
        self._link = link
        self._told = told

    async def result(self, timeout: float | None = None) -> AgentResult[T]:
        """The run's result, once it has ended, with its messages. Raises as that of any run does."""
        result = await super().result(timeout)
        if not hasattr(self._link, "read_journal"):
            return result  # in workflow code: what is not recorded is not there
        said = await self._conversation()
        used = (await self._link.usage(self.run_id)).used
        return replace(result, usage=used, said=said, earlier=said.earlier)

    async def messages(self) -> list[ModelMessage]:
        """The whole conversation as far as it is recorded, also of a run that has not ended."""
        return list(await self._conversation())

    async def _conversation(self) -> Recorded:
        """What was said before this run, and in it."""
        if not hasattr(self._link, "read_journal"):
            raise UsageError("messages are read from the journal, which workflow code cannot do: read them in a step")
        read = cast(_Reader, self._link).read_journal
        run, history = await read(self.run_id)
        before: list[Any] = await earlier_messages(run.previous, read)
        return Recorded(before, run.inputs, run.began_at, history.records, self._told)
