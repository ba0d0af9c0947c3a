"""Encrypted values: encrypted bytes with a prefix that distinguishes them from plain ones.

After the prefix comes the output of an ``Encryption``. No value that Holdfast records begins with the prefix: it is
neither JSON nor UTF-8. So values recorded before encryption was enabled stay readable among later ones, and a process
without a key still recognizes an encrypted value and can say so. Texts (a preview, a question) are encrypted as base64
after a prefix of their own, since they are stored where only text fits.

A large value is compressed before it is encrypted: afterwards that is impossible. (So its length reveals something
about its content, as the length of compressed data always does.)

A value that is already encrypted is not encrypted again, and an empty one stays empty. Nor is ``ERASED``, which takes
the place of a value that was erased.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib

from holdfast.codec.encryption import KEY_SOURCE_HINT, Encryption, read_key_id
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UndecryptableValue, ValueErased

ENCRYPTED_PREFIX = b"\xa7HF1"
"""The prefix of encrypted bytes."""
ENCRYPTED_TEXT_PREFIX = "sealed:HF1:"
"""The prefix of an encrypted text."""

ERASED = b'"<erased>" '
"""What is left of a value that was erased: JSON, so that people see the text. No codec writes a space at the end."""

_ENCRYPTED_TEXT_PATTERN = re.compile(re.escape(ENCRYPTED_TEXT_PREFIX) + r"[A-Za-z0-9_-]*=*")
_RAW, _ZLIB = b"\x00", b"\x01"
_MIN_COMPRESSED_BYTES = 1024
"""Smaller values are not compressed."""
_COMPRESSION_LEVEL = 1
"""Fast, like the compression of blobs."""


class ValueEncryptor:
    """Encrypts and decrypts values. May be used from any thread."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt a value."""
        if not data or data.startswith(ENCRYPTED_PREFIX) or data == ERASED:
            return data
        form = _RAW
        if len(data) > _MIN_COMPRESSED_BYTES:
            compressed = zlib.compress(data, _COMPRESSION_LEVEL)
            if len(compressed) < len(data):
                form, data = _ZLIB, compressed
        return ENCRYPTED_PREFIX + self._encryption.encrypt(form + data)

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt a value; one that is not encrypted stays as it is. Raises ``UndecryptableValue``."""
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
        """Encrypt a text."""
        if not text or text.startswith(ENCRYPTED_TEXT_PREFIX):
            return text
        encrypted = self.encrypt(text.encode("utf-8", "surrogatepass"))
        return ENCRYPTED_TEXT_PREFIX + base64.urlsafe_b64encode(encrypted).decode()

    def decrypt_text(self, text: str) -> str:
        """Decrypt a text; one that is not encrypted stays as it is. Raises ``UndecryptableValue``."""
        encrypted = _extract_encrypted(text)
        return text if encrypted is None else self.decrypt(encrypted).decode("utf-8", "surrogatepass")


def is_encrypted_value(data: bytes) -> bool:
    """Whether a value is encrypted."""
    return data.startswith(ENCRYPTED_PREFIX)


def describe_if_encrypted(data: bytes) -> str | None:
    """A text that replaces an encrypted value on display; ``None`` for one that is not encrypted."""
    return _describe_encrypted(data) if is_encrypted_value(data) else None


def check_decrypted(data: bytes, subject: str) -> None:
    """Raise ``UndecryptableValue`` if this value is still encrypted; ``subject`` names it in the message."""
    if not data.startswith(ENCRYPTED_PREFIX):
        return
    key_id = read_key_id(data[len(ENCRYPTED_PREFIX) :])
    key = f" with the encryption key {key_id}" if key_id else ""
    raise UndecryptableValue(
        f"{capitalize_first(subject)} is sealed{key}, and this process could not open it: it has not the key "
        f"(or the value was changed since; then its log says so). {KEY_SOURCE_HINT}.",
        key_id,
    )


def check_readable(data: bytes, subject: str) -> None:
    """Raise ``UndecryptableValue`` if this value is still encrypted, and ``ValueErased`` if it was erased."""
    if data == ERASED:
        raise ValueErased(f"{capitalize_first(subject)} was erased.")
    check_decrypted(data, subject)


def check_decrypted_text(text: str, subject: str) -> None:
    """The same for a text."""
    check_decrypted(_extract_encrypted(text) or b"", subject)


def mask_encrypted_text(text: str) -> str:
    """The text for display, with descriptions in place of its encrypted parts."""
    if ENCRYPTED_TEXT_PREFIX not in text:
        return text
    return _ENCRYPTED_TEXT_PATTERN.sub(
        lambda found: _describe_encrypted(_extract_encrypted(found[0]) or ENCRYPTED_PREFIX), text
    )


def _describe_encrypted(encrypted: bytes) -> str:
    key_id = read_key_id(encrypted[len(ENCRYPTED_PREFIX) :])
    return f"(sealed with key {key_id})" if key_id else "(sealed)"


def _extract_encrypted(text: str) -> bytes | None:
    """The encrypted bytes in a text; ``None`` if it is not encrypted."""
    if not text.startswith(ENCRYPTED_TEXT_PREFIX):
        return None
    try:
        encrypted = base64.urlsafe_b64decode(text[len(ENCRYPTED_TEXT_PREFIX) :])
    except (binascii.Error, ValueError):
        return None
    return encrypted if is_encrypted_value(encrypted) else None
