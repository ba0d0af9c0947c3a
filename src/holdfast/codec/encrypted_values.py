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

from holdfast.codec.encryption import KEY_SOURCE_HINT, Encryption, read_key_id
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UndecryptableValue

ENCRYPTED_PREFIX = b"\xa7HF1"
"""What sealed bytes begin with."""
ENCRYPTED_TEXT_PREFIX = "sealed:HF1:"
"""What a sealed text begins with."""

_ENCRYPTED_TEXT_PATTERN = re.compile(re.escape(ENCRYPTED_TEXT_PREFIX) + r"[A-Za-z0-9_-]*=*")
_RAW, _ZLIB = b"\x00", b"\x01"
_MIN_COMPRESSED_BYTES = 1024
"""Bytes above which compressing is worth the while."""
_COMPRESSION_LEVEL = 1
"""As for what stores compress themselves: quick."""


class ValueEncryptor:
    """Seals and opens values with an encryption. May be used from any thread."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    def encrypt(self, data: bytes) -> bytes:
        """The value, sealed."""
        if not data or data.startswith(ENCRYPTED_PREFIX):
            return data
        form = _RAW
        if len(data) > _MIN_COMPRESSED_BYTES and len(small := zlib.compress(data, _COMPRESSION_LEVEL)) < len(data):
            form, data = _ZLIB, small
        return ENCRYPTED_PREFIX + self._encryption.encrypt(form + data)

    def decrypt(self, data: bytes) -> bytes:
        """The value in the envelope; one that was never sealed as it is. Raises ``UndecryptableValue``."""
        if not data.startswith(ENCRYPTED_PREFIX):
            return data
        plain = self._encryption.decrypt(data[len(ENCRYPTED_PREFIX) :])
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
            read_key_id(data[len(ENCRYPTED_PREFIX) :]),
        )

    def encrypt_text(self, text: str) -> str:
        """The text, sealed."""
        if not text or text.startswith(ENCRYPTED_TEXT_PREFIX):
            return text
        sealed = self.encrypt(text.encode("utf-8", "surrogatepass"))
        return ENCRYPTED_TEXT_PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def decrypt_text(self, text: str) -> str:
        """The text that was sealed; one that never was as it is. Raises ``UndecryptableValue``."""
        sealed = _extract_encrypted(text)
        return text if sealed is None else self.decrypt(sealed).decode("utf-8", "surrogatepass")


def is_encrypted_value(data: bytes) -> bool:
    """Whether this is a sealed value."""
    return data.startswith(ENCRYPTED_PREFIX)


def describe_if_encrypted(data: bytes) -> str | None:
    """What stands for a sealed value where it cannot be shown; ``None`` for one that is not sealed."""
    return _describe_encrypted(data) if data.startswith(ENCRYPTED_PREFIX) else None


def check_decrypted(data: bytes, subject: str) -> None:
    """Raises ``UndecryptableValue`` if nobody has opened this value, which ``subject`` names, on its way here."""
    if not data.startswith(ENCRYPTED_PREFIX):
        return
    key_id = read_key_id(data[len(ENCRYPTED_PREFIX) :])
    key = f" with the encryption key {key_id}" if key_id else ""
    raise UndecryptableValue(
        f"{capitalize_first(subject)} is sealed{key}, and this process could not open it: it has not the key "
        f"(or the value was changed since; then its log says so). {KEY_SOURCE_HINT}.",
        key_id,
    )


def check_decrypted_text(text: str, subject: str) -> None:
    """The same for a text."""
    if text.startswith(ENCRYPTED_TEXT_PREFIX) and (sealed := _extract_encrypted(text)) is not None:
        check_decrypted(sealed, subject)


def mask_encrypted_text(text: str) -> str:
    """The text for people: where something is sealed in it, that is said instead."""
    return _ENCRYPTED_TEXT_PATTERN.sub(_describe_match, text) if ENCRYPTED_TEXT_PREFIX in text else text


def _describe_match(found: re.Match[str]) -> str:
    return _describe_encrypted(_extract_encrypted(found[0]) or ENCRYPTED_PREFIX)


def _describe_encrypted(encrypted: bytes) -> str:
    key_id = read_key_id(encrypted[len(ENCRYPTED_PREFIX) :])
    return f"(sealed with key {key_id})" if key_id else "(sealed)"


def _extract_encrypted(text: str) -> bytes | None:
    """The sealed bytes in a text; ``None`` if it only looks like one that has some."""
    if not text.startswith(ENCRYPTED_TEXT_PREFIX):
        return None
    try:
        sealed = base64.urlsafe_b64decode(text[len(ENCRYPTED_TEXT_PREFIX) :])
    except (binascii.Error, ValueError):
        return None
    return sealed if sealed.startswith(ENCRYPTED_PREFIX) else None
