"""Encryption: the interface, keys and their rotation, and encrypted values."""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.codec import (
    check_decrypted,
    codec_for,
    compute_digest,
    decode_error,
    decode_plain,
    is_encrypted_value,
    mask_encrypted_text,
)
from holdfast.codec.encrypted_values import ENCRYPTED_PREFIX, ENCRYPTED_TEXT_PREFIX, ValueEncryptor
from holdfast.codec.encryption import KEYS_VARIABLE, AesEncryption, Encryption
from holdfast.errors import UndecryptableValue, UnreadableRecord, UsageError

OLD, NEW = b"o" * 32, b"n" * 32


# Keys


def test_what_was_encrypted_is_decrypted_and_no_two_are_alike():
    aes = AesEncryption(NEW)
    for plain in (b"", b"a", b"\x00" * 100, os.urandom(100_000)):
        one, other = aes.encrypt(plain), aes.encrypt(plain)
        assert aes.decrypt(one) == aes.decrypt(other) == plain
        assert one != other
        assert len(one) == len(plain) + 33
    assert b"secret" not in aes.encrypt(b"secret")


def test_the_first_key_writes_and_all_of_them_read():
    before, between, after = AesEncryption(OLD), AesEncryption(NEW, OLD), AesEncryption(NEW)
    assert between.decrypt(before.encrypt(b"1")) == b"1"
    assert after.decrypt(between.encrypt(b"2")) == b"2"
    with pytest.raises(UndecryptableValue):
        before.decrypt(between.encrypt(b"2"))


def test_an_error_names_the_missing_key_and_the_source_of_keys():
    with pytest.raises(UndecryptableValue) as caught:
        AesEncryption(NEW).decrypt(AesEncryption(OLD).encrypt(b"1"))
    [needed] = AesEncryption(OLD).key_ids
    assert caught.value.key_id == needed
    for word in (needed, *AesEncryption(NEW).key_ids, KEYS_VARIABLE, "encryption"):
        assert word in str(caught.value)
    assert isinstance(caught.value, UnreadableRecord)


def test_every_changed_byte_is_noticed_and_so_is_a_lost_end():
    aes = AesEncryption(NEW)
    sealed = aes.encrypt(b"pay 10 to ada")
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(UndecryptableValue):
            aes.decrypt(bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(UndecryptableValue):
            aes.decrypt(sealed[:length])


def test_the_id_of_a_key_is_authenticated():
    both = AesEncryption(NEW, OLD)
    sealed = AesEncryption(OLD).encrypt(b"1")
    other = AesEncryption(NEW).encrypt(b"1")
    with pytest.raises(UndecryptableValue, match="was changed since"):
        both.decrypt(other[:5] + sealed[5:])


def test_keys_may_be_bytes_or_base64_of_either_alphabet():
    key = bytes(range(224, 256))
    ids = {
        AesEncryption(given).key_ids
        for given in (key, base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode().rstrip("="))
    }
    assert len(ids) == 1
    assert len(AesEncryption(key, key).key_ids) == 1


@pytest.mark.parametrize("given", ["c2VjcmV0LWtleQ==", "not base64, but secret-key", b"secret-key"])
def test_a_wrong_key_is_refused_and_never_shown(given: bytes | str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match=r"key 2 of 2 .*holdfast encryption-key") as caught:
        AesEncryption(NEW, given)
    assert "secret-key" not in str(caught.value)
    assert "c2Vj" not in str(caught.value)
    if isinstance(given, str) and "," not in given:
        monkeypatch.setenv(KEYS_VARIABLE, f"{AesEncryption.new_key()},{given}")
        with pytest.raises(UsageError, match=rf"{KEYS_VARIABLE}: key 2 of 2") as caught:
            AesEncryption.from_environment()
        assert "c2Vj" not in str(caught.value)


def test_without_a_key_there_is_no_encryption(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="holdfast encryption-key"):
        AesEncryption()
    for empty in ("", "  "):
        monkeypatch.setenv(KEYS_VARIABLE, empty)
        assert AesEncryption.from_environment() is None
    monkeypatch.delenv(KEYS_VARIABLE)
    assert AesEncryption.from_environment() is None


def test_the_environment_has_keys_with_the_writing_key_first(monkeypatch: pytest.MonkeyPatch):
    keys = [AesEncryption.new_key(), AesEncryption.new_key()]
    monkeypatch.setenv(KEYS_VARIABLE, f" {keys[0]} , {keys[1]} ")
    found = AesEncryption.from_environment()
    assert found is not None
    assert found.key_ids == AesEncryption(*keys).key_ids
    assert AesEncryption(keys[0]).decrypt(found.encrypt(b"1")) == b"1"


def test_keys_are_neither_shown_nor_copied():
    key = AesEncryption.new_key()
    aes = AesEncryption(key)
    raw = base64.b64decode(key)
    for shown in (repr(aes), str(aes), str(vars(aes))):
        assert key not in shown
        assert repr(raw)[2:-1] not in shown
        assert raw.hex() not in shown
    assert aes.key_ids[0] in repr(aes)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="holds keys"):
            way(aes)


def test_threads_may_share_an_encryption():
    aes = AesEncryption(NEW, OLD)
    values = [os.urandom(size) for size in range(1, 2000, 7)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda value: aes.decrypt(aes.encrypt(value)), values)) == values


def test_cryptography_is_not_imported_without_keys():
    code = (
        "import sys\n"
        "from holdfast import Client, Runtime\n"
        "from holdfast.stores.urls import create_store\n"
        "Client('sqlite:///x.db'); create_store('memory://')\n"
        "print([name for name in ('cryptography', 'holdfast.stores.encrypted') if name in sys.modules])"
    )
    environment = {name: value for name, value in os.environ.items() if name != KEYS_VARIABLE}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_without_the_package_the_error_says_how_to_install_it():
    code = (
        "import sys\n"
        "sys.modules['cryptography.hazmat.primitives.ciphers.aead'] = None\n"
        "from holdfast import AesEncryption, UsageError\n"
        "try:\n"
        "    AesEncryption(bytes(32))\n"
        "except UsageError as error:\n"
        "    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast-agents[encryption]'" in told.stdout


# Envelopes


class Backwards(Encryption):
    """Another one, whose work does not look like that of AES."""

    def encrypt(self, plain: bytes) -> bytes:
        return b"<" + plain[::-1]

    def decrypt(self, encrypted: bytes) -> bytes:
        if not encrypted.startswith(b"<"):
            raise UndecryptableValue("that is not mine")
        return encrypted[:0:-1]


@pytest.mark.parametrize("encryption", [AesEncryption(NEW), Backwards()], ids=["aes", "own"])
def test_values_and_texts_are_sealed_and_opened(encryption: Encryption):
    sealer = ValueEncryptor(encryption)
    for value in (b"null", b'{"a":1}', b"\x01[1]", b"x" * 100_000, os.urandom(100_000)):
        assert is_encrypted_value(sealed := sealer.encrypt(value))
        assert sealer.decrypt(sealed) == value
        assert sealer.encrypt(sealed) == sealed
    for text in ("words", "Grüße \U0001f600", "half \udc80 of one", "nul \x00", ENCRYPTED_TEXT_PREFIX[:-1]):
        sealed_text = sealer.encrypt_text(text)
        assert sealed_text.isascii()
        assert sealer.decrypt_text(sealed_text) == text
        assert sealer.encrypt_text(sealed_text) == sealed_text


def test_what_is_empty_or_was_never_sealed_stays_as_it_is():
    sealer = ValueEncryptor(AesEncryption(NEW))
    assert (sealer.encrypt(b""), sealer.encrypt_text("")) == (b"", "")
    assert sealer.decrypt(b'"plain"') == b'"plain"'
    for text in ("plain", f"{ENCRYPTED_TEXT_PREFIX}not base64!", f"{ENCRYPTED_TEXT_PREFIX}aGVsbG8="):
        assert sealer.decrypt_text(text) == text


def test_large_values_are_compressed_before_encryption():
    sealer = ValueEncryptor(AesEncryption(NEW))
    assert len(sealer.encrypt(json.dumps(["again"] * 10_000).encode())) < 2000
    noise = os.urandom(5000)
    assert len(sealer.encrypt(noise)) == len(noise) + 38


def test_no_recorded_value_looks_encrypted():
    for value in (1, "§HF1", "\xa7HF1", b"\xa7HF1", {"\xa7HF1": 1}):
        assert not is_encrypted_value(codec_for(type(value)).encode(value, "it"))


def test_every_reader_refuses_an_encrypted_value_with_an_explanation():
    sealed = ValueEncryptor(AesEncryption(OLD)).encrypt(b'"secret"')
    [key_id] = AesEncryption(OLD).key_ids
    readers = (
        lambda: codec_for(str).decode(sealed, "the output"),
        lambda: codec_for(dict).decode(sealed, "the output"),
        lambda: decode_error(sealed, ()),
        lambda: compute_digest(sealed),
        lambda: decode_plain(sealed),
        lambda: check_decrypted(sealed, "the output"),
    )
    for read in readers:
        with pytest.raises(
            UndecryptableValue, match=rf"is sealed with the encryption key {key_id}.*{KEYS_VARIABLE}"
        ) as got:
            read()
        assert got.value.key_id == key_id
    with pytest.raises(UndecryptableValue, match="It is sealed, and"):
        check_decrypted(ValueEncryptor(Backwards()).encrypt(b"1"), "it")


def test_a_form_of_a_newer_version_is_reported_as_such():
    aes = AesEncryption(NEW)
    with pytest.raises(UndecryptableValue, match="Upgrade Holdfast"):
        ValueEncryptor(aes).decrypt(ENCRYPTED_PREFIX + aes.encrypt(b"\x07later"))


def test_encrypted_texts_are_described_on_display():
    [key_id] = AesEncryption(NEW).key_ids
    sealed = ValueEncryptor(AesEncryption(NEW)).encrypt_text("secret")
    assert mask_encrypted_text(f"waits: {sealed}, and more") == f"waits: (sealed with key {key_id}), and more"
    assert mask_encrypted_text("nothing sealed: here") == "nothing sealed: here"
