"""Declaring workflows and steps: mistakes are told at once, with the way out."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import DefinitionError, Effect, Step, Workflow, step, workflow
from holdfast.authoring.registry import definitions

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers

HERE = Path(__file__).name


# Workflows


def test_a_plain_function_is_shown_its_async_form():
    with pytest.raises(DefinitionError) as refused:

        @workflow
        def etl(customer: str, limit: int = 3) -> int:
            return 1

    told = str(refused.value)
    assert "workflow 'etl'" in told
    assert HERE in told
    assert "async def etl(customer: 'str', limit: 'int' = 3)" in told or "async def etl(customer: str" in told
    assert "@workflow" in told


def test_the_error_for_a_workflow_that_yields_says_to_return():
    with pytest.raises(DefinitionError, match="async generator; a run has one result: return it instead of yielding"):

        @workflow
        async def flow() -> AsyncIterator[int]:
            yield 1


def test_an_id_template_may_name_only_inputs():
    with pytest.raises(
        DefinitionError, match=r"names 'client', which is no input of the workflow \(inputs: customer\)"
    ):

        @workflow(id="etl-{client}")
        async def etl(customer: str) -> None: ...


def test_an_id_template_without_inputs_says_that_there_are_none():
    with pytest.raises(DefinitionError, match=r"inputs: none"):

        @workflow(id="etl-{client}")
        async def etl() -> None: ...


@pytest.mark.parametrize("template", ["etl-{customer", "etl-}", "etl-{customer.name}", "etl-{customer[0]}", "x-{}"])
def test_a_template_that_is_more_than_names_is_refused_when_it_is_declared(template: str):
    with pytest.raises(DefinitionError):

        @workflow(id=template)
        async def etl(customer: str) -> None: ...


@pytest.mark.parametrize("template", ["etl-{customer!r}", "etl-{customer:>10}"])
def test_a_template_with_a_conversion_or_format_is_refused_when_it_is_declared(template: str):
    with pytest.raises(DefinitionError):

        @workflow(id=template)
        async def etl(customer: str) -> None: ...


def test_a_template_may_name_what_keyword_arguments_bring():
    @workflow(id="etl-{customer}")
    async def etl(**kwargs: str) -> None: ...

    assert etl.definition.id_template == "etl-{customer}"


def test_two_workflows_of_one_name_are_refused_with_both_places():
    @workflow(name="etl")
    async def one() -> None: ...

    with pytest.raises(DefinitionError, match="two workflows are named 'etl'") as refused:

        @workflow(name="etl")
        async def two() -> None: ...

    assert str(refused.value).count(HERE) == 2
    assert "give one of them another with `name=...`" in str(refused.value)
    assert definitions["etl"] is one.definition


def test_the_same_function_defined_again_replaces_itself():
    def define() -> Workflow[[], Any]:
        @workflow
        async def etl() -> None: ...

        return etl

    first, second = define(), define()
    assert first.definition is not second.definition
    assert definitions["etl"] is second.definition


def test_tags_are_words_not_a_word():
    with pytest.raises(DefinitionError, match=r"tags=\['nightly'\]"):

        @workflow(tags="nightly")
        async def etl() -> None: ...


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "5", timedelta(0)])
def test_a_timeout_is_a_duration_above_zero(timeout: Any):
    with pytest.raises(DefinitionError, match=r"timeout .* is not a duration: use seconds, a timedelta, or text"):

        @workflow(timeout=timeout)
        async def etl() -> None: ...

    with pytest.raises(DefinitionError, match=r"timeout .* is not a duration: use seconds, a timedelta, or text"):

        @step(timeout=timeout)
        async def load() -> None: ...


def test_durations_may_be_timedeltas():
    @workflow(timeout=timedelta(minutes=2))
    async def etl() -> None: ...

    @step(timeout=timedelta(seconds=3), backoff=timedelta(milliseconds=500))
    async def load() -> None: ...

    assert etl.definition.timeout_s == 120.0
    assert load.definition.timeout_s == 3.0
    assert load.definition.retry.backoff == 0.5


def test_the_error_for_an_unresolvable_annotation_says_how_to_fix_it():
    with pytest.raises(DefinitionError, match="OnlyForCheckers") as refused:

        @step
        async def load() -> OnlyForCheckers: ...

    assert "outside `if TYPE_CHECKING:`" in str(refused.value)
    assert HERE in str(refused.value)
    with pytest.raises(DefinitionError, match="OnlyForCheckers"):

        @workflow
        async def etl(amount: OnlyForCheckers) -> None: ...


def test_a_type_that_can_never_be_recorded_is_refused_when_it_is_declared():
    class Connection:
        pass

    Connection.__module__ = __name__
    globals()["Connection"] = Connection
    try:
        with pytest.raises(DefinitionError, match="Connection"):

            @step
            async def connect() -> Connection: ...
    finally:
        del globals()["Connection"]


def test_a_workflow_keeps_its_name_and_documentation():
    @workflow
    async def etl(customer: str) -> int:
        """Move data."""
        return 1

    assert (etl.name, etl.__name__, etl.__doc__) == ("etl", "etl", "Move data.")
    assert repr(etl) == "<workflow 'etl'>"
    assert isinstance(etl, Workflow)


def test_a_class_without_steps_is_no_workflow():
    with pytest.raises(DefinitionError, match="has no steps"):

        @workflow
        class Etl:
            pass


# Steps


def test_a_generator_is_no_step():
    with pytest.raises(DefinitionError, match="is a generator; a step returns one value"):

        @step
        def rows() -> Iterator[int]:
            yield 1

    with pytest.raises(DefinitionError, match="return a list"):

        @step
        async def arows() -> AsyncIterator[int]:
            yield 1


def test_retries_and_once_exclude_each_other():
    with pytest.raises(DefinitionError, match="effect='once', so it gets one attempt: drop retries=3"):

        @step(effect="once", retries=3)
        async def pay() -> None: ...


@pytest.mark.parametrize("retries", [-1, 1.5, "3", True, None])
def test_retries_are_a_whole_number(retries: Any):
    with pytest.raises(DefinitionError, match="must be a whole number, 0 or more"):

        @step(retries=retries)
        async def load() -> None: ...


def test_the_error_for_an_unknown_effect_lists_the_known_ones():
    with pytest.raises(DefinitionError, match="effect='twice' is none of read, idempotent, once"):

        @step(effect="twice")
        async def pay() -> None: ...


def test_effects_may_be_given_as_words_or_members():
    @step(effect="read")
    async def one() -> None: ...

    @step(effect=Effect.ONCE)
    async def two() -> None: ...

    @step
    async def three() -> None: ...

    assert [one.definition.effect, two.definition.effect, three.definition.effect] == ["read", "once", "idempotent"]


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("given", [int, [ValueError, 5], "ValueError", 7])
def test_what_to_retry_is_given_as_exception_classes(option: str, given: Any):
    with pytest.raises(DefinitionError, match=f"{option} takes exception classes"):

        @step(retries=1, **{option: given})
        async def load() -> None: ...


def test_a_step_goes_on_a_function():
    with pytest.raises(DefinitionError, match="goes on a function"):
        step()(5)  # type: ignore[arg-type]

    @step
    async def load() -> None: ...

    with pytest.raises(DefinitionError, match="goes on a function"):
        step(load)


def test_a_nameless_callable_needs_a_name():
    partial = functools.partial(print, "x")
    with pytest.raises(DefinitionError, match=r"@step\(name=...\)"):
        step(partial)


def test_a_step_keeps_its_name_and_documentation():
    @step(name="load-rows")
    async def load(rows: int) -> int:
        """Load rows."""
        return rows

    assert (load.name, load.__name__, load.__doc__) == ("load-rows", "load", "Load rows.")
    assert repr(load) == "<step 'load-rows'>"
    assert isinstance(load, Step)
