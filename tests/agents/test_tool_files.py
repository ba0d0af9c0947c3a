"""Tools that return images and documents: the model sees them, and they are recorded once."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from provider_server import ProviderServer
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import Agent, Client, Runtime, tool
from holdfast.testing import Runner, ScriptedModel, call

pytestmark = pytest.mark.asyncio

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
IMAGE = BinaryContent(PIXEL, media_type="image/png")
LINK = ImageUrl("https://example.com/cat.png")
PAGE = DocumentUrl("https://example.com/page.pdf")
SEPARATE = ToolReturn("taken", content=["This is the photo:", IMAGE], metadata={"camera": 7})


@tool
async def photo(kind: str) -> Any:
    return {
        "image": IMAGE,
        "link": LINK,
        "both": ["two of them", IMAGE, LINK],
        "inside": {"photo": IMAGE, "size": 1},
        "separate": SEPARATE,
        "none": {"size": [1, 2]},
    }[kind]


@tool
async def typed_photo() -> BinaryContent:
    return IMAGE


@tool
def separate_photo() -> ToolReturn:
    return SEPARATE


def sent(model: ScriptedModel) -> list[Any]:
    """The newest message that the model was sent."""
    message = model.calls[-1].last_message
    assert isinstance(message, ModelRequest)
    return list(message.parts)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("image", IMAGE),
        ("link", LINK),
        ("both", ["two of them", IMAGE, LINK]),
        ("inside", {"photo": IMAGE, "size": 1}),
        ("none", {"size": [1, 2]}),
    ],
)
async def test_a_model_is_shown_what_a_tool_returns(kind: str, content: Any) -> None:
    model = ScriptedModel([call("photo", kind=kind), "seen"])
    agent = Agent(model, name=f"files-{kind}", tools=[photo])
    await Runner().run(agent, "Show me.")
    [part] = sent(model)
    assert isinstance(part, ToolReturnPart)
    assert part.content == content
    await Runner(max_pairs=0, replay_processes=0).crash_everywhere(agent, "Show me.")


async def test_only_files_have_a_form_of_their_own() -> None:
    @tool
    async def answer() -> ModelResponse:
        return ModelResponse([TextPart("Hello")])

    @tool
    async def endless() -> Any:
        things: list[Any] = ["a"]
        things.append(things)
        return things

    model = ScriptedModel([[call("answer"), call("endless")], "seen"])
    result = await Runner().run(Agent(model, name="files-others", tools=[answer, endless]), "Show me.")
    assert isinstance(result.steps[2].output, ModelResponse), "recorded by its declared type"
    assert "cannot be recorded: at [1] it contains itself" in str(result.steps[3].error)


@pytest.mark.parametrize("returns", [photo, separate_photo])
async def test_what_a_tool_separates_from_its_result_comes_after_all_results(returns: Any) -> None:
    calls = [call("photo", kind="separate") if returns is photo else call("separate_photo"), call("typed_photo")]
    model = ScriptedModel([calls, "seen"])
    agent = Agent(model, name=f"files-separate-{returns.name}", tools=[returns, typed_photo])
    result = await Runner().run(agent, "Show me.")
    first, second, beside = sent(model)
    assert (first.content, first.metadata) == ("taken", {"camera": 7})
    assert second.content == IMAGE
    assert isinstance(beside, UserPromptPart)
    assert list(beside.content) == ["This is the photo:", IMAGE]
    assert result.steps[2].output == SEPARATE, "workflow code sees it as it was returned"
    assert result.steps[3].output == IMAGE


@pytest.mark.parametrize("name", ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"])
async def test_the_provider_gets_an_image(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script = {"eyes": [{"calls": [{"tool": "typed_photo", "arguments": {}}]}, {"text": "A pixel."}]}
    with ProviderServer(script, tmp_path / "provider.ledger") as server:
        for key, value in server.address.environment.items():
            monkeypatch.setenv(key, value)
        agent = Agent(name, name=f"files-{name.partition(':')[0]}", tools=[typed_photo], instructions="script:eyes")
        assert (await agent.run("Look.")).output == "A pixel."
        assert base64.b64encode(PIXEL).decode() in json.dumps(server.bodies[-1])
        kinds = {found["type"] for found in _dicts(server.bodies[-1]) if isinstance(found.get("type"), str)}
        assert kinds & {"image", "image_url", "input_image"}


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(one for item in value.values() for one in _dicts(item))]
    return [one for item in value for one in _dicts(item)] if isinstance(value, list) else []


async def test_a_large_file_is_stored_once_and_described(tmp_path: Path) -> None:
    large = BinaryContent(bytes(range(256)) * 4096, media_type="application/pdf")

    @tool
    async def scan(page: int) -> BinaryContent:
        return large

    model = ScriptedModel([[call("scan", page=1), call("scan", page=2)], "read"])
    agent = Agent(model, name="files-large", tools=[scan])
    url = f"sqlite:///{tmp_path}/large.db"
    async with Runtime(url) as runtime:
        handle = await runtime.start(agent, "Read them.")
        await handle.result()
    with sqlite3.connect(tmp_path / "large.db") as database:
        assert database.execute("SELECT count(*) FROM blobs").fetchone() == (1,)
    async with Client(url) as client:
        said = [one for one in await client.conversation(handle.run_id) if one.role == "tool"]
    assert [one.text for one in said] == ["<application/pdf, 1,048,576 bytes>"] * 2
