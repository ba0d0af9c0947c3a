"""Previews of a step's arguments."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from holdfast.codec import preview_arguments


class Size(enum.Enum):
    BIG = "big"


@dataclass
class Row:
    id: int
    key: str = field(default="k", repr=False)
    tags: tuple[str, ...] = ()


class Login(BaseModel):
    user: str
    password: str
    pin: SecretStr = SecretStr("1234")


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


class Lines:
    def __repr__(self) -> str:
        return "<Lines\n  of text " + "x" * 1000 + ">"


def test_arguments_read_like_a_call():
    assert (
        preview_arguments(("customer", "*args"), ("acme", 3), {"rows": list(range(12))})
        == "customer='acme', 3, rows=[…12 items]"
    )
    assert preview_arguments((), (), {}) == ""
    assert preview_arguments((), (1, None), {}) == "1, None"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 1000, repr("x" * 80) + "…"),
        ([1, "a"], "[1, 'a']"),
        ((1,), "(1)"),
        ({"a": {"b": [1]}}, "{'a': {'b': […1 items]}}"),
        (10**1000, "<int of 3322 bits>"),
        (b"abc", "<3 bytes>"),
        (date(2024, 1, 1), "datetime.date(2024, 1, 1)"),
        (Size.BIG, "Size.BIG"),
        (Row(1, "hidden", ("a",)), "Row(id=1, tags=('a'))"),
        (Login(user="u", password="hunter2"), "Login(user='u', password=***, pin=SecretStr('**********'))"),
        (Broken(), "<Broken>"),
        ([Broken()], "[<Broken>]"),
    ],
)
def test_values_are_shown_briefly(value: object, text: str):
    assert preview_arguments(("v",), (value,), {}) == f"v={text}"


def test_an_objects_own_repr_is_cut_and_put_on_one_line():
    text = preview_arguments(("v",), (Lines(),), {})
    assert "\n" not in text
    assert len(text) < 100


@pytest.mark.parametrize("name", ["password", "db_passwd", "SECRET", "access_token", "api_key", "apikey", "x-api-key"])
def test_values_that_look_like_credentials_are_not_shown(name: str):
    assert preview_arguments((name,), ("hunter2",), {}) == f"{name}=***"
    assert preview_arguments((), (), {name: "hunter2"}) == f"{name}=***"
    assert "hunter2" not in preview_arguments(("headers",), ({name: "hunter2", "a": 1},), {})


@given(st.lists(st.text() | st.integers() | st.dictionaries(st.text(), st.text())), st.integers(3, 600))
def test_a_preview_never_exceeds_its_limit(args: list[Any], limit: int):
    assert len(preview_arguments(("a",), args, {"é": args}, limit).encode()) <= limit


def test_a_preview_is_always_valid_unicode():
    class Odd:
        def __repr__(self) -> str:
            return "\udcff"

    preview_arguments((), (Odd(), "\udcff"), {}).encode()
