"""What must never be told: values of headers and of environments, wherever a server may repeat them."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_SECRET_CHARS = 6
"""Shorter ones would be found everywhere."""

_MAX_SECRETS = 200
"""The newest are kept: a token that is made for every request is of no use for long."""


class SecretRedactor:
    """Texts that are taken out of everything that is told."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: dict[str, None] = {}
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Further ones. Of ``Bearer abc`` the ``abc`` is one, too."""
        for value in values:
            for one in (value, *value.split()):
                if len(one) >= _MIN_SECRET_CHARS:
                    self._values.pop(one, None)
                    self._values[one] = None
        while len(self._values) > _MAX_SECRETS:
            del self._values[next(iter(self._values))]

    def redact(self, text: str) -> str:
        """The text without them."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
