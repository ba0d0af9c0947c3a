"""Removes secrets, the values of headers and environment variables, from text that a server may repeat them in."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_SECRET_CHARS = 6
"""Shorter values would match everywhere."""

_MAX_SECRETS = 200
"""The newest are kept: a token that is made for every request is valid only for a short time."""


class SecretRedactor:
    """Replaces secrets in texts."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: dict[str, None] = {}
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Add secrets. In ``Bearer abc``, ``abc`` is a secret, too."""
        for value in values:
            for secret in (value, *value.split()):
                if len(secret) >= _MIN_SECRET_CHARS:
                    self._values.pop(secret, None)
                    self._values[secret] = None
        while len(self._values) > _MAX_SECRETS:
            del self._values[next(iter(self._values))]

    def redact(self, text: str) -> str:
        """The text without the secrets."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
