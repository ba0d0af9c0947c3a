"""What stands in for a model when there is no key: nothing of this is needed in a program of your own.

Each example asks a real model if there is one: the one that ``--model provider:name`` names, else OpenAI's or
Anthropic's if ``OPENAI_API_KEY`` or ``ANTHROPIC_API_KEY`` is set. Without these, a model answers by a script, and
thinks for ``--pace`` seconds before each answer, so that there is time to kill the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

DEFAULT_PACE_S = 0.3
"""Seconds that a scripted model thinks, unless told otherwise."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The command line of an example, with the options that all of them have."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[_make_common_parser()]
    )


def model_for(script: Sequence[Any], name: str = "openai:gpt-4o-mini") -> Any:
    """A real model's name, if there is one to be asked; else a model that answers by this script.

    ``name`` tells under which name, and at which prices, the scripted model answers.
    """
    real = _find_real_model()
    return real if real is not None else make_scripted_model(script, name)


def make_scripted_model(script: Sequence[Any], name: str = "openai:gpt-4o-mini") -> Any:
    """A model that answers by this script."""
    from holdfast.testing import ScriptedModel

    provider, _, model = name.partition(":")
    return ScriptedModel([_with_delay(turn) for turn in script], name=model, provider=provider)


def is_offline() -> bool:
    """Whether the scripted models are asked."""
    return _find_real_model() is None


def _with_delay(turn: Any) -> Any:
    async def think(messages: Any) -> Any:
        await asyncio.sleep(_parse_common_options().pace)
        return turn(messages) if callable(turn) else turn

    return think


def _find_real_model() -> str | None:
    if _parse_common_options().model:
        return _parse_common_options().model
    if os.environ.get("OPENAI_API_KEY"):
        return "openai:gpt-4o-mini"
    if os.environ.get("ANTHROPIC_API_KEY"):
        return "anthropic:claude-haiku-4-5"
    return None


def _parse_common_options() -> argparse.MemoryNamespace:
    """The options as they stand on the command line: agents are defined before an example reads its own."""
    return _make_common_parser().parse_known_args()[0]


def _make_common_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="ask this model in place of the scripted one")
    parser.add_argument(
        "--pace", type=float, default=DEFAULT_PACE_S, help="seconds that a scripted model thinks (%(default)s)"
    )
    return parser
