"""A session of the SDK in a program: its operations are recorded, so that a replay does not repeat them.

The items of a turn are added by a ``once`` step. If its process died while it ran, a second step looks at the end of
the session, and adds the items if they are not there. So they are added exactly once, as long as no other process
writes to the session meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import OpenAIConversationsSession, Session
from agents.items import TResponseInputItem
from agents.memory import is_openai_responses_compaction_aware_session

from holdfast.core.states import Effect
from holdfast.errors import StepOutcomeUnknown, UsageError
from holdfast.integrations import record_tool_call


class RecordedSession:
    """A session whose operations are steps of the program."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.session_id = session.session_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items, as they were when the run first read them."""
        arguments = {"session": self.session_id} | ({} if limit is None else {"limit": limit})
        return await record_tool_call(
            "session get", arguments, lambda: self._session.get_items(limit), effect=Effect.READ
        )

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, once."""
        arguments = {"session": self.session_id, "items": items}
        try:
            await record_tool_call("session add", arguments, lambda: self._session.add_items(items), effect=Effect.ONCE)
        except StepOutcomeUnknown:
            await record_tool_call("session add again", arguments, lambda: self._add_missing(items))

    async def _add_missing(self, items: list[TResponseInputItem]) -> None:
        if await self._session.get_items(len(items)) != items:
            await self._session.add_items(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item."""
        return await record_tool_call("session pop", {"session": self.session_id}, self._session.pop_item)

    async def clear_session(self) -> None:
        """Remove all items."""
        await record_tool_call("session clear", {"session": self.session_id}, self._session.clear_session)


def record_session(arguments: Mapping[str, Any], agent: str) -> dict[str, Any]:
    """The arguments of ``Runner.run`` with a recorded session, if they have one."""
    session = arguments.get("session")
    if session is None or isinstance(session, RecordedSession):
        return dict(arguments)
    if isinstance(session, OpenAIConversationsSession) or is_openai_responses_compaction_aware_session(session):
        raise UsageError(
            f"agent {agent!r}: the items of a {type(session).__name__} are changed by the provider, so its operations "
            "cannot be recorded. Use another session, such as SQLiteSession, or pass conversation_id="
        )
    return {**arguments, "session": RecordedSession(session)}
