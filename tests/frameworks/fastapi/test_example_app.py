"""The example app, over HTTP: its server is killed at any point, and another one continues the run and the stream."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from app_process import AppProcess, join_texts

from browsers import chromium
from holdfast import Client
from holdfast.client.http.sse import ServerSentEvent

COMMAND = ["-m", "fastapi_app", "--port", "{port}", "--pace", "0.05"]
TEXTS = [
    "Let me look at order 17.",
    "You ordered a kettle, 39 dollars.",
    "I have refunded 39 dollars for order 17. The money is in your account within three working days.",
]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    folder = tmp_path_factory.mktemp("app")
    yield from serve(folder, f"sqlite:///{folder / 'runs.db'}")


@pytest.fixture
def killed_app(kill_store_url: str, tmp_path: Path) -> Iterator[AppProcess]:
    yield from serve(tmp_path, kill_store_url)


def serve(folder: Path, url: str) -> Iterator[AppProcess]:
    app = AppProcess(COMMAND, folder, url)
    app.start()
    yield app
    app.stop(signal.SIGKILL)


def follow(app: AppProcess, chat: str, *, kill_after: int = 0) -> list[ServerSentEvent]:
    """What the browser of a customer gets who agrees to the refund; the server is killed after so many events."""
    run: str = app.post(f"/chats/{chat}/messages/1", {"text": "Please refund order 17."}).json()["run"]
    events: list[ServerSentEvent] = []
    while not events or events[-1].event != "ended":
        with app.stream(f"/runs/{run}/events", events[-1].id if events else "") as stream:
            for event in stream:
                events.append(event)
                is_killed = len(events) == kill_after
                if is_killed:
                    assert app.stop(signal.SIGKILL) == -signal.SIGKILL
                    app.start()
                data = json.loads(event.data)
                if event.event == "approval" and data["state"] == "requested":
                    app.post(f"/runs/{run}/approvals/{data['id']}", {"approved": True}).raise_for_status()
                if is_killed:
                    break
    assert len({event.id for event in events}) == len(events), f"killed after {kill_after}: an event came twice"
    return events


def list_outcomes(events: list[ServerSentEvent]) -> list[str]:
    """The events without those of texts, and without ids that differ between runs."""
    found: list[str] = []
    for event in events:
        if event.event not in ("text", "retracted"):
            data = {name: value for name, value in json.loads(event.data).items() if name != "id" and value is not None}
            found.append(f"{event.event} {data}")
    return found


async def read_answers(url: str, run: str) -> list[str]:
    async with Client(url) as client:
        return [event.text async for event in client.events(run, follow=False) if event.kind == "answered"]


@pytest.mark.timeout(1800)  # with --kills 15
def test_a_killed_server_loses_and_repeats_no_event(killed_app: AppProcess, request: pytest.FixtureRequest):
    refunds = killed_app.folder / "refunds.txt"
    reference = follow(killed_app, "ada")
    assert list(join_texts(reference).values()) == TEXTS
    assert list_outcomes(reference) == [
        "step {'step': 3, 'tool': 'find_order'}",
        "approval {'state': 'requested', 'tool': 'refund', 'arguments': {'number': 17, 'dollars': 39}}",
        "approval {'state': 'answered', 'approved': True}",
        "step {'step': 8, 'tool': 'refund'}",
        "ended {'state': 'completed'}",
    ]
    assert refunds.read_text() == "order 17: 39\n"
    for kill_after in choose_points(len(reference) - 1, request.config.getoption("--kills")):
        refunds.unlink()
        chat = f"ada{kill_after}"
        events = follow(killed_app, chat, kill_after=kill_after)
        recorded = asyncio.run(read_answers(killed_app.url, f"{chat}-1"))
        assert list(join_texts(events).values()) == recorded, f"killed after {kill_after}: not what was recorded"
        is_unknown = "refunded" not in recorded[-1]  # killed between the refund and its record: it is not repeated
        expected = [line for line in list_outcomes(reference) if not (is_unknown and "'tool': 'refund'}" in line)]
        assert list_outcomes(events) == expected, f"killed after {kill_after}"
        assert refunds.read_text() == "order 17: 39\n", f"killed after {kill_after}"


def choose_points(count: int, chosen: int) -> list[int]:
    """As many of the numbers from 1 to ``count``, spread over all of them."""
    if chosen >= count:
        return list(range(1, count + 1))
    return [1 + (2 * index + 1) * count // (2 * chosen) for index in range(chosen)]


def test_a_page_that_is_loaded_again_shows_the_chat(app: AppProcess):
    follow(app, "ada")
    assert httpx2.get(f"{app.address}/chats/ada").json() == [{"run": "ada-1", "text": "Please refund order 17."}]
    with app.stream("/runs/ada-1/events") as stream:
        assert list(join_texts(list(stream)).values()) == TEXTS


def test_a_message_that_is_sent_twice_is_one_run(app: AppProcess):
    for _ in range(2):
        assert app.post("/chats/bob/messages/1", {"text": "Hello."}).json() == {"run": "bob-1"}
    changed = app.post("/chats/bob/messages/1", {"text": "Goodbye."})
    assert (changed.status_code, changed.json()["type"]) == (409, "run-conflict")
    assert "Hello" not in changed.text


def test_only_the_run_that_asks_takes_the_answer(app: AppProcess):
    response = app.post("/runs/ada-1/approvals/unknown", {"approved": True})
    assert response.status_code == 404


@pytest.mark.asyncio
async def test_the_page_continues_when_its_server_is_killed(tmp_path: Path):
    app = AppProcess(COMMAND, tmp_path, f"sqlite:///{tmp_path / 'runs.db'}")
    app.start()
    try:
        async with chromium() as browser:
            page = await browser.new_page()
            page.set_default_timeout(30_000)
            await page.goto(app.address)
            await page.get_by_role("button", name="Send").click()
            await page.get_by_text("Let me look").wait_for()
            app.stop(signal.SIGKILL)
            app.start()
            await page.get_by_text("You ordered a kettle, 39 dollars.").wait_for()
            await page.get_by_role("button", name="Yes").wait_for()
            app.stop(signal.SIGKILL)
            await page.get_by_role("button", name="Yes").click()  # while there is no server
            app.start()
            answer = page.locator("[data-state=completed] p")
            await answer.last.wait_for()
            shown = await answer.all_text_contents()
            assert [text for text in shown if text in TEXTS] == TEXTS
            assert [text for text in shown if text not in TEXTS] == [
                "find_order is done.",
                'refund {"number":17,"dollars":39}? You agreed.',
                "refund is done.",
            ]
            await page.reload()
            await page.get_by_text(TEXTS[-1]).wait_for()
            assert await page.locator(".person").all_text_contents() == ["Please refund order 17."]
    finally:
        app.stop(signal.SIGKILL)
