"""Mocks: what a step returns, calls, or raises in a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.errors import UsageError

MISSING: Any = object()


class MockCall(NamedTuple):
    """The arguments of one call of a mocked step."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Mock:
    """Replaces a step's function. ``calls`` has one entry for each attempt."""

    def __init__(
        self, name: str, return_value: Any = MISSING, side_effect: Any = MISSING, raises: Any = MISSING
    ) -> None:
        given = [value for value in (return_value, side_effect, raises) if value is not MISSING]
        if len(given) != 1:
            raise UsageError(f"mock {name!r}: give one of return_value=, side_effect= and raises=")
        self.name = name
        self.calls: list[MockCall] = []
        self._action = self._build_action(return_value, side_effect, raises)

    def _build_action(self, return_value: Any, side_effect: Any, raises: Any) -> Callable[..., Any]:
        if return_value is not MISSING:
            return lambda *_, **__: return_value
        if raises is not MISSING:
            if not _is_exception(raises):
                raise UsageError(f"mock {self.name!r}: raises= is an exception, not {raises!r}")
            return lambda *_, **__: _raise(raises)
        if callable(side_effect) and not _is_exception(side_effect):
            return side_effect
        if _is_exception(side_effect):
            return lambda *_, **__: _raise(side_effect)
        if isinstance(side_effect, Iterable) and not isinstance(side_effect, str | bytes):
            return _OutcomeSequence(self.name, list(side_effect))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise UsageError(
            f"mock {self.name!r}: side_effect= is a function, an exception, or an iterable of outcomes, not "
            f"{side_effect!r}"
        )

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call, and return the next outcome."""
        self.calls.append(MockCall(args, kwargs))
        outcome = self._action(*args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome

    def rewind(self) -> None:
        """Start again with the first outcome, for the next trial."""
        if isinstance(self._action, _OutcomeSequence):
            self._action.index = 0


class _OutcomeSequence:
    def __init__(self, name: str, outcomes: list[Any]) -> None:
        self._name = name
        self._outcomes = outcomes
        self.index = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self.index == len(self._outcomes):
            times = "once" if self.index == 1 else f"{self.index} times"
            raise AssertionError(
                f"mock {self._name!r} was called more than {times}, and has no more outcomes (a retry is a call, too, "
                f"and so is a step that runs again after a crash)"
            )
        outcome = self._outcomes[self.index]
        self.index += 1
        return _raise(outcome) if _is_exception(outcome) else outcome


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))


def _raise(error: Any) -> Any:
    raise error
