"""Calls a durable runner, and reads its events and its session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.events.event import Event
from google.genai import types

MODEL = "gemini-2.5-flash"
KEY: dict[str, str] = {"user_id": "ada", "session_id": "s1"}


def message(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def open_session(runner: Any) -> None:
    key = {"app_name": runner.app_name, **KEY}
    if await runner.session_service.get_session(**key) is None:
        await runner.session_service.create_session(**key)


async def read_session(runner: Any) -> Any:
    return await runner.session_service.get_session(app_name=runner.app_name, **KEY)


async def collect(runner: Any, text: str | types.Content = "Go.", **options: Any) -> list[Event]:
    await open_session(runner)
    sent = message(text) if isinstance(text, str) else text
    return [event async for event in runner.run_async(**KEY, new_message=sent, **options)]


def texts(events: list[Event], *, partial: bool = False) -> list[str]:
    return [
        part.text
        for event in events
        if bool(event.partial) is partial and event.content
        for part in event.content.parts or ()
        if part.text
    ]


def results(events: list[Event]) -> list[Any]:
    return [one.response for event in events for one in event.get_function_responses()]


async def wait_until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """The first true value of an async condition."""
    while not (value := await condition()):  # noqa: ASYNC110 - other processes make it true
        await asyncio.sleep(0.01)
    return value
