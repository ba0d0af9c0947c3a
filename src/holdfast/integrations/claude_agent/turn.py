"""``query``: a turn of the SDK as a recorded step of a program.

In a program (see ``authoring.program``), a turn whose result is recorded returns its recorded messages, and no model is
called. A turn that was cut off is *resumed*: the session of its last attempt is loaded from the store, and continues.
The id of that session is in the progress of the step, so an attempt finds it. If the session was not stored before the
process died, the turn begins again, in a new session: the executable refuses to use the id of a session twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions, project_key_for_directory
from claude_agent_sdk.types import Message, SessionKey, SessionStore, SystemMessage

from holdfast.authoring.runtime import StepStoreProvider
from holdfast.authoring.workflow_api import current_step
from holdfast.client.resources import ClientMemory
from holdfast.core.execution import get_current_execution
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import UsageError
from holdfast.integrations import ModelInput, record_model_stream
from holdfast.integrations.claude_agent.messages import TurnCodec
from holdfast.integrations.claude_agent.session_store import HoldfastSessionStore
from holdfast.integrations.claude_agent.tool_calls import ToolCalls, check_effects, parse_effects, record_tools
from holdfast.integrations.claude_agent.transcript import Transcript, make_resume_prompt
from holdfast.reports.recorded_reply import TURN_STEP

_SESSION = "session"


async def query(
    *,
    prompt: str | Any,
    options: ClaudeAgentOptions | None = None,
    effects: Mapping[str, Effect | str] | None = None,
    **others: Any,
) -> AsyncGenerator[Message]:
    """``claude_agent_sdk.query``, made durable in a program. Elsewhere, it is that function.

    Args:
        prompt: the prompt; in a program, a text.
        options: the SDK's options. In a program, ``resume`` is the ``session_id`` of an earlier turn, which this one
            continues.
        effects: what in-process tools do to the world, by their names: ``read``, ``idempotent`` (the default), or
            ``once``.
        others: other arguments of the SDK's function; in a program, there are none.
    """
    options = options or ClaudeAgentOptions()
    turn = _Turn(prompt, options, parse_effects(effects or {}))
    if find_program() is None and get_current_execution() is None:
        async with aclosing(_open_sdk(prompt, options, **others)) as messages:
            async for message in messages:
                yield message
        return
    turn.check(others)
    settings = {"resume": options.resume} if options.resume else {}
    model_input = ModelInput(f"anthropic:{options.model or 'claude'}", [{"role": "user", "content": prompt}], settings)
    try:
        recorded = record_model_stream(
            model_input, TurnCodec(has_own_cost=not options.resume), turn.open, is_opaque=False, step_name=TURN_STEP
        )
        async with aclosing(recorded) as messages:
            async for message in messages:
                yield message
    finally:
        await turn.close()


class _Turn:
    """A turn of a program."""

    def __init__(self, prompt: Any, options: ClaudeAgentOptions, effects: Mapping[str, Effect]) -> None:
        self._prompt = prompt
        self._options = options
        self._effects = effects
        self._streams: list[AsyncIterator[Message]] = []

    def check(self, others: Mapping[str, Any]) -> None:
        """Raise ``UsageError`` for what cannot be resumed."""
        options = self._options
        if others:
            raise UsageError(f"query(): a program cannot use {', '.join(map(repr, others))}, which its record lacks")
        if not isinstance(self._prompt, str):
            raise UsageError("query(): in a program, the prompt is a text, because the recorded turn is found by it")
        if options.continue_conversation:
            raise UsageError(
                "query(): continue_conversation would continue another session when the program runs again. Pass "
                "resume=message.session_id of the turn to continue"
            )
        if options.session_id is not None or options.fork_session:
            raise UsageError(
                "query(): in a program, each turn is a session of its own, whose id is in its ResultMessage. Leave "
                "session_id and fork_session out"
            )
        if not isinstance(options.mcp_servers, dict):
            raise UsageError("query(): in a program, mcp_servers is a dictionary, so that calls of tools are recorded")

    def open(self) -> AsyncIterator[Message]:
        """The messages of a turn that is not recorded."""
        stream = self._run()
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        """End the executable, if it runs."""
        for stream in self._streams:
            await stream.aclose()  # type: ignore[attr-defined]

    async def _run(self) -> AsyncGenerator[Message]:
        program = find_program()
        assert program is not None
        store = self._options.session_store or _make_store()
        servers = self._list_servers()
        calls = ToolCalls(program, self._effects)
        prompt, session = self._prompt, {}
        transcript = await self._read_transcript(store)
        if transcript is not None:
            prompt = await _make_prompt(transcript, calls, servers)
            session = {"resume": current_step().progress[_SESSION]}
        else:
            new = str(uuid4())
            await current_step().save_progress({_SESSION: new})
            session = {"session_id": new, "fork_session": self._options.resume is not None}
        # Entries are stored as they come: the next process continues after them.
        options = replace(self._options, session_store=store, session_store_flush="eager", **session)
        async with aclosing(_open_sdk(prompt, options)) as messages:
            async for message in messages:
                if isinstance(message, SystemMessage) and message.subtype == "init":
                    tools = [tool for tool in message.data.get("tools", []) if _get_server(tool) in servers]
                    check_effects(self._effects, tools)
                yield message

    def _list_servers(self) -> list[str]:
        """The servers in this process, whose calls are recorded from now on."""
        found: list[str] = []
        servers: Any = self._options.mcp_servers
        for name, config in servers.items():
            if config.get("type") == "sdk":
                record_tools(name, config["instance"])
                found.append(name)
        return found

    async def _read_transcript(self, store: SessionStore) -> Transcript | None:
        """The transcript of the attempt that was cut off; ``None``: there is none with this turn in it."""
        progress: Any = current_step().progress
        if progress is None:
            return None
        project = project_key_for_directory(self._options.cwd)
        entries = await store.load({"project_key": project, "session_id": progress[_SESSION]})
        if not entries:
            return None
        subagents: list[Any] = []
        for subpath in await store.list_subkeys({"project_key": project, "session_id": progress[_SESSION]}):
            key: SessionKey = {"project_key": project, "session_id": progress[_SESSION], "subpath": subpath}
            subagents += await store.load(key) or []
        transcript = Transcript(entries, subagents)  # type: ignore[arg-type]
        return transcript if transcript.has_prompt(self._prompt) else None


async def _make_prompt(transcript: Transcript, calls: ToolCalls, servers: list[str]) -> str:
    outcomes = {one.id: one for one in transcript.list_tool_outcomes()}
    for id, is_error in outcomes.values():
        calls.note_delivered(id, is_error=is_error and not transcript.mentions(id))
    results = [(use, await calls.take_undelivered(use)) for use in transcript.list_tool_uses(servers)]
    return make_resume_prompt([(use, result) for use, result in results if result is not None])


def _open_sdk(prompt: Any, options: ClaudeAgentOptions, **others: Any) -> AsyncGenerator[Message]:
    """The SDK's function, which is declared to return an iterator, and returns a generator."""
    return cast("AsyncGenerator[Message]", claude_agent_sdk.query(prompt=prompt, options=options, **others))


def _get_server(tool: str) -> str:
    return tool.split("__")[1] if tool.startswith("mcp__") else ""


def _make_store() -> SessionStore:
    """The session store in the store of the run."""
    provider = StepStoreProvider(get_step_executor().engine)
    return HoldfastSessionStore(ClientMemory(provider, _refuse_sync))


def _refuse_sync(*_: Any) -> Any:
    raise AssertionError("sessions are read and written by async code")
