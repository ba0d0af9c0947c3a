"""Resolves model names to models.

``provider:name`` is a model of that provider; a known bare name (``gpt-4o``, ``claude-sonnet-5``) is a model of its
maker. A model object of the library is used as it is: for an endpoint with its own base URL, a test model, or a
function model. A model is made on first use, once for each event loop, because its connections belong to a loop; they
are closed when the loop shuts down.

The retries of the providers' own SDKs are off (``disable_sdk_retries``): there is one retry layer, the engine's.
Bedrock's client is made without them. The retries of Hugging Face and xAI cannot be turned off, nor those of a Bedrock
client that you have made yourself: give it ``Config(retries={"total_max_attempts": 1})``.

A test replaces all models by its own with ``model_override``.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from holdfast.errors import DefinitionError, UsageError

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings

model_override: contextvars.ContextVar[Model | None] = contextvars.ContextVar("holdfast_model", default=None)
"""The model that replaces every other one in a test."""


class PriorCalls(NamedTuple):
    """How many questions of a run's other ``@llm_step``s came before the current one."""

    model: str | Model
    model_count: int
    """To the same model."""
    run_count: int
    """To any model."""


prior_calls: contextvars.ContextVar[PriorCalls | None] = contextvars.ContextVar("holdfast_earlier", default=None)
"""For a scripted model: each ``@llm_step`` is a separate conversation, and they share one script."""

PROVIDER_EXTRAS = frozenset({"openai", "anthropic", "google", "mistral", "groq", "bedrock", "cohere", "huggingface"})
"""The extras of Holdfast that install a provider's package."""

_PROVIDER_PATTERNS = (
    (re.compile(r"gpt-|chatgpt-|o\d+(-|$)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-"), "google"),
    (re.compile(r"(mistral|ministral|magistral|codestral|pixtral|devstral)-"), "mistral"),
    (re.compile(r"grok-"), "xai"),
    (re.compile(r"deepseek-"), "deepseek"),
    (re.compile(r"command-"), "cohere"),
)
"""The maker of a model with a bare name, also of models that are newer than the library."""


_LIBRARY_MODULES = ("messages", "models", "tools", "usage")
"""The modules of the model library that every agent needs. They take more than a second to import."""


def load_library() -> None:
    """Import the model library. Called in a thread, before an agent's first run begins."""
    for name in _LIBRARY_MODULES:
        import_module(f"pydantic_ai.{name}")


class _LoopModels:
    """The models of one event loop, by name or identity."""

    def __init__(self) -> None:
        self.models: dict[str | int, Model] = {}
        self._opened: list[Model] = []
        self._closer: AsyncGenerator[None] | None = None

    async def open(self, model: Model) -> None:
        """Open a model's connections, and close them when the loop shuts down."""
        if self._closer is None:
            # A loop that shuts down closes its async generators, and these may still await.
            self._closer = self._close_on_shutdown()
            await anext(self._closer)
        self._opened.append(model)
        await model.__aenter__()

    async def _close_on_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.models.clear()
            opened, self._opened, self._closer = self._opened, [], None
            for model in opened:
                await model.__aexit__(None, None, None)


_models_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopModels] = WeakKeyDictionary()


def _get_loop_models() -> _LoopModels:
    loop = asyncio.get_running_loop()
    found = _models_by_loop.get(loop)
    if found is None:
        found = _models_by_loop[loop] = _LoopModels()
    return found


def get_model_name(model: str | Model) -> str:
    """The model's name as users write it: ``openai:gpt-4o``. Imports nothing."""
    if isinstance(model, str):
        if ":" in model:
            return model
        maker = next((maker for pattern, maker in _PROVIDER_PATTERNS if pattern.match(model)), None)
        return model if maker is None else f"{maker}:{model}"
    return str(getattr(model, "model_id", None) or type(model).__name__)


def unwrap_models(model: Any) -> list[Any]:
    """The providers' models inside a model: the one that it wraps, or all that it falls back to."""
    while (wrapped := getattr(model, "wrapped", None)) is not None:
        model = wrapped
    several: Any = getattr(model, "models", None)
    if not isinstance(several, list | tuple):
        return [model]
    return [inner for item in cast("list[Any]", several) for inner in unwrap_models(item)]


def check_model(model: object, subject: str) -> None:
    """Check a declared model without importing anything: it is a non-empty name, or a model object."""
    if isinstance(model, str):
        if not model or model != model.strip() or model.endswith(":") or model.startswith(":"):
            raise DefinitionError(f"{subject}: {model!r} is no name of a model. Write it as 'openai:gpt-4o'.")
    elif not callable(getattr(model, "request", None)) or isinstance(model, type):
        raise DefinitionError(
            f"{subject}: a model is a name such as 'openai:gpt-4o', or a model object of pydantic-ai, not {model!r}"
        )


def validate_models(model: str | Model, fallback: object, subject: str) -> tuple[str | Model, ...]:
    """A model and its fallbacks, one or several, in the order of their use."""
    others = cast("Sequence[str | Model]", fallback if isinstance(fallback, list | tuple) else (fallback,))
    for candidate in (model, *others):
        check_model(candidate, subject)
    return (model, *others)


def get_model(model: str | Model) -> Model:
    """The model for the running event loop, made if necessary. Raises ``UsageError`` for an unknown name."""
    override = model_override.get()
    if override is not None:
        return _instrument(override)
    known = _get_loop_models().models
    key = model if isinstance(model, str) else id(model)
    found = known.get(key)
    if found is None:
        found = known[key] = _create_model(model) if isinstance(model, str) else attach_to_loop(model)
    return _instrument(found)


async def load_model(model: str | Model) -> None:
    """Make the model of a name, if necessary, and open its connections.

    The provider's package is imported in a thread, because that takes a second or more.
    """
    loop_models = _get_loop_models()
    if not isinstance(model, str) or model_override.get() is not None or model in loop_models.models:
        return
    try:
        await asyncio.to_thread(_create_model, model)
        if model not in loop_models.models:  # another task may have been faster
            loop_models.models[model] = created = _create_model(model)
            await loop_models.open(created)
    except UsageError:
        pass  # `get_model` will report it


def disable_sdk_retries(model: Model, settings: Mapping[str, Any] | None) -> ModelSettings:
    """The settings of a request for which the provider's SDK makes one attempt."""
    merged: dict[str, Any] = {**(settings or {})}
    inner: Any = model
    while inner is not None:
        if "max_retries" in getattr(inner, "unsupported_settings", ()):
            break  # the library would warn that it ignores the setting
        inner = getattr(inner, "wrapped", None)
    else:
        merged.setdefault("max_retries", 0)
    return cast("ModelSettings", merged)


def _create_model(name: str) -> Model:
    from pydantic_ai.models import infer_model

    full = _resolve_name(name)
    try:
        return infer_model(full, _create_provider)
    except ImportError as error:
        raise UsageError(
            f"Model {name!r} needs a package that is not installed: {_format_install_hint(error)}."
        ) from error
    except Exception as error:
        # Mostly a missing key: the library names the environment variable, and then advertises its own agents.
        words = re.sub(r" To try Pydantic AI .*", "", str(error), flags=re.DOTALL)
        raise UsageError(f"Model {name!r} cannot be asked. {words.rstrip('.')}.") from error


def _create_provider(name: str) -> Provider[Any]:
    from pydantic_ai.providers import infer_provider

    if name != "bedrock":
        return infer_provider(name)
    from pydantic_ai.providers.bedrock import BedrockProvider  # first: it says what to install

    boto3, config = cast(Any, import_module("boto3")), cast(Any, import_module("botocore.config"))
    one_attempt = config.Config(
        retries={"total_max_attempts": 1},
        # The library's own defaults
        read_timeout=float(os.environ.get("AWS_READ_TIMEOUT", 300)),
        connect_timeout=float(os.environ.get("AWS_CONNECT_TIMEOUT", 60)),
    )
    return BedrockProvider(bedrock_client=boto3.client("bedrock-runtime", config=one_attempt))


def _resolve_name(name: str) -> str:
    from pydantic_ai.models import known_model_names
    from pydantic_ai.providers import infer_provider_class

    if name == "test":
        return name
    provider, colon, _ = name.partition(":")
    if colon:
        try:
            infer_provider_class(provider)
        except ImportError:
            return name  # the provider is known, but its package is missing: creating the model reports that
        except ValueError:
            pass
        else:
            return name
    elif (full := get_model_name(name)) != name:
        return full
    known = known_model_names()
    matching = [full for full in known if full.partition(":")[2] == name and not full.startswith("gateway/")]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"Several providers have a model {name!r}. Say whose you mean: {_format_choices(matching)}.")
    raise UsageError(
        f"There is no model {name!r} that is known here. Write `provider:name`{_suggest_names(name, known)}."
    )


def _suggest_names(name: str, known: tuple[str, ...]) -> str:
    by_bare_name = {full.partition(":")[2]: full for full in known if not full.startswith("gateway/")}
    by_bare_name |= {bare: full for bare in by_bare_name if (full := get_model_name(bare)) in known}
    close = get_close_matches(name.rpartition(":")[2], by_bare_name, n=3, cutoff=0.6)
    by_name = [by_bare_name[bare] for bare in close]
    near = list(dict.fromkeys([*by_name, *get_close_matches(name, known, n=3, cutoff=0.75)]))[:3]
    return f"; the nearest known names are {_format_choices(near)}" if near else ", as in 'openai:gpt-4o'"


def _format_choices(names: list[str]) -> str:
    words = [repr(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _format_install_hint(error: ImportError) -> str:
    named = re.search(r"pydantic-ai-slim\[([\w-]+)\]", str(error))
    if named is None:
        return str(error)
    distribution = "holdfast-agents" if named[1] in PROVIDER_EXTRAS else "pydantic-ai-slim"
    return f"`pip install '{distribution}[{named[1]}]'`"


def attach_to_loop(model: Model) -> Model:
    """The model with new connections, if it was used on another loop before. The old ones stay there."""
    refresh = getattr(model, "_refresh_http_client", None)
    if callable(refresh):
        refresh()
    return model


def _instrument(model: Model) -> Model:
    """The model with tracing, if ``Agent.instrument_all()`` or logfire has turned it on."""
    from pydantic_ai import Agent

    settings = getattr(Agent, "_instrument_default", False)
    if not settings:
        return model
    from pydantic_ai.models.instrumented import instrument_model

    return instrument_model(model, settings)
