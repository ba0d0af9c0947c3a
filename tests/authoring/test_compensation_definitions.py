"""Declaring what undoes a step: where a compensation gets its arguments from, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from definition_errors import get_definition_error

from holdfast import DefinitionError, step, workflow
from holdfast.engine.definitions import Compensation, StepDefinition


def compensation_of(definition: StepDefinition) -> Compensation:
    assert definition.compensation is not None
    return definition.compensation


def in_class(flow: Any, name: str) -> StepDefinition:
    graph = flow.definition.function.holdfast_graph
    return next(node.step.definition for node in graph.nodes if node.name == name)


# Functions


def test_parameters_are_bound_by_name_and_the_other_one_takes_the_output():
    def refund(receipt: str, cents: int, currency: str, reason: str = "failed") -> None: ...

    @step(compensate=refund)
    async def charge(customer: str, cents: int, currency: str = "EUR") -> str: ...

    undo = compensation_of(charge.definition)
    assert undo.step.name == "refund"
    assert not undo.step.is_async
    bound = {"receipt": "r-1", "cents": 500, "currency": "EUR"}
    assert undo.bind_arguments("r-1", ("acme", 500), {}) == bound
    assert undo.bind_arguments("r-1", (), {"cents": 500, "customer": "acme"}) == bound
    assert undo.bind_arguments("r-1", ("acme",), {"cents": 500, "currency": "USD"}) == {**bound, "currency": "USD"}


def test_a_step_as_a_compensation_keeps_its_own_options():
    @step(retries=3, timeout=5, name="give back")
    async def refund(receipt: str) -> None: ...

    @step(compensate=refund)
    async def charge(cents: int) -> str: ...

    undo = compensation_of(charge.definition).step
    assert undo is refund.definition
    assert (undo.name, undo.retry.retries, undo.timeout_s, undo.is_async) == ("give back", 3, 5.0, True)


def test_a_compensation_may_have_effect_once():
    @step(effect="once")
    async def refund(receipt: str) -> None: ...

    @step(compensate=refund)
    async def charge(cents: int) -> str: ...

    assert compensation_of(charge.definition).step.effect == "once"


def test_a_compensation_may_take_nothing_or_only_arguments():
    @step(compensate=lambda: None)
    async def one(cents: int) -> str: ...

    @step(compensate=lambda cents: None)
    async def two(cents: int) -> str: ...

    @step(compensate=lambda output, *, cents: None)
    async def three(cents: int) -> str: ...

    assert compensation_of(one.definition).bind_arguments("x", (5,), {}) == {}
    assert compensation_of(two.definition).bind_arguments("x", (5,), {}) == {"cents": 5}
    assert compensation_of(three.definition).bind_arguments("x", (5,), {}) == {"output": "x", "cents": 5}


def test_the_error_for_a_compensation_that_takes_too_much_lists_the_names():
    def define() -> None:
        def refund(receipt: str, account: str, customer: str) -> None: ...

        @step(compensate=refund)
        async def charge(cents: int, customer: str) -> str: ...

    told = get_definition_error(define)
    assert "step 'charge'" in told
    assert "its compensation 'refund' takes 'receipt' and 'account'" in told
    assert "(cents, customer), or give them defaults" in told


@pytest.mark.parametrize(
    ("undo", "words"),
    [
        (lambda *args: None, "has the parameter `*args`"),
        (lambda **kwargs: None, "has the parameter `**kwargs`"),
        (lambda receipt, /: None, "has the parameter `receipt`"),
        ("refund", "pass the function"),
        (5, "is a function or a step, not 5"),
        (step(compensate=lambda: None)(lambda receipt: None), "has a compensation itself"),
        (step(1)(lambda receipt: None), "write it without a number"),
    ],
)
def test_what_cannot_undo_a_step_is_refused(undo: Any, words: str):
    def define() -> None:
        @step(compensate=undo)
        async def charge(cents: int) -> str: ...

    assert words in get_definition_error(define)


# Classes


def test_a_compensation_in_a_class_is_a_method_by_name_or_as_it_is():
    @workflow
    class Undoing:
        def __init__(self) -> None:
            self.log = ["made"]

        def above(self, receipt: str) -> str:
            return f"{self.log} above {receipt}"

        @step(1, compensate=above)
        async def one(self, cents: int) -> str: ...

        @step(2, depends_on=1, compensate="below")
        async def two(self, one: str) -> str: ...

        @step(retries=2, name="undo two")
        async def below(self, receipt: str, one: str) -> str:
            return f"{self.log} below {receipt} {one}"

    assert Undoing.definition.step_numbers == {"one": 1, "two": 2}
    one = compensation_of(in_class(Undoing, "one"))
    assert one.bind_arguments("r", (), {"cents": 5}) == {"receipt": "r"}
    assert one.step.parameters == ("receipt",)
    assert one.step.function(receipt="r") == "['made'] above r"
    two = compensation_of(in_class(Undoing, "two"))
    assert two.bind_arguments("r", (), {"one": "x"}) == {"receipt": "r", "one": "x"}
    assert (two.step.name, two.step.retry.retries, two.step.is_async) == ("undo two", 2, True)
    assert asyncio.run(two.step.function(receipt="r", one="x")) == "['made'] below r x"


def refund_elsewhere(receipt: str, cents: int) -> str:
    return f"{receipt} {cents}"


def test_a_compensation_in_a_class_may_be_a_function_of_the_module():
    @workflow
    class Outside:
        @step(1, compensate=refund_elsewhere)
        async def one(self, cents: int) -> str: ...

    undo = compensation_of(in_class(Outside, "one"))
    assert undo.bind_arguments("r", (), {"cents": 5}) == {"receipt": "r", "cents": 5}
    assert undo.step.function(receipt="r", cents=5) == "r 5"


def test_the_error_for_an_unknown_method_lists_the_known_ones():
    def define() -> None:
        @workflow
        class Unknown:
            @step(1, compensate="refnd")
            async def one(self, cents: int) -> str: ...

            def refund(self) -> None: ...

    assert "compensate='refnd' names no method of the class (there are: refund)" in get_definition_error(define)


def test_a_step_of_the_graph_is_no_compensation():
    def define() -> None:
        @workflow
        class Graphed:
            @step(1, compensate="two")
            async def one(self, cents: int) -> str: ...

            @step(2, depends_on=1)
            async def two(self, one: str) -> str: ...

    assert "its compensation 'two' is step 2 of the graph, which runs anyway" in get_definition_error(define)


def test_the_parameters_of_a_compensation_in_a_class_are_checked_when_it_is_defined():
    def define() -> None:
        @workflow
        class TooMany:
            @step(1, compensate="undo")
            async def one(self, cents: int) -> str: ...

            def undo(self, a: str, b: str) -> None: ...

    assert "step 1 (one): its compensation 'undo' takes 'a' and 'b'" in get_definition_error(define)
    with pytest.raises(DefinitionError, match="a function, or the name of a method"):
        step(1, compensate=5)  # type: ignore[call-overload]


def test_a_compensation_of_a_compensation_is_refused_in_classes_too():
    def define() -> None:
        @workflow
        class Twice:
            @step(1, compensate="undo")
            async def one(self, cents: int) -> str: ...

            @step(compensate=lambda: None)
            def undo(self, receipt: str) -> None: ...

    assert "has a compensation itself" in get_definition_error(define)
