"""Values: what goes in and comes out has its declared type, in inputs, outputs, signals and errors."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from conformance_world import World, fails_with, make_unique_id
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast import Client, InputError, UnrecordableValue, step, wait_for_signal, workflow

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    item: str
    cents: int = Field(ge=0)


@dataclass
class Bill:
    number: int
    lines: list[Line]
    colour: Colour
    due: date


class Totals(TypedDict):
    cents: int
    share: Decimal


BILL = Bill(7, [Line(item="tea", cents=250), Line(item="milk", cents=90)], Colour.BLUE, date(2026, 11, 16))


@step
async def val_total(bill: Bill) -> Totals:
    assert isinstance(bill.lines[0], Line)
    return {"cents": sum(line.cents for line in bill.lines), "share": Decimal("0.50")}


@step
def val_pair(bill: Bill) -> tuple[Line, frozenset[str]]:
    return bill.lines[0], frozenset(line.item for line in bill.lines)


@workflow
async def val_billing(bill: Bill, *, factor: Decimal) -> tuple[Bill, Decimal, Line, frozenset[str]]:
    totals = await val_total(bill)
    first, items = await val_pair(bill)
    return bill, totals["cents"] * totals["share"] * factor, first, items


async def test_models_dataclasses_and_plain_types_come_back_as_they_are(world: World) -> None:
    told = await val_billing.options(new=True)(BILL, factor=Decimal("2.0"))
    assert told == (BILL, Decimal("340.000"), BILL.lines[0], frozenset({"tea", "milk"}))
    assert isinstance(told[0].lines[1], Line)
    assert told[0].colour is Colour.BLUE


ODD: dict[Any, Any] = {
    "when": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "pair": (1, "two", None),
    "raw": b"\x00\xff",
    "price": Decimal("1.10"),
    "span": timedelta(days=1, microseconds=1),
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "id": UUID(int=7),
    "$tagged": {"$json": [{"$tuple": []}]},
    7: "a key that is no text",
    "big": 10**30,
    "float": 0.1,
    "text": "ä\u2028\x7f\U0001f600",
    "empty": [{}, [], "", None, False],
}
"""Values that plain JSON would change."""


@step
async def val_same(value: Any) -> Any:
    return value


@workflow
async def val_echo(value: Any = None) -> list[Any]:
    return [value, await val_same(value), await wait_for_signal("more")]


async def test_plain_data_is_not_changed_on_its_way(world: World, client: Client) -> None:
    run = make_unique_id("echo")
    handle = await val_echo.options(id=run).start(ODD)
    await client.signal(run, "more", ODD)
    assert await handle.result() == [ODD, ODD, ODD]
    told = await client.handle(run).result()
    assert told == [ODD, ODD, ODD]
    assert [type(part) for part in told[0].values()] == [type(part) for part in ODD.values()]


async def test_a_client_without_the_code_sends_plain_data_and_gets_plain_data(world: World, client: Client) -> None:
    bill = {"number": 1, "lines": [{"item": "tea", "cents": 5}], "colour": "red", "due": "2026-01-01"}
    told = await client.options(id=make_unique_id("plain")).run("val_billing", bill, factor="3")
    assert told[0] == bill
    assert Decimal(told[1]) == Decimal("7.5")
    with pytest.raises(InputError, match="colour"):
        await client.options(id=make_unique_id("plain")).run("val_billing", bill, colour="red")


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_started(world: World) -> None:
    with pytest.raises(InputError, match="factor"):
        await val_billing.options(id=make_unique_id("unfit"))(BILL)  # type: ignore[call-arg]
    with pytest.raises(InputError):
        await val_billing.options(id=make_unique_id("unfit"))("no bill", factor=Decimal(1))  # type: ignore[arg-type]


@step
async def val_secret() -> Any:
    return object()


@workflow
async def val_unrecordable() -> str:
    try:
        await val_secret()
    except UnrecordableValue as error:
        return type(error).__name__
    return "recorded"


@workflow
async def val_unrecordable_result() -> Any:
    return object()


async def test_an_unrecordable_value_is_an_error_where_it_is_made(world: World) -> None:
    assert await val_unrecordable.options(new=True)() == "UnrecordableValue"
    with fails_with(UnrecordableValue, "val_unrecordable_result"):
        await val_unrecordable_result.options(new=True)()


@step
async def val_large(size: int) -> str:
    return "x" * size


@workflow
async def val_carrying(size: int) -> list[Any]:
    text = await val_large(size)
    again = await val_same(text)
    return [len(text), again == text]


async def test_values_of_some_hundred_kilobytes_are_carried(world: World) -> None:
    assert await val_carrying.options(new=True)(300_000) == [300_000, True]


@workflow
async def val_nothing() -> None:
    return None


async def test_a_run_without_a_result_has_none(world: World) -> None:
    assert await val_nothing.options(new=True)() is None
