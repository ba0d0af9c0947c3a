"""Sealed values: encrypted bytes in an envelope that tells them from plain ones.

The envelope is a mark and what an ``Encryption`` has made. No value that Holdfast records begins with the mark: it is
no JSON, and no UTF-8 either. So values that were recorded before encryption was switched on stay readable among those
that came after, and whoever has no key at all still sees that a value is sealed, and says so. Texts (a preview, a
question) are sealed as base64 behind a mark of their own, since they are kept where only text can be.

Before a value is encrypted, it is compressed if it is large: nothing that comes later can do that. (So its length tells
something of its content, as the length of what is compressed always does.)

What is sealed already is not sealed again, and what is empty stays so.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib

from holdfast.codec.encryption import WHERE_KEYS_COME_FROM, Encryption, key_id_in
from holdfast.codec.formatting import begin
from holdfast.errors import UndecryptableValue

MARK = b"\xa7HF1"
"""What sealed bytes begin with."""
TEXT_MARK = "sealed:HF1:"
"""What a sealed text begins with."""

_TEXTS = re.compile(re.escape(TEXT_MARK) + r"[A-Za-z0-9_-]*=*")
_RAW, _ZLIB = b"\x00", b"\x01"
_LARGE = 1024
"""Bytes above which compressing is worth the while."""
_LEVEL = 1
"""As for what stores compress themselves: quick."""


class Sealer:
    """Seals and opens values with an encryption. May be used from any thread."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    def seal(self, data: bytes) -> bytes:
        """The value, sealed."""
        if not data or data.startswith(MARK):
            return data
        form = _RAW
        if len(data) > _LARGE and len(small := zlib.compress(data, _LEVEL)) < len(data):
            form, data = _ZLIB, small
        return MARK + self._encryption.encrypt(form + data)

    def open(self, data: bytes) -> bytes:
        """The value in the envelope; one that was never sealed as it is. Raises ``UndecryptableValue``."""
        if not data.startswith(MARK):
            return data
        plain = self._encryption.decrypt(data[len(MARK) :])
        form, content = plain[:1], plain[1:]
        if form == _RAW:
            return content
        try:
            if form == _ZLIB:
                return zlib.decompress(content)
        except zlib.error:
            pass
        raise UndecryptableValue(
            "A sealed value was opened, and is not in a form that this version of Holdfast knows: a newer one has "
            "sealed it. Upgrade Holdfast.",
            key_id_in(data[len(MARK) :]),
        )

    def seal_text(self, text: str) -> str:
        """The text, sealed."""
        if not text or text.startswith(TEXT_MARK):
            return text
        sealed = self.seal(text.encode("utf-8", "surrogatepass"))
        return TEXT_MARK + base64.urlsafe_b64encode(sealed).decode()

    def open_text(self, text: str) -> str:
        """The text that was sealed; one that never was as it is. Raises ``UndecryptableValue``."""
        sealed = _in_text(text)
        return text if sealed is None else self.open(sealed).decode("utf-8", "surrogatepass")


def is_sealed(data: bytes) -> bool:
    """Whether this is a sealed value."""
    return data.startswith(MARK)


def shown_if_sealed(data: bytes) -> str | None:
    """What stands for a sealed value where it cannot be shown; ``None`` for one that is not sealed."""
    return _in_words(data) if data.startswith(MARK) else None


def refuse_sealed(data: bytes, what: str) -> None:
    """Raises ``UndecryptableValue`` if nobody has opened this value, which ``what`` names, on its way here."""
    if not data.startswith(MARK):
        return
    key_id = key_id_in(data[len(MARK) :])
    key = f" with the encryption key {key_id}" if key_id else ""
    raise UndecryptableValue(
        f"{begin(what)} is sealed{key}, and this process could not open it: it has not the key "
        f"(or the value was changed since; then its log says so). {WHERE_KEYS_COME_FROM}.",
        key_id,
    )


def refuse_sealed_text(text: str, what: str) -> None:
    """The same for a text."""
    if text.startswith(TEXT_MARK) and (sealed := _in_text(text)) is not None:
        refuse_sealed(sealed, what)


def shown_text(text: str) -> str:
    """The text for people: where something is sealed in it, that is said instead."""
    return _TEXTS.sub(_shown, text) if TEXT_MARK in text else text


def _shown(found: re.Match[str]) -> str:
    return _in_words(_in_text(found[0]) or MARK)


def _in_words(sealed: bytes) -> str:
    key_id = key_id_in(sealed[len(MARK) :])
    return f"(sealed with key {key_id})" if key_id else "(sealed)"


def _in_text(text: str) -> bytes | None:
    """The sealed bytes in a text; ``None`` if it only looks like one that has some."""
    if not text.startswith(TEXT_MARK):
        return None
    try:
        sealed = base64.urlsafe_b64decode(text[len(TEXT_MARK) :])
    except (binascii.Error, ValueError):
        return None
    return sealed if sealed.startswith(MARK) else None
