"""Model names are resolved to models, and the errors for unknown names help."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel

from holdfast.agents.models import model_resolution
from holdfast.agents.models.model_resolution import (
    check_model,
    disable_sdk_retries,
    get_model,
    get_model_name,
    load_model,
    model_override,
)
from holdfast.errors import DefinitionError, UsageError

KNOWN_NAMES = (
    "openai:gpt-4o", "openai:gpt-4o-mini", "openai:gpt-5", "gateway/openai:gpt-4o", "anthropic:claude-sonnet-5",
    "anthropic:claude-opus-5", "gateway/anthropic:claude-sonnet-5", "moonshotai:kimi-latest",
    "groq:openai/gpt-oss-120b", "cerebras:openai/gpt-oss-120b",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the model library knows are others in each of its releases."""
    monkeypatch.setattr("pydantic_ai.models.known_model_names", lambda: KNOWN_NAMES)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "ANTHROPIC", "MOONSHOTAI"):
        monkeypatch.setenv(f"{provider}_API_KEY", "sk-none")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("openai:gpt-4o", "openai:gpt-4o"),
        ("gpt-4o", "openai:gpt-4o"),
        ("gpt-97-turbo", "openai:gpt-97-turbo"),
        ("o3", "openai:o3"),
        ("o4-mini", "openai:o4-mini"),
        ("claude-sonnet-4-20250514", "anthropic:claude-sonnet-4-20250514"),
        ("gemini-2.5-pro", "google:gemini-2.5-pro"),
        ("mistral-large-latest", "mistral:mistral-large-latest"),
        ("grok-4", "xai:grok-4"),
        ("test", "test"),
        ("orca-7", "orca-7"),
    ],
)
def test_a_bare_name_is_the_makers(name: str, full: str):
    assert get_model_name(name) == full


def test_a_model_object_is_named_by_its_id():
    assert get_model_name(TestModel()) == "test:test"


def test_naming_and_checking_imports_no_model_library():
    code = (
        "import sys; from holdfast.agents.models.model_resolution import get_model_name, check_model\n"
        "check_model('gpt-4o', 'here'); assert get_model_name('gpt-4o') == 'openai:gpt-4o'\n"
        "import holdfast.agents.models.model_call\n"
        "assert 'pydantic_ai' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.asyncio
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("openai:gpt-4o", "openai:gpt-4o"),
        ("o3", "openai:o3"),
        ("claude-sonnet-4-20250514", "anthropic:claude-sonnet-4-20250514"),
        ("kimi-latest", "moonshotai:kimi-latest"),
    ],
)
async def test_a_name_becomes_a_model(name: str, model_id: str):
    assert get_model(name).model_id == model_id


@pytest.mark.asyncio
async def test_the_test_model_has_no_provider():
    assert isinstance(get_model("test"), TestModel)


@pytest.mark.asyncio
async def test_a_model_object_is_used_as_it_is():
    model = TestModel()
    assert get_model(model) is model


@pytest.mark.usefixtures("keys")
def test_a_model_is_made_once_for_each_loop_and_closed_with_it():
    models: list[Any] = []
    loops: list[Any] = []

    async def ask_twice() -> None:
        await asyncio.gather(load_model("openai:gpt-4o"), load_model("openai:gpt-4o"))
        models.extend([get_model("openai:gpt-4o"), get_model("openai:gpt-4o")])
        assert not models[-1].client.is_closed()
        loops.append(weakref.ref(asyncio.get_running_loop()))

    asyncio.run(ask_twice())
    asyncio.run(ask_twice())
    assert models[0] is models[1]
    assert models[2] is models[3]
    assert models[0] is not models[2]
    assert all(model.client.is_closed() for model in models)
    models.clear()
    gc.collect()
    assert [loop() for loop in loops] == [None, None], "a loop that has ended is not kept alive"


@pytest.mark.asyncio
async def test_loading_ignores_an_unknown_model():
    await load_model("nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        get_model("nonsense")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt4o", "There is no model 'gpt4o' that is known here. Write `provider:name`; .* 'openai:gpt-4o'"),
        ("opnai:gpt-4o", "There is no model 'opnai:gpt-4o' .* 'openai:gpt-4o'"),
        ("claud-sonnet-5", "'anthropic:claude-sonnet-5'"),
        ("zzz", "Write `provider:name`, as in 'openai:gpt-4o'"),
        ("openai/gpt-oss-120b", "Several providers .* 'groq:openai/gpt-oss-120b'"),
    ],
)
async def test_the_error_for_an_unknown_model_suggests_similar_names(name: str, words: str):
    with pytest.raises(UsageError, match=words):
        get_model(name)


@pytest.mark.asyncio
async def test_the_error_for_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match=r"Model 'gpt-4o' cannot be asked.*OPENAI_API_KEY") as caught:
        get_model("gpt-4o")
    assert "Agent('test')" not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("words", "command"),
    [
        ('`pip install "pydantic-ai-slim[google]"`', "pip install 'holdfast-agents[google]'"),
        ('`pip install "pydantic-ai-slim[xai]"`', "pip install 'pydantic-ai-slim[xai]'"),
    ],
)
async def test_the_error_for_a_missing_package_names_the_extra(
    words: str, command: str, monkeypatch: pytest.MonkeyPatch
):
    def missing(name: str, provider_factory: Any) -> Model:
        raise ImportError(f"Please install the package, {words}")

    monkeypatch.setattr("pydantic_ai.models.infer_model", missing)
    with pytest.raises(UsageError, match="needs a package that is not installed") as caught:
        get_model("openai:gpt-4o")
    assert command in str(caught.value)


def test_every_extra_in_an_error_exists():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(project["project"]["optional-dependencies"]) >= model_resolution.PROVIDER_EXTRAS


@pytest.mark.parametrize("model", ["", " gpt-4o", "openai:", ":gpt", 3, None, TestModel, object()])
def test_an_invalid_model_is_refused_when_it_is_declared(model: object):
    with pytest.raises(DefinitionError, match=r"Agent 'a': .*'openai:gpt-4o'"):
        check_model(model, "Agent 'a'")


def test_models_and_names_pass_the_check():
    check_model("gpt-4o", "here")
    check_model(TestModel(), "here")


@pytest.mark.asyncio
async def test_a_test_replaces_all_models_by_its_own():
    model = TestModel()
    token = model_override.set(model)
    try:
        assert get_model("openai:gpt-4o") is model
        assert get_model(FunctionModel(lambda messages, info: None)) is model  # type: ignore[arg-type, return-value]
    finally:
        model_override.reset(token)


@pytest.mark.asyncio
async def test_models_are_traced_when_all_agents_are():
    model = TestModel()
    Agent.instrument_all()
    try:
        traced = get_model(model)
        assert isinstance(traced, InstrumentedModel)
        assert traced.wrapped is model
    finally:
        Agent.instrument_all(False)
    assert get_model(model) is model


def test_the_sdks_make_one_attempt():
    assert disable_sdk_retries(TestModel(), {"temperature": 0.5}) == {"temperature": 0.5, "max_retries": 0}
    assert disable_sdk_retries(TestModel(), None) == {"max_retries": 0}
    assert disable_sdk_retries(TestModel(), {"max_retries": 2}) == {"max_retries": 2}


def test_the_retries_of_an_unsupported_sdk_are_not_set():
    class Deaf(TestModel):
        unsupported_settings = frozenset({"max_retries"})

    assert disable_sdk_retries(Deaf(), None) == {}
    assert disable_sdk_retries(WrapperModel(Deaf()), None) == {}


def test_the_client_of_bedrock_makes_one_attempt(monkeypatch: pytest.MonkeyPatch):
    made: dict[str, Any] = {}
    stand_ins: dict[str, Any] = {
        "boto3": SimpleNamespace(
            client=lambda service, config: made.update(service=service, config=config) or "client"
        ),
        "botocore.config": SimpleNamespace(Config=lambda **options: options),
        "pydantic_ai.providers.bedrock": SimpleNamespace(BedrockProvider=lambda bedrock_client: bedrock_client),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("AWS_READ_TIMEOUT", "17")
    assert model_resolution._create_provider("bedrock") == "client"
    assert made["service"] == "bedrock-runtime"
    assert made["config"] == {"retries": {"total_max_attempts": 1}, "read_timeout": 17.0, "connect_timeout": 60.0}
