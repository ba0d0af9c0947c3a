"""Sessions of the framework in Holdfast's store: they survive the process, and all processes see them.

They are values in memory (see ``services.memories``). Each event and each key of the state is a value of its own, so
processes that append to a session at the same time overwrite nothing of each other, and an event that is appended again
is there once. Events have the order of their times.

    namespace             keys
    adk/APP               session/USER/SESSION, state/KEY
    adk/APP/USER          state/KEY
    adk/APP/USER/SESSION  event/TIME/ID, state/KEY
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from holdfast.authoring.runtime import Runtime
from holdfast.client.resources import ClientMemory
from holdfast.services.memories import MAX_LIMIT, MemoryEntry
from holdfast.sync_methods import run_sync

if TYPE_CHECKING:
    from holdfast.client.client import Client


class HoldfastSessionService(BaseSessionService):
    """Keeps sessions in Holdfast's store.

    Args:
        client: an open client of the store (default: the store of the process, as for runs).
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client = client

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """A new session; raises ``AlreadyExistsError`` if there is one with this id."""
        memory = await self._open_memory()
        session_id = (session_id or "").strip() or platform_uuid.new_uuid()
        index = _make_key("session", user_id, session_id)
        if await memory.get(_make_namespace(app_name), index) is not None:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.")
        await self._put_state(memory, app_name, user_id, session_id, state or {})
        await memory.put(_make_namespace(app_name), index, {"created_at": platform_time.get_time()}, text="")
        session = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        assert session is not None
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session with its events, or those of them that ``config`` selects."""
        memory = await self._open_memory()
        created = await memory.get(_make_namespace(app_name), _make_key("session", user_id, session_id))
        if created is None:
            return None
        session = await self._read_state(memory, app_name, user_id, session_id)
        after = "event/"
        if config is not None and config.after_timestamp is not None:
            after = f"event/{_format_time(config.after_timestamp)}"
        namespace = _make_namespace(app_name, user_id, session_id)
        session.events = [
            Event.model_validate(entry.value) async for entry in _list(memory, namespace, "event/", after)
        ]
        session.last_update_time = session.events[-1].timestamp if session.events else created["created_at"]
        if config is not None and config.num_recent_events is not None:
            session.events = session.events[-config.num_recent_events :] if config.num_recent_events else []
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user or of all users, without their events, the latest last."""
        memory = await self._open_memory()
        prefix = "session/" if user_id is None else f"{_make_key('session', user_id)}/"
        sessions: list[Session] = []
        async for entry in _list(memory, _make_namespace(app_name), prefix):
            user, session_id = map(unquote, entry.key.split("/")[1:])
            if (session := await self.get_session(app_name=app_name, user_id=user, session_id=session_id)) is not None:
                sessions.append(session.model_copy(update={"events": []}))
        return ListSessionsResponse(sessions=sorted(sessions, key=lambda one: one.last_update_time))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events. The state of the app and of the user stays."""
        memory = await self._open_memory()
        await memory.delete(_make_namespace(app_name), _make_key("session", user_id, session_id))
        namespace = _make_namespace(app_name, user_id, session_id)
        async for entry in _list(memory, namespace, ""):
            await memory.delete(namespace, entry.key)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The user's state, without the prefix of its keys."""
        return await _read_values(await self._open_memory(), _make_namespace(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event to the session and to the store."""
        if event.partial:
            return event
        memory = await self._open_memory()
        app_name, user_id, session_id = session.app_name, session.user_id, session.id
        if await memory.get(_make_namespace(app_name), _make_key("session", user_id, session_id)) is None:
            raise SessionNotFoundError(f"Session {session_id} not found.")
        event = await super().append_event(session, event)
        session.last_update_time = event.timestamp
        await self._put_state(memory, app_name, user_id, session_id, event.actions.state_delta)
        namespace = _make_namespace(app_name, user_id, session_id)
        key = f"event/{_format_time(event.timestamp)}/{event.id}"
        await memory.put(namespace, key, event.model_dump(mode="json", exclude_defaults=True), text="")
        return event

    # The store

    async def _open_memory(self) -> ClientMemory:
        if self._client is not None:
            return self._client.memory
        return ClientMemory((await Runtime.current()).store_provider, run_sync)

    async def _put_state(
        self, memory: ClientMemory, app_name: str, user_id: str, session_id: str, state: dict[str, Any]
    ) -> None:
        for name, value in state.items():
            if name.startswith(State.TEMP_PREFIX):
                continue
            namespace, key = _make_namespace(app_name, user_id, session_id), name
            if name.startswith(State.APP_PREFIX):
                namespace, key = _make_namespace(app_name), name.removeprefix(State.APP_PREFIX)
            elif name.startswith(State.USER_PREFIX):
                namespace, key = _make_namespace(app_name, user_id), name.removeprefix(State.USER_PREFIX)
            await memory.put(namespace, _make_key("state", key), value, text="")

    async def _read_state(self, memory: ClientMemory, app_name: str, user_id: str, session_id: str) -> Session:
        state = await _read_values(memory, _make_namespace(app_name, user_id, session_id))
        for prefix, names in ((State.APP_PREFIX, (app_name,)), (State.USER_PREFIX, (app_name, user_id))):
            shared = await _read_values(memory, _make_namespace(*names))
            state |= {prefix + name: value for name, value in shared.items()}
        return Session(id=session_id, app_name=app_name, user_id=user_id, state=state)


def _make_namespace(*names: str) -> str:
    return "/".join(("adk", *(quote(name, safe="") for name in names)))


def _make_key(*names: str) -> str:
    return "/".join(quote(name, safe="") for name in names)


def _format_time(timestamp: float) -> str:
    """Texts in the order of the times."""
    return f"{timestamp:020.6f}"


async def _read_values(memory: ClientMemory, namespace: str) -> dict[str, Any]:
    """The state in a namespace."""
    return {
        unquote(entry.key.removeprefix("state/")): entry.value async for entry in _list(memory, namespace, "state/")
    }


async def _list(memory: ClientMemory, namespace: str, prefix: str, after: str = "") -> AsyncGenerator[MemoryEntry]:
    """The values whose keys have this prefix, in the order of their keys."""
    after = max(prefix, after)
    while True:
        entries = await memory.list(namespace, after=after, limit=MAX_LIMIT)
        for entry in entries:
            if not entry.key.startswith(prefix):
                return
            yield entry
        if len(entries) < MAX_LIMIT:
            return
        after = entries[-1].key
