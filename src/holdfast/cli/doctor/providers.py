"""Which model providers can be called from here: by the installed packages, and the keys in the environment.

No package is imported, no provider is called, and a key itself is never shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple


class _Provider(NamedTuple):
    name: str
    """As in ``provider:model``. The extra that installs its package has the same name."""
    package: str
    key_variables: tuple[str, ...]
    """The variables for its key; one of them is enough. Empty if it authenticates in another way."""


_PROVIDERS = (
    _Provider("openai", "openai", ("OPENAI_API_KEY",)),
    _Provider("anthropic", "anthropic", ("ANTHROPIC_API_KEY",)),
    _Provider("google", "google.genai", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    _Provider("mistral", "mistralai", ("MISTRAL_API_KEY",)),
    _Provider("groq", "groq", ("GROQ_API_KEY",)),
    _Provider("bedrock", "boto3", ()),
    _Provider("cohere", "cohere", ("CO_API_KEY",)),
    _Provider("huggingface", "huggingface_hub", ("HF_TOKEN",)),
)


def list_installed_providers() -> list[str]:
    """Providers whose package is installed, with the state of their keys: ``openai (OPENAI_API_KEY is set)``."""
    return [f"{one.name}{_format_key_status(one.key_variables)}" for one in _PROVIDERS if _is_installed(one.package)]


def get_mcp_version() -> str | None:
    """The version of the package for MCP servers, if it is installed."""
    return version("mcp") if _is_installed("mcp") else None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def _format_key_status(names: Sequence[str]) -> str:
    if not names:
        return ""
    found = next((name for name in names if os.environ.get(name)), None)
    return f" ({found} is set)" if found else f" (no {names[0]} here)"
