"""``HoldfastSessionService``, and other session services when a run continues elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from adk_kit import KEY, MODEL, collect, open_session, read_session, texts
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types
from provider_server import ProviderServer

from holdfast import Client, Runtime
from holdfast.integrations.google_adk import HoldfastSessionService, durable

APP = {"app_name": "app/one", "user_id": "ada/1"}


@pytest.fixture(autouse=True)
def store(provider: ProviderServer) -> None:
    """A store of this test."""


def event(number: int, **actions: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=f"text {number}")])
    return Event(
        id=f"e{number}", author="user", content=content, timestamp=1000.0 + number, actions=EventActions(**actions)
    )


def test_a_session_comes_back_with_its_events_and_state():
    async def main() -> tuple[Session, Session | None]:
        service = HoldfastSessionService()
        session = await service.create_session(**APP, state={"a": 1, "app:b": 2, "user:c": 3})
        await service.append_event(session, event(1, state_delta={"a": 4, "user:c": 5, "temp:d": 6}))
        await service.append_event(session, event(2))
        return session, await HoldfastSessionService().get_session(**APP, session_id=session.id)

    session, read = asyncio.run(main())
    assert read is not None
    assert read.state == {"a": 4, "app:b": 2, "user:c": 5}
    assert session.state == {**read.state, "temp:d": 6}
    assert [one.id for one in read.events] == ["e1", "e2"]
    assert read.last_update_time == session.last_update_time == 1002.0


def test_an_event_that_is_appended_again_is_there_once():
    async def main() -> Session | None:
        service = HoldfastSessionService()
        session = await service.create_session(**APP, session_id="s")
        for _ in range(2):
            await service.append_event(session, event(1))
        return await service.get_session(**APP, session_id="s")

    read = asyncio.run(main())
    assert read is not None
    assert len(read.events) == 1


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        (GetSessionConfig(num_recent_events=2), ["e2", "e3"]),
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(after_timestamp=1002.0), ["e2", "e3"]),
    ],
)
def test_some_of_the_events_can_be_read(config: GetSessionConfig, ids: list[str]):
    async def main() -> Session | None:
        service = HoldfastSessionService()
        session = await service.create_session(**APP, session_id="s")
        for number in (1, 2, 3):
            await service.append_event(session, event(number))
        return await service.get_session(**APP, session_id="s", config=config)

    read = asyncio.run(main())
    assert read is not None
    assert [one.id for one in read.events] == ids


def test_sessions_of_users_are_listed_and_deleted():
    async def main() -> list[list[str]]:
        service = HoldfastSessionService()
        for user, session_id in (("ada/1", "s1"), ("ada/1", "s2"), ("bob", "s3")):
            await service.create_session(
                app_name="app/one", user_id=user, session_id=session_id, state={"user:n": user}
            )
        lists = [await service.list_sessions(**APP), await service.list_sessions(app_name="app/one")]
        await service.delete_session(**APP, session_id="s1")
        lists.append(await service.list_sessions(**APP))
        assert await service.get_session(**APP, session_id="s1") is None
        assert await service.get_user_state(**APP) == {"n": "ada/1"}
        return [[one.id for one in found.sessions] for found in lists]

    assert asyncio.run(main()) == [["s1", "s2"], ["s1", "s2", "s3"], ["s2"]]


def test_a_session_that_exists_and_one_that_does_not_are_the_frameworks_errors():
    async def main() -> None:
        service = HoldfastSessionService()
        session = await service.create_session(**APP, session_id="s")
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**APP, session_id="s")
        await service.delete_session(**APP, session_id="s")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event(1))

    asyncio.run(main())


def test_a_service_can_use_a_client():
    async def main() -> Session | None:
        async with Runtime():
            pass  # it creates the store
        async with Client() as client:
            service = HoldfastSessionService(client)
            await service.create_session(**APP, session_id="s", state={"a": 1})
            return await HoldfastSessionService(client).get_session(**APP, session_id="s")

    read = asyncio.run(main())
    assert read is not None
    assert read.state == {"a": 1}


def test_a_conversation_continues_in_another_process(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {"main": [{"text": "One."}, {"text": "Two, after: {task}"}]}

    def make_runner() -> Any:
        app = App(name="app", root_agent=LlmAgent(name="talker", model=MODEL, instruction="script:main"))
        return durable(Runner(app=app, session_service=HoldfastSessionService()))

    first = asyncio.run(collect(make_runner(), "First."))
    second = asyncio.run(collect(make_runner(), "Second."))
    assert texts(first) + texts(second) == ["One.", "Two, after: First."]


def test_a_session_is_created_if_the_runner_may(provider: ProviderServer):
    provider.scripts = {"main": [{"text": "One."}]}
    app = App(name="app", root_agent=LlmAgent(name="creator", model=MODEL, instruction="script:main"))
    runner = durable(Runner(app=app, session_service=HoldfastSessionService(), auto_create_session=True))

    async def main() -> Any:
        sent = types.Content(role="user", parts=[types.Part(text="Go.")])
        async for _ in runner.run_async(**KEY, new_message=sent):
            pass
        await open_session(runner)
        return await read_session(runner)

    assert [one.author for one in asyncio.run(main()).events] == ["user", "creator"]
