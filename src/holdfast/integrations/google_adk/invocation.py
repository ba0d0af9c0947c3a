"""An invocation of a runner in a program: the framework's own, with reproducible values and its copy of the session."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.runners import Runner

from holdfast.codec import compute_content_digest
from holdfast.engine.program_run import ProgramRun
from holdfast.errors import UsageError
from holdfast.integrations.google_adk.reproducible_values import ReproducibleValues
from holdfast.integrations.google_adk.working_session import WorkingSessionService, load_working_session


class Invocation:
    """One invocation.

    Args:
        program: the run that it belongs to.
        runner: the durable runner.
        base: the class of the runner that the user has made durable.
        arguments: those of ``run_async``.
    """

    def __init__(self, program: ProgramRun, runner: Runner, base: type[Runner], arguments: Mapping[str, Any]) -> None:
        self._program = program
        self._runner = runner
        self._base = base
        self._arguments = arguments
        self.session: WorkingSessionService | None = None

    async def run(self) -> AsyncGenerator[Event]:
        """Run it, and yield its events."""
        arguments = self._arguments
        config: RunConfig | None = arguments.get("run_config")
        user_id, session_id = arguments["user_id"], arguments["session_id"]
        session = self.session = await load_working_session(
            self._runner, user_id, session_id, None if config is None else config.get_session_config
        )
        values = ReproducibleValues(self._make_seed(user_id, session_id), session.loaded_at)
        view = copy.copy(self._runner)
        view.__class__ = self._base
        view.session_service = session
        with values.provided():
            events = view.run_async(**arguments)
        async with aclosing(events):
            while True:
                with values.provided():  # not while the caller has the event: its context is this one
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                yield event

    def _make_seed(self, user_id: str, session_id: str) -> str:
        """The invocations of a session come in the same order when the program runs again."""
        counts = cast("Counter[str]", self._program.extras.setdefault("google_adk", Counter[str]()))
        key = compute_content_digest(self._runner.app_name, user_id, session_id)
        counts[key] += 1
        return f"{self._program.execution.run_id}/{key}/{counts[key]}"


def check_arguments(runner: Runner, config: RunConfig | None) -> None:
    """Refuse what cannot be recorded."""
    if config is not None and config.support_cfc:
        raise UsageError(
            f"runner {runner.app_name!r}: `support_cfc` uses the live API, whose connections cannot be recorded. "
            "Leave it out, or use a runner that is not durable"
        )
