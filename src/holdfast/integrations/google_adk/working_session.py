"""The session of one invocation, as it was when the invocation began.

When a program runs again, the session that its service has may contain what an earlier process has added. A model would
be sent these events a second time. So the program begins with a recorded step, ``load session``, and works on a copy of
what that step returned. What it adds is passed to the service, unless the service has an event with this id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

from holdfast.codec import codec_for
from holdfast.core.states import Effect
from holdfast.integrations.google_adk.reproducible_values import get_recording_time
from holdfast.integrations.tool_call import record_tool_call

LOAD_STEP = "load session"

_codec = codec_for(dict[str, Any])


class WorkingSessionService(BaseSessionService):
    """Gives an invocation its copy of the session, and passes everything else to the runner's own service."""

    def __init__(self, service: BaseSessionService, session: Session | None, stored: Session | None, at: float) -> None:
        self.loaded_at = at
        """When the session was loaded first."""
        self.appended: list[Event] = []
        """The events of this invocation."""
        self._service = service
        self._session = session
        self._stored = stored
        self._stored_ids = frozenset[str]() if stored is None else frozenset(event.id for event in stored.events)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session of the invocation, or another one of the service."""
        known = self._session
        if known is None or (known.app_name, known.user_id, known.id) != (app_name, user_id, session_id):
            return await self._service.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id, config=config
            )
        return known

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event to the copy, and to the stored session unless that has it."""
        if session is not self._session or self._stored is None:
            return await self._service.append_event(session, event)
        if event.partial:
            return event
        event = await super().append_event(session, event)
        session.last_update_time = event.timestamp
        self.appended.append(event)
        if event.id not in self._stored_ids:
            await self._service.append_event(self._stored, event)
        return event

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """A new session of the service."""
        return await self._service.create_session(
            app_name=app_name, user_id=user_id, state=state, session_id=session_id
        )

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of the service."""
        return await self._service.list_sessions(app_name=app_name, user_id=user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session of the service."""
        await self._service.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The user's state in the service."""
        return await self._service.get_user_state(app_name=app_name, user_id=user_id)

    async def flush(self) -> None:
        """Write what the service holds back."""
        await self._service.flush()


async def load_working_session(
    runner: Runner, user_id: str, session_id: str, config: GetSessionConfig | None
) -> WorkingSessionService:
    """The session of an invocation that begins, or of one that runs again."""
    service = runner.session_service
    stored: Session | None = None

    async def load() -> dict[str, Any]:
        nonlocal stored
        stored = await find_session(runner, user_id, session_id, config)
        dumped = None if stored is None else stored.model_dump_json(exclude_defaults=True)
        return {"at": get_recording_time(), "session": dumped}

    arguments = {"app_name": runner.app_name, "user_id": user_id, "session_id": session_id}
    record = await record_tool_call(LOAD_STEP, arguments, load, effect=Effect.READ, codec=_codec)
    if record["session"] is None:
        return WorkingSessionService(service, None, None, record["at"])
    session = Session.model_validate_json(record["session"])
    if stored is None:  # the step is recorded
        stored = await restore_session(service, session)
    return WorkingSessionService(service, session, stored, record["at"])


async def find_session(
    runner: Runner, user_id: str, session_id: str, config: GetSessionConfig | None = None
) -> Session | None:
    """The session in the runner's service, which is created if the runner may."""
    service, app_name = runner.session_service, runner.app_name
    found = await service.get_session(app_name=app_name, user_id=user_id, session_id=session_id, config=config)
    if found is None and runner.auto_create_session:
        found = await service.create_session(app_name=app_name, user_id=user_id, session_id=session_id)
    return found


async def restore_session(service: BaseSessionService, session: Session) -> Session:
    """The session in the service; a service that lost it with its process gets it again."""
    app_name, user_id, session_id = session.app_name, session.user_id, session.id
    stored = await service.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
    if stored is None:
        stored = await service.create_session(
            app_name=app_name, user_id=user_id, session_id=session_id, state=dict(session.state)
        )
        await append_missing(service, stored, session.events)
    return stored


async def append_missing(service: BaseSessionService, stored: Session, events: Sequence[Event]) -> None:
    """Append those of the events that the stored session does not have."""
    known = {event.id for event in stored.events}
    for event in events:
        if event.id not in known:
            await service.append_event(stored, event.model_copy(deep=True))
