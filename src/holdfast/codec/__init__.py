"""Values to bytes and back, by declared type.

``value_codec`` is the interface; ``codec_lookup`` chooses the codec for an annotation: ``typed_codec`` (pydantic, by
declared type) or ``tagged_codec`` (a closed set of types, by the type of the value). ``round_trip`` decides whether a
value may be recorded at all. ``inputs``, ``run_ids``, and ``queue_keys`` encode a run's arguments, its id, and its key
in a queue; ``recorded_errors`` encodes exceptions. ``size_limit`` limits, ``canonical`` compares, and
``argument_preview`` shows values. ``tags`` has the stored form of values without a declared type, ``formatting`` the
texts of errors. ``json_schema`` describes declared types to clients without the code, and ``redaction`` removes
credentials from texts. ``encryption`` and ``encrypted_values`` handle bytes, whatever they mean.

There is no pickle anywhere: write access to the store must not become code execution.
"""

from __future__ import annotations

from holdfast.codec.argument_preview import preview_arguments
from holdfast.codec.canonical import compute_content_digest, compute_digest, decode_plain
from holdfast.codec.codec_lookup import codec_for
from holdfast.codec.encrypted_values import (
    ERASED,
    check_decrypted,
    check_decrypted_text,
    check_readable,
    describe_if_encrypted,
    is_encrypted_value,
    mask_encrypted_text,
)
from holdfast.codec.encryption import AesEncryption, Encryption
from holdfast.codec.inputs import InputsCodec, encode_inputs_by_name
from holdfast.codec.queue_keys import prepare_key_template, render_key, validate_key
from holdfast.codec.recorded_errors import ErrorInfo, decode_error, encode_error, get_error_message, read_error_info
from holdfast.codec.run_ids import parse_template_fields, render_run_id
from holdfast.codec.size_limit import DEFAULT_MAX_VALUE_BYTES, SizeLimit, validate_size
from holdfast.codec.value_codec import EncodedValue, ValueCodec

__all__ = [
    "DEFAULT_MAX_VALUE_BYTES",
    "ERASED",
    "AesEncryption",
    "EncodedValue",
    "Encryption",
    "ErrorInfo",
    "InputsCodec",
    "SizeLimit",
    "ValueCodec",
    "check_decrypted",
    "check_decrypted_text",
    "check_readable",
    "codec_for",
    "compute_content_digest",
    "compute_digest",
    "decode_error",
    "decode_plain",
    "describe_if_encrypted",
    "encode_error",
    "encode_inputs_by_name",
    "get_error_message",
    "is_encrypted_value",
    "mask_encrypted_text",
    "parse_template_fields",
    "prepare_key_template",
    "preview_arguments",
    "read_error_info",
    "render_key",
    "render_run_id",
    "validate_key",
    "validate_size",
]
