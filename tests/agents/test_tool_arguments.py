"""A model's arguments are validated, and the errors help it to correct them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, field_validator
from tool_calls import execute_call, make_step_call
from typing_extensions import TypedDict

from holdfast.agents.tools import tool
from holdfast.codec import preview_arguments
from holdfast.errors import HoldfastError, InvalidToolArguments

pytestmark = pytest.mark.asyncio


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip: int | None = None

    @field_validator("city")
    @classmethod
    def _known(cls, city: str) -> str:
        if city == "Nowhere":
            raise ValueError("there is no such city")
        return city


@dataclass
class Span:
    first: int
    last: int = 9


class Paging(TypedDict):
    page: int


@tool
async def collect(
    text: Any = None,
    number: int = 0,
    colour: Colour | None = None,
    mode: Literal["fast", "slow"] = "fast",
    words: list[str] | None = None,
    pair: tuple[int, str] | None = None,
    names: set[str] | None = None,
    day: date | None = None,
    wait: timedelta | None = None,
    price: Decimal | None = None,
    key: UUID | None = None,
    place: Place | None = None,
    spans: list[Span] | None = None,
    paging: Paging | None = None,
    either: int | list[str] = 0,
    limit: Annotated[int, Field(ge=1, le=10)] = 3,
    password: int = 0,
) -> dict[str, Any]:
    given = dict(locals())
    return {name: value for name, value in given.items() if value not in (None, 0, "fast", 3)}


@tool
async def search(query: str, limit: int = 10) -> str:
    return f"{query} {limit}"


async def refused(made: Any, args: Any) -> str:
    with pytest.raises(InvalidToolArguments) as caught:
        await execute_call(made, args)
    assert isinstance(caught.value, HoldfastError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "sent", "got"),
    [
        ("text", {"a": [1, None]}, {"a": [1, None]}),
        ("number", "41", 41),
        ("number", 4.0, 4),
        ("colour", "blue", Colour.BLUE),
        ("mode", "slow", "slow"),
        ("words", ["a", "b"], ["a", "b"]),
        ("pair", [1, "x"], (1, "x")),
        ("names", ["a", "a"], {"a"}),
        ("day", "2026-11-15", date(2026, 11, 15)),
        ("wait", "PT1M", timedelta(minutes=1)),
        ("price", "1.20", Decimal("1.20")),
        ("key", "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678)),
        ("place", {"city": "Ulm"}, Place(city="Ulm")),
        ("spans", [{"first": 1}, {"first": 2, "last": 3}], [Span(1), Span(2, 3)]),
        ("paging", {"page": 2}, {"page": 2}),
        ("either", ["a"], ["a"]),
        ("limit", 10, 10),
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
async def test_arguments_are_read_by_the_hints(name: str, sent: Any, got: Any, as_text: bool):
    args: Any = {name: sent}
    [(found, value)] = (await execute_call(collect, json.dumps(args) if as_text else args)).items()
    assert (found, value, type(value)) == (name, got, type(got))


@pytest.mark.parametrize("nothing", [None, "", "  ", "{}", "null", {}])
async def test_nothing_sent_means_no_arguments(nothing: Any):
    assert await execute_call(collect, nothing) == {}


async def test_what_is_left_out_is_the_functions_own_default():
    default = object()

    @tool
    async def pick(item: Any = default, /, other: Any = default, *, last: Any = default) -> list[bool]:
        return [one is default for one in (item, other, last)]

    assert await execute_call(pick) == [True, True, True]
    assert await execute_call(pick, {"other": 1}) == [True, False, True]
    assert await execute_call(pick, {"item": None}) == [False, True, True]


async def test_a_default_of_a_field_is_used_where_the_function_has_none():
    @tool
    async def roll(sides: Annotated[int, Field(default=6)]) -> int:
        return sides

    assert roll.schema.get("required") is None
    assert await execute_call(roll) == 6


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({}, "query is missing"),
        ({"query": 3}, "query should be a valid string; it was 3"),
        ({"query": None}, "query should be a valid string; it was None"),
        (
            {"query": "x", "limit": "ten"},
            "limit should be a valid integer, unable to parse string as an integer; it was 'ten'",
        ),
        ({"query": "x", "limt": 3}, "limt is not a parameter; did you mean 'limit'?"),
        ({"query": "x", "zzz": 3}, "zzz is not a parameter"),
        (
            '{"query": "x"',
            "they cannot be read: EOF while parsing an object at line 1 column 13. "
            "Send one JSON object that has the parameters by name.",
        ),
        (
            "query=x",
            "they cannot be read: expected value at line 1 column 1. "
            "Send one JSON object that has the parameters by name.",
        ),
        (
            '["x"]',
            "they cannot be read: they are no JSON object. Send one JSON object that has the parameters by name.",
        ),
        (
            '"{}"',
            "they cannot be read: they are no JSON object. Send one JSON object that has the parameters by name.",
        ),
    ],
)
async def test_problems_are_reported(args: Any, fault: str):
    assert await refused(search, args) == (
        f"The arguments do not fit the tool 'search', which was not called:\n- {fault}\n"
        f"Its parameters are: query, limit. Correct the arguments."
    )


@pytest.mark.parametrize(
    ("args", "faults"),
    [
        ({"colour": "green"}, ["colour should be 'red' or 'blue'; it was 'green'"]),
        ({"mode": "medium"}, ["mode should be 'fast' or 'slow'; it was 'medium'"]),
        ({"limit": 11}, ["limit should be less than or equal to 10; it was 11"]),
        ({"words": "a"}, ["words should be a valid array; it was 'a'"]),
        ({"words": ["a", 2, "c", 4]}, ["words[1] should be a valid string; it was 2"]),
        ({"place": {"zip": "x"}}, ["place.city is missing", "place.zip should be a valid integer"]),
        ({"place": {"city": "Nowhere"}}, ["place.city is refused: there is no such city; it was 'Nowhere'"]),
        ({"spans": [{"first": 1}, {"last": 2}]}, ["spans[1].first is missing"]),
        ({"spans": [{"first": 1, "end": 2}]}, ["spans[0].end is not a field there"]),
        ({"paging": {"page": 1, "size": 2}}, ["paging.size is not a field there"]),
        # The members of a union that were tried are no part of the way there.
        ({"either": "x"}, ["either should be a valid integer, unable to parse string as an integer or should be"]),
        ({"either": ["x", 3]}, ["either should be a valid integer", "either[1] should be a valid string; it was 3"]),
        ({"text": 1, "nope": 2, "nor": 3}, ["nope is not a parameter", "nor is not a parameter"]),
    ],
)
async def test_problems_are_reported_with_their_path(args: Any, faults: list[str]):
    lines = (await refused(collect, args)).splitlines()[1:-1]
    assert all(line.startswith(f"- {fault}") for line, fault in zip(lines[: len(faults)], faults, strict=True)), lines


async def test_what_was_sent_for_a_secret_is_not_repeated():
    told = await refused(collect, {"password": "hunter2"})
    assert "- password should be a valid integer, unable to parse string as an integer\n" in told
    assert "hunter2" not in told


async def test_a_refusal_is_short_whatever_was_sent():
    huge = "y" * 100_000
    for args in (
        {"words": huge, "number": huge, "place": {"city": 1, huge: 2}, huge: 3, "spans": [huge] * 1000},
        {"words": list(range(10_000))},
        {f"{huge}{n}": 1 for n in range(100)},
        f"{{{huge}",
        f'{{"number": {"9" * 5000}}}',
        "[" * 100_000,
        '{"text": "\ud800"}',
        {"text": "\ud800"},
    ):
        assert len(await refused(collect, args)) <= 1000
    told = await refused(collect, {"words": list(range(10_000))})
    assert "- words[7] should be a valid string; it was 7\n- and 9992 more\n" in told


async def test_a_tool_with_many_parameters_names_some_of_them():
    async def wide(**kwargs: Any) -> None: ...

    source = ", ".join(f"parameter_number_{n}: int = 0" for n in range(60))
    namespace: dict[str, Any] = {}
    exec(f"async def wide({source}): ...", namespace)
    told = await refused(tool(namespace["wide"]), {"x": 1})
    assert "Its parameters are: parameter_number_0, " in told
    assert " more. Correct the arguments." in told
    assert len(told) < 500


async def test_a_tool_without_parameters_says_so():
    @tool
    async def look() -> None: ...

    assert (await refused(look, {"at": 1})).endswith("It has no parameters: pass {}. Correct the arguments.")


async def test_other_keywords_are_passed_on_by_their_type():
    @tool
    async def tag(item: str, **labels: int) -> dict[str, Any]:
        return {"item": item, **labels}

    assert await execute_call(tag, {"item": "x", "size": "3", "self": 4}) == {"item": "x", "size": 3, "self": 4}
    assert "- size should be a valid integer" in await refused(tag, {"item": "x", "size": "big"})


async def test_a_plain_tool_is_one_too():
    @tool
    def double(number: int) -> int:
        return 2 * number

    call = make_step_call(double, '{"number": "21"}')
    assert not call.step.is_async
    assert call.step.function(**call.kwargs) == 42
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("plain", [True, False])
async def test_no_name_of_an_argument_can_collide(plain: bool):
    names = ("self", "given", "agent", "deps", "part", "function", "args", "kwargs", "call_id", "_shown", "ctx")

    if plain:

        @tool
        def count(**numbers: int) -> int:
            return sum(numbers.values())
    else:

        @tool
        async def count(**numbers: int) -> int:
            return sum(numbers.values())

    assert await execute_call(count, dict.fromkeys(names, 1)) == len(names)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ('{"query": "cats", "limit": 3}', "query='cats', limit=3"),
        ({"query": "cats", "api_key": "k"}, "query='cats', api_key=***"),
        (None, ""),
        ('{"password": "hunter2"', "arguments='(22 characters that are no JSON object)'"),
        ("[1]", "arguments='(3 characters that are no JSON object)'"),
    ],
)
async def test_the_preview_shows_the_arguments_as_they_were_sent(args: Any, shown: str):
    call = make_step_call(search, args)
    assert preview_arguments(call.step.parameters, call.args, call.kwargs) == shown
