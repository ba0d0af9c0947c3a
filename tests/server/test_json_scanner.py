"""Limits on JSON from outside, checked before anything parses it, in whatever pieces it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.http import json_scanner
from holdfast.server.http.json_scanner import JsonLimitExceeded, JsonScanner, check_json

texts = st.text(st.sampled_from('a"\\[]{},:1eE+.NI \n\u00fc'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=25,
)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


def containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + sum(map(containers, inner))


def in_pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return (data[start:end] for start, end in pairwise(places))


def feed(data: bytes, cuts: list[int]) -> None:
    scanner = JsonScanner()
    for piece in in_pieces(data, cuts):
        scanner.feed(piece)
    scanner.close()


@given(values, st.lists(st.integers(0, 10_000), max_size=6), st.booleans())
def test_limits_hold_to_the_level_and_the_container_wherever_the_pieces_end(value: Any, cuts: list[int], ascii: bool):
    data = json.dumps(value, ensure_ascii=ascii).encode(errors="surrogatepass")
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(json_scanner, "MAX_DEPTH", levels(value))
        limits.setattr(json_scanner, "MAX_CONTAINERS", containers(value))
        feed(data, cuts)
        if levels(value):
            limits.setattr(json_scanner, "MAX_DEPTH", levels(value) - 1)
            with pytest.raises(JsonLimitExceeded) as refused:
                feed(data, cuts)
            assert refused.value.kind == "too-deep"
            limits.setattr(json_scanner, "MAX_DEPTH", levels(value))
            limits.setattr(json_scanner, "MAX_CONTAINERS", containers(value) - 1)
            with pytest.raises(JsonLimitExceeded) as refused:
                feed(data, cuts)
            assert refused.value.kind == "too-many-values"


@pytest.mark.parametrize("data", [b"[1e400]", b'{"a": -1E+309}', b"[" + b"9" * 400 + b".5]", b"1e999", b"[1, NaN]"])
def test_a_number_too_large_for_a_float_is_refused_wherever_the_pieces_end(data: bytes):
    for cut in range(len(data) + 1):
        with pytest.raises(JsonLimitExceeded) as refused:
            feed(data, [cut])
        assert refused.value.kind == "bad-input"


@pytest.mark.parametrize("data", [b"[1e308, 1e-400, 0e999]", b'["1e400", "NaN", "Infinity"]', b"[" + b"9" * 400 + b"]"])
def test_numbers_that_fit_and_texts_that_look_like_numbers_are_taken(data: bytes):
    for cut in range(len(data) + 1):
        feed(data, [cut])


def test_a_number_without_an_end_is_refused_before_all_of_it_arrives():
    scanner = JsonScanner()
    with pytest.raises(JsonLimitExceeded):
        for _ in range(10):
            scanner.feed(b"1" * 1000)


@pytest.mark.parametrize("data", [b"[0." + b"1" * 5000 + b"]", b"[" + b"1" * 5000 + b"]", b"[1e" + b"0" * 5000 + b"]"])
def test_a_number_that_is_too_long_is_refused_wherever_the_pieces_end(data: bytes):
    for cut in (0, 1, 10, 4000, 4999, len(data) - 1):
        with pytest.raises(JsonLimitExceeded) as refused:
            feed(data, [cut])
        assert refused.value.kind == "bad-input"


@pytest.mark.parametrize("word", [b"1" * 1299, b"0." + b"1" * 1290, b"-" * 1299, b"1." * 649, b"1e" * 649, b"1" * 300])
def test_long_numbers_cost_as_little_as_other_bytes(word: bytes):
    data = b"[" + (word + b",") * (json_scanner.CHUNK_BYTES // len(word))
    begun = time.process_time()
    check_json(data)
    # A search that begins again at each character of a word takes 80 ms for the shortest of these, or longer.
    assert time.process_time() - begun < 0.05


def test_many_values_are_refused_at_the_piece_that_exceeds_the_limit():
    scanner = JsonScanner()
    with pytest.raises(JsonLimitExceeded) as refused:
        for _ in range(1000):
            scanner.feed(b"[]," * 10_000)
    assert refused.value.kind == "too-many-values"
    assert scanner._container_count <= json_scanner.MAX_CONTAINERS + 32_768
    check_json(b"[" + b"1," * (json_scanner.MAX_VALUES - 2) + b"1]")
    with pytest.raises(JsonLimitExceeded):
        check_json(b"[" + b"1," * json_scanner.MAX_VALUES + b"1]")


def test_long_strings_with_every_kind_of_escape_hide_nothing_and_cost_little():
    check_json(b'["' + b'\\"' * 8_000_000 + b'"]')
    check_json(b'["' + b"\\\\" * 8_000_000 + b'"]')
    with pytest.raises(JsonLimitExceeded):
        check_json(b'["' + b"\\\\" * 8_000_000 + b'",' + b"[" * 65)
