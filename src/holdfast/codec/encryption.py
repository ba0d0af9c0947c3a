"""Encryption of recorded values: the interface, and a ready implementation.

``Encryption`` encrypts and decrypts bytes. It knows nothing of runs and stores: the journal engine's stores apply it
through ``stores.encrypted``, another engine in its own way. Users with keys elsewhere (a key service, a hardware
module) write their own subclass.

``AesEncryption`` is AES-256-GCM. Its output is a header of five bytes (the version of the format, the id of the key), a
random nonce of 96 bits, and the encrypted bytes with their tag. The header is authenticated: a changed key id is
noticed like any other change. The id of a key is derived from it, and reveals nothing about it.

Nonces are random, so a key must not encrypt forever: after four billion values (2 to the power of 32) the chance that
two have the same nonce is no longer negligible. Put a new key in front of the others long before that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from holdfast.errors import UndecryptableValue, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS_VARIABLE = "HOLDFAST_ENCRYPTION_KEYS"
"""The environment variable with the keys: base64, separated by commas, the one that encrypts first."""
KEY_SOURCE_HINT = (
    f"Keys come from the `encryption` argument of Runtime and Client, else from {KEYS_VARIABLE}: add the key there, "
    f"also one that writes no more"
)

_KEY_SIZE = 32
_KEY_ID_SIZE = 4
_NONCE_SIZE = 12
_TAG_SIZE = 16
_VERSION = b"\x01"
_HEADER_SIZE = len(_VERSION) + _KEY_ID_SIZE


class Encryption(ABC):
    """Encrypts and decrypts bytes. Both methods are called from any thread, several at a time, and must not block for
    long.

    Raise any exception of your own, such as a ``ConnectionError``, if the encryption does not work at the moment.
    Holdfast treats that like a database that it cannot reach: runs keep their place, and it tries again.
    """

    @abstractmethod
    def encrypt(self, plain: bytes) -> bytes:
        """Encrypt bytes. Without the key, the result reveals only their length.

        Raise ``UnrecordableValue`` for a value that can never be encrypted: only its own run fails.
        """

    @abstractmethod
    def decrypt(self, encrypted: bytes) -> bytes:
        """Decrypt the result of ``encrypt``.

        Raise ``UndecryptableValue`` if the key is missing or the bytes were changed.
        """


class AesEncryption(Encryption):
    """AES-256-GCM. The first key encrypts, all of them decrypt, so keys can be rotated one by one.

    Args:
        keys: each 32 random bytes, or their base64 text, as ``AesEncryption.new_key()`` and ``holdfast encryption-key``
            make it. Keep them where you keep passwords: what was sealed with a key that is lost is lost.
    """

    def __init__(self, *keys: bytes | str) -> None:
        if not keys:
            raise UsageError("AesEncryption needs a key at least: make one with `holdfast encryption-key`")
        aead = _import_aesgcm()
        by_id: dict[bytes, bytes] = {}
        for number, given in enumerate(keys, 1):
            key = _validate_key(given, f"key {number} of {len(keys)}")
            if by_id.setdefault(_derive_key_id(key), key) != key:
                raise UsageError(f"key {number} of {len(keys)} has the same id as one before it: make another one")
        self._keys: dict[bytes, AESGCM] = {key_id: aead(key) for key_id, key in by_id.items()}
        self._writing_key_id = next(iter(self._keys))

    @classmethod
    def from_environment(cls) -> AesEncryption | None:
        """An encryption with the keys in ``HOLDFAST_ENCRYPTION_KEYS``, if that is set. Raises ``UsageError``."""
        text = os.environ.get(KEYS_VARIABLE, "").strip()
        if not text:
            return None
        parts = [part.strip() for part in text.split(",")]
        return cls(
            *(_validate_key(part, f"{KEYS_VARIABLE}: key {at} of {len(parts)}") for at, part in enumerate(parts, 1))
        )

    @staticmethod
    def new_key() -> str:
        """A new key, in base64."""
        return base64.b64encode(secrets.token_bytes(_KEY_SIZE)).decode()

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys, the one that encrypts first. They reveal nothing about the keys."""
        return tuple(key.hex() for key in self._keys)

    def encrypt(self, plain: bytes) -> bytes:
        """Encrypt with the first key."""
        header, nonce = _VERSION + self._writing_key_id, secrets.token_bytes(_NONCE_SIZE)
        return header + nonce + self._keys[self._writing_key_id].encrypt(nonce, plain, header)

    def decrypt(self, encrypted: bytes) -> bytes:
        """Decrypt bytes that were encrypted with one of the keys. Raises ``UndecryptableValue``."""
        header, nonce = encrypted[:_HEADER_SIZE], encrypted[_HEADER_SIZE : _HEADER_SIZE + _NONCE_SIZE]
        if header[:1] != _VERSION or len(encrypted) < _HEADER_SIZE + _NONCE_SIZE + _TAG_SIZE:
            raise UndecryptableValue(
                "A sealed value is not in the format of AesEncryption: it was cut off, or another Encryption, or a "
                "newer Holdfast, has sealed it. Use that one."
            )
        key_id = header[1:]
        key = self._keys.get(key_id)
        if key is None:
            raise UndecryptableValue(
                f"A value was sealed with the encryption key {key_id.hex()}, which is not at hand (there "
                f"{_format_key_ids(self.key_ids)}). {KEY_SOURCE_HINT}.",
                key_id.hex(),
            )
        from cryptography.exceptions import InvalidTag

        try:
            return key.decrypt(nonce, encrypted[_HEADER_SIZE + _NONCE_SIZE :], header)
        except InvalidTag:
            raise UndecryptableValue(
                f"A value that was sealed with the encryption key {key_id.hex()} was changed since: it does not fit "
                f"its seal. Restore it from a backup.",
                key_id.hex(),
            ) from None

    def __repr__(self) -> str:
        return f"<AesEncryption: keys {', '.join(self.key_ids)}>"

    def __reduce__(self) -> str:
        raise TypeError("an AesEncryption holds keys, and is not to be copied or written anywhere")


def read_key_id(encrypted: bytes) -> str:
    """The id of the key that ``AesEncryption`` used; ``""`` if the bytes are not in its format."""
    return encrypted[1:_HEADER_SIZE].hex() if encrypted[:1] == _VERSION and len(encrypted) > _HEADER_SIZE else ""


def _import_aesgcm() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise UsageError(
            "encryption needs the package `cryptography`, which is not installed here: "
            "pip install 'holdfast-agents[encryption]'"
        ) from None
    return AESGCM


def _validate_key(given: bytes | str, subject: str) -> bytes:
    """A key as bytes. Errors do not contain the key."""
    hint = "It is 32 random bytes in base64, as `holdfast encryption-key` makes it."
    if isinstance(given, str):
        text = given.strip().replace("-", "+").replace("_", "/")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{subject} is not base64. {hint}") from None
    else:
        key = given
    if len(key) != _KEY_SIZE:
        raise UsageError(f"{subject} has {len(key)} bytes, and an encryption key has {_KEY_SIZE}. {hint}")
    return key


def _derive_key_id(key: bytes) -> bytes:
    return hmac.new(key, b"holdfast encryption key id", hashlib.sha256).digest()[:_KEY_ID_SIZE]


def _format_key_ids(ids: tuple[str, ...]) -> str:
    return f"is {ids[0]}" if len(ids) == 1 else f"are {', '.join(ids)}"
