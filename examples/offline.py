"""Replaces the model when there is no key. Your own program needs none of this.

Each example uses a real model if there is one: the one given with ``--model provider:name``, else OpenAI's or
Anthropic's if ``OPENAI_API_KEY`` or ``ANTHROPIC_API_KEY`` is set. Otherwise, a scripted model answers after ``--pace``
seconds, so that there is time to kill the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

DEFAULT_PACE_S = 0.3
"""Default delay of a scripted model before each answer, in seconds."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The command line of an example, with the options that all of them have."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[_make_common_parser()]
    )


def model_for(script: Sequence[Any], name: str = "openai:gpt-4o-mini", *, word_delay: bool = False) -> Any:
    """The name of a real model, if there is one, or else a model that follows this script.

    ``name`` is the scripted model's name, which also determines its prices. With ``word_delay``, it also thinks before
    each word, a tenth as long.
    """
    real = _find_real_model()
    return real if real is not None else make_scripted_model(script, name, word_delay=word_delay)


def make_scripted_model(script: Sequence[Any], name: str = "openai:gpt-4o-mini", *, word_delay: bool = False) -> Any:
    """A model that answers by this script."""
    from holdfast.testing import ScriptedModel

    provider, _, model = name.partition(":")
    delay_s = _parse_common_options().pace / 10 if word_delay else 0.0
    return ScriptedModel([_with_delay(turn) for turn in script], name=model, provider=provider, word_delay=delay_s)


def is_offline() -> bool:
    """Whether the scripted models are used."""
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
    """The options of all examples. Agents are defined before an example parses its own."""
    return _make_common_parser().parse_known_args()[0]


def _make_common_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="ask this model in place of the scripted one")
    parser.add_argument(
        "--pace", type=float, default=DEFAULT_PACE_S, help="seconds that a scripted model thinks (%(default)s)"
    )
    return parser
