"""``AgentHandle``: a started run of an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.admission.durations import Duration
from holdfast.agents.conversation import InstructionsBuilder, RecordedMessages
from holdfast.agents.sessions import read_messages
from holdfast.client.handle import Handle
from holdfast.client.run_operations import RunOperations
from holdfast.errors import UsageError
from holdfast.reports.agent_result import AgentResult
from holdfast.services.store_provider import StoreProvider

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

T = TypeVar("T")


class AgentHandle(Handle[AgentResult[T]]):
    """A started run of an agent."""

    __slots__ = ("_build_instructions", "_provider")

    def __init__(
        self,
        provider: StoreProvider,
        run_id: str,
        decode: Callable[..., AgentResult[T]],
        build_instructions: InstructionsBuilder,
    ) -> None:
        super().__init__(RunOperations(provider, partial(decode, subject=f"the result of run {run_id!r}")), run_id)
        self._provider = provider
        self._build_instructions = build_instructions

    async def result(self, timeout: Duration | None = None) -> AgentResult[T]:
        """Wait for the run's result, with its messages. Raises the same errors as ``Handle.result``."""
        result = await super().result(timeout)
        if not self._provider.can_read:
            return result  # workflow code cannot read journals
        messages = await self._read_messages()
        usage = await self.usage()
        return replace(result, usage=usage, loaded_messages=messages, history_count=messages.earlier_count)

    async def messages(self) -> list[ModelMessage]:
        """The whole recorded conversation, also of a run that has not ended."""
        return list(await self._read_messages())

    async def _read_messages(self) -> RecordedMessages:
        if not self._provider.can_read:
            raise UsageError("messages are read from the journal, which workflow code cannot do: read them in a step")
        read = self._provider.read_journal
        run, history = await read(self.run_id)
        earlier: list[Any] = await read_messages(run.previous_run, read)
        return RecordedMessages(earlier, run.inputs, run.clock_started_at, history.records, self._build_instructions)
