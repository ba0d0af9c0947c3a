"""Hints for keyword arguments of other frameworks: the error names the right one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

from holdfast.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")


def reject_unknown_keywords(subject: str, **hints: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Reject unknown keyword arguments of a function with a ``DefinitionError`` that names the right one.

    Args:
        subject: the function as users write it, such as ``@step``.
        hints: what to write instead, by argument of another framework.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        known = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}

        @functools.wraps(function)
        def hinted(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs.keys() <= known:
                raise _make_unknown_keyword_error(subject, min(kwargs.keys() - known), known, hints)
            return function(*args, **kwargs)

        return hinted

    return decorate


def _make_unknown_keyword_error(subject: str, keyword: str, known: set[str], hints: dict[str, str]) -> DefinitionError:
    hint = hints.get(keyword)
    if hint is None:
        close = get_close_matches(keyword, sorted(known), n=1)
        hint = f"did you mean {close[0]}=?" if close else f"it takes {', '.join(sorted(known - {'self'}))}"
    return DefinitionError(f"{subject} has no argument {keyword}=: {hint}")
