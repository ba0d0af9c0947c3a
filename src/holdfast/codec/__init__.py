"""Values to bytes and back, by declared type.

``value_codec`` is the contract; ``codec_lookup`` picks the codec for an annotation: ``typed_codec`` (pydantic, by
declared type) or ``tagged_codec`` (a closed set of types, by what the value is). ``round_trip`` decides whether a value
may be recorded at all. ``inputs``, ``run_ids`` and ``queue_keys`` do the same for a run's arguments, its id and its key
in a queue, ``recorded_errors`` for exceptions; ``size_limit`` bounds, ``canonical`` compares, ``argument_preview``
shows. ``tags`` is the form of values by what they are, and ``formatting`` how errors speak. ``encryption`` and
``encrypted_values`` deal with bytes, whatever they mean.

There is no pickle anywhere: whoever can write to the store must not thereby be able to run code.
"""

from __future__ import annotations

from holdfast.codec.argument_preview import preview
from holdfast.codec.canonical import digest, to_plain
from holdfast.codec.codec_lookup import codec_for
from holdfast.codec.encrypted_values import is_sealed, refuse_sealed, refuse_sealed_text, shown_if_sealed, shown_text
from holdfast.codec.encryption import AesEncryption, Encryption
from holdfast.codec.inputs import InputsCodec, bind_by_name
from holdfast.codec.queue_keys import checked_key, key_template, render_key
from holdfast.codec.recorded_errors import ErrorInfo, decode_error, describe_error, encode_error, message_of
from holdfast.codec.run_ids import render_id, template_fields
from holdfast.codec.size_limit import LARGEST, SizeLimit, check_size
from holdfast.codec.value_codec import Encoded, ValueCodec

__all__ = [
    "LARGEST",
    "AesEncryption",
    "Encoded",
    "Encryption",
    "ErrorInfo",
    "InputsCodec",
    "SizeLimit",
    "ValueCodec",
    "bind_by_name",
    "check_size",
    "checked_key",
    "codec_for",
    "decode_error",
    "describe_error",
    "digest",
    "encode_error",
    "is_sealed",
    "key_template",
    "message_of",
    "preview",
    "refuse_sealed",
    "refuse_sealed_text",
    "render_id",
    "render_key",
    "shown_if_sealed",
    "shown_text",
    "template_fields",
    "to_plain",
]
