"""What decoding an answer needs is loaded before the first request is sent: a crash in between pays twice."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from provider_server import ProviderServer
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.agents.models import decoder_warmup

SCRIPT = {
    "first": [
        {"text": "Let me look.", "calls": [{"tool": "look", "arguments": {"place": "Oslo"}}]},
        {"text": "It is {results}."},
    ]
}

PROGRAM = """
import asyncio, json, sys
from pydantic._internal._generate_schema import GenerateSchema
from holdfast import Agent, ModelOptions, Runtime, tool
from holdfast.agents.models import model_call
from holdfast.engine.driver import Driver

built, before, found = 0, None, []
made, asked, recorded = GenerateSchema.__init__, model_call.request, Driver.on_recorded

def make(self, *args, **kwargs):
    global built
    built += 1
    made(self, *args, **kwargs)

async def request(*args, **kwargs):
    global before
    before = set(sys.modules), built
    return await asked(*args, **kwargs)

def record(self, one, value):
    if one.name == "model call":
        found.append({"modules": sorted(set(sys.modules) - before[0]), "schemas": built - before[1]})
    recorded(self, one, value)

GenerateSchema.__init__, model_call.request, Driver.on_recorded = make, request, record

@tool
async def look(place: str) -> str:
    return f"rain in {place}"

async def main():
    agents = [
        Agent(
            sys.argv[2],
            name=f"first-{stream}",
            tools=[look],
            instructions="script:first",
            model_options=ModelOptions(stream=stream),
        )
        for stream in (True, False)
    ]
    async with Runtime(sys.argv[1]):
        for agent in agents:
            await agent.run("What is the weather?")

asyncio.run(main())
print(json.dumps(found))
"""


@pytest.mark.parametrize("model", ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"])
def test_nothing_is_loaded_between_the_first_answer_and_its_record(tmp_path: Path, model: str):
    with ProviderServer(SCRIPT, tmp_path / "ledger") as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/runs.db", model],
            env={**os.environ, **server.address.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert len(server.address.calls) == 4, "nobody else was asked"
    assert json.loads(done.stdout) == [{"modules": [], "schemas": 0}] * 4


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
def test_a_made_up_answer_is_decoded_and_leaves_no_trace(
    protocol: str, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(decoder_warmup, "_warmed_up", set())
    with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, "holdfast.agents"):
        decoder_warmup._decode_sample(protocol, stream)
    assert caplog.messages == []
    assert decoder_warmup._warmed_up == {(protocol, stream)}


async def _decoded(monkeypatch: pytest.MonkeyPatch, model: object) -> list[tuple[str, bool]]:
    decoded: list[tuple[str, bool]] = []
    monkeypatch.setattr(decoder_warmup, "_warmed_up", set())
    monkeypatch.setattr(decoder_warmup, "_decode_sample", lambda *key: decoded.append(key))
    await decoder_warmup.warm_up_decoder(model, stream=True)  # type: ignore[arg-type]
    return decoded


@pytest.mark.asyncio
async def test_what_a_model_is_made_of_is_found(monkeypatch: pytest.MonkeyPatch):
    chat = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(api_key="none"))
    assert await _decoded(monkeypatch, WrapperModel(chat)) == [("chat", True)]
    assert await _decoded(monkeypatch, FallbackModel(TestModel(), chat)) == [("chat", True)]
    assert await _decoded(monkeypatch, TestModel()) == []


def test_what_goes_wrong_here_fails_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(decoder_warmup, "_warmed_up", set())
    monkeypatch.setattr(decoder_warmup, "_SAMPLE_ANSWERS", {})
    with caplog.at_level(logging.DEBUG, "holdfast.agents"):
        decoder_warmup._decode_sample("chat", True)
    assert "could not be decoded" in caplog.text
