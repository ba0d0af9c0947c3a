"""Declaring class workflows: every mistake is told when the class is defined, with the way out."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from definition_errors import get_definition_error

from holdfast import DefinitionError, Step, Workflow, parallel, step, workflow
from holdfast.authoring.registry import definitions

HERE = Path(__file__).name


def inputs_of(flow: Workflow[..., Any]) -> str:
    return flow.definition.inputs_codec._format_signature()


def sources_of(flow: Workflow[..., Any], number: int) -> dict[str, str]:
    """Where each parameter of a step comes from: the number of a step, or an input."""
    graph: Any = flow.definition.function.holdfast_graph  # type: ignore[attr-defined]
    node = next(node for node in graph.nodes if node.number == number)
    return {
        parameter: f"input {name}" if index is None else f"step {graph.nodes[index].number}"
        for parameter, index, name, _ in node.sources
    }


# Rules of binding


def test_a_parameter_named_like_a_dependency_takes_its_output():
    @workflow
    class RuleOne:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2)
        async def right(self, n: int) -> int: ...

        @step(3, depends_on=(1, 2))
        async def join(self, right: int, left: int) -> int: ...

    assert sources_of(RuleOne, 3) == {"right": "step 2", "left": "step 1"}
    assert inputs_of(RuleOne) == "RuleOne(*, n: int)"


def test_a_parameter_named_like_an_input_takes_the_input():
    @workflow(id="rule-{run_id}")
    class RuleTwo:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2, depends_on=1)
        async def join(self, n: int, run_id: str, result: int) -> int: ...

    assert sources_of(RuleTwo, 2) == {"n": "input n", "run_id": "input run_id", "result": "step 1"}
    assert inputs_of(RuleTwo) == "RuleTwo(*, run_id: str, n: int)"


def test_the_only_unbound_dependency_goes_to_the_first_unbound_parameter_in_any_place():
    @workflow
    class RuleThree:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2)
        async def right(self, n: int) -> int: ...

        @step(3, depends_on=[1, 2])
        async def join(self, other: int, more: int, left: int) -> int: ...

    assert sources_of(RuleThree, 3) == {"other": "step 2", "more": "input more", "left": "step 1"}


def test_a_parameter_with_a_default_may_be_the_first_that_is_left():
    @workflow
    class RuleThreeDefault:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2, depends_on=1)
        async def join(self, result: int = 0) -> int: ...

    assert sources_of(RuleThreeDefault, 2) == {"result": "step 1"}


def test_what_is_left_is_a_further_input_or_stays_at_its_default():
    @workflow
    class RuleFour:
        @step(1)
        async def left(self, n: int, step_size: int = 2) -> int: ...

        @step(2, depends_on=1)
        async def join(self, left: int, language: str, limit: int = 10) -> int: ...

    assert sources_of(RuleFour, 2) == {"left": "step 1", "language": "input language", "limit": "input limit"}
    assert inputs_of(RuleFour) == "RuleFour(*, n: int, step_size: int = 2, language: str, limit: int = 10)"


def test_a_dependency_without_a_parameter_for_it_only_orders():
    @workflow
    class OnlyOrders:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2, depends_on=1)
        async def told(self) -> None: ...

    assert sources_of(OnlyOrders, 2) == {}


def test_a_step_that_only_comes_after_has_inputs_of_its_own():
    @workflow
    class After:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2, after=1)
        async def right(self, m: int) -> int: ...

        @step(3, after=("left", 2))
        async def last(self) -> int: ...

    assert sources_of(After, 2) == {"m": "input m"}
    assert inputs_of(After) == "After(*, n: int, m: int)"


def test_dependencies_may_be_given_by_name():
    @workflow
    class ByName:
        @step(1)
        async def left(self, n: int) -> int: ...

        @step(2, depends_on="left")
        async def right(self, result: int) -> int: ...

    assert sources_of(ByName, 2) == {"result": "step 1"}


def test_a_field_that_no_step_takes_is_an_input_of_any_type():
    @workflow(id="a-{run_id}-{day}")
    class Templated:
        @step(1)
        async def one(self, day: str) -> str: ...

    assert inputs_of(Templated) == "Templated(*, run_id, day: str)"
    assert Templated.definition.inputs_codec.encode((), {"run_id": 7, "day": "mon"}) == b'{"run_id":7,"day":"mon"}'


def test_one_annotation_is_enough_for_an_input_of_several_steps():
    @workflow
    class Shared:
        @step(1)
        async def one(self, n) -> int: ...  # type: ignore[no-untyped-def]

        @step(2)
        async def two(self, n: int) -> int: ...

    assert inputs_of(Shared) == "Shared(*, n: int)"


def test_the_items_of_an_input_are_declared_one_by_one():
    @workflow
    class Items:
        @step(1, each="n")
        async def one(self, n: int) -> int: ...

    assert inputs_of(Items) == "Items(*, n: list[int])"


# Results


def output_of(flow: Workflow[..., Any]) -> Any:
    return flow.definition.output_codec.annotation  # type: ignore[attr-defined]


def test_the_result_is_declared_as_the_only_final_step_is():
    @workflow
    class Plain:
        @step(1)
        async def one(self) -> int: ...

        @step(2, depends_on=1)
        async def two(self, one: int) -> dict[str, int]: ...

    @workflow
    class Maybe:
        @step(1, when=lambda n: n > 1)
        async def one(self, n: int) -> int: ...

        @step(2, depends_on=1)
        async def two(self, one: int) -> dict[str, int]: ...

    @workflow
    class NotSkipped:
        @step(1, when=lambda n: n > 1)
        async def one(self, n: int) -> int: ...

        @step(2, depends_on=1)
        async def two(self, one: int | None) -> dict[str, int]: ...

    @workflow
    class Fanned:
        @step(1, each="n")
        async def one(self, n: int) -> int: ...

    assert output_of(Plain) == dict[str, int]
    assert output_of(Maybe) == Optional[dict[str, int]]  # noqa: UP045
    assert output_of(NotSkipped) == dict[str, int]
    assert output_of(Fanned) == list[int]


def test_several_final_steps_are_declared_by_name():
    @workflow
    class Several:
        @step(1)
        async def one(self, n: int) -> int: ...

        @step(2, name="second", when=lambda n: n > 1)
        async def two(self, n: int) -> str: ...

    hints = output_of(Several).__annotations__
    assert hints["one"] is int
    assert "str" in str(hints["second"])
    assert output_of(Several).__required_keys__ == {"one"}


def test_the_numbers_are_known_by_the_names_in_the_journal():
    @workflow
    class Numbered:
        @step(20)
        async def one(self) -> int: ...

        @step(10, name="second")
        async def two(self) -> int: ...

    assert Numbered.definition.step_numbers == {"second": 10, "one": 20}


def test_self_is_no_parameter_of_a_step():
    @workflow
    class Selfless:
        @step(1)
        async def one(self, n: int) -> int: ...

    definition: Any = Selfless.definition.function.holdfast_graph.nodes[0].step.definition  # type: ignore[attr-defined]
    assert definition.parameters == ("n",)
    assert list(inspect.signature(definition.function).parameters) == ["n"]


# What is told


def test_the_error_for_two_dependencies_without_parameters_names_those_to_use():
    def define() -> None:
        @workflow
        class Unclear:
            @step(1)
            async def left(self, n: int) -> int: ...

            @step(2)
            async def right(self, n: int) -> int: ...

            @step(3, depends_on=(1, 2))
            async def join(self, a: int, b: int) -> int: ...

    told = get_definition_error(define)
    assert "step 3 (join) depends on steps 1 (left) and 2 (right)" in told
    assert "`def join(self, left, right)`" in told
    assert "`after=`" in told
    assert HERE in told


@pytest.mark.parametrize("option", ["depends_on", "after"])
def test_a_cycle_is_shown(option: str):
    def define() -> None:
        @workflow
        class Round:
            @step(1, **{option: 3})  # type: ignore[arg-type]
            async def one(self) -> int: ...

            @step(2, depends_on=1)
            async def two(self) -> int: ...

            @step(3, depends_on=2)
            async def three(self) -> int: ...

    assert "1 (one) -> 3 (three) -> 2 (two) -> 1 (one)" in get_definition_error(define)


def test_the_error_for_two_steps_with_one_number_suggests_a_free_one():
    def define() -> None:
        @workflow
        class Twice:
            @step(1)
            async def one(self) -> int: ...

            @step(1)
            async def two(self) -> int: ...

    told = get_definition_error(define)
    assert "two steps have the number 1: 'one' and 'two'" in told
    assert "such as 2" in told


def test_two_steps_of_one_name_in_the_journal_are_refused():
    def define() -> None:
        @workflow
        class Twice:
            @step(1)
            async def one(self) -> int: ...

            @step(2, name="one")
            async def two(self) -> int: ...

    assert "both named 'one'" in get_definition_error(define)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (7, "depends_on=7, but there is no such step. The steps are: 1 (fetch), 2 (load)"),
        ("fetsch", "Did you mean 'fetch'?"),
    ],
)
def test_the_error_for_an_unknown_dependency_lists_the_known_ones(reference: Any, words: str):
    def define() -> None:
        @workflow
        class Unknown:
            @step(1)
            async def fetch(self) -> int: ...

            @step(2, depends_on=reference)
            async def load(self, rows: int) -> int: ...

    assert words in get_definition_error(define)


def test_a_step_that_depends_on_itself_is_refused():
    def define() -> None:
        @workflow
        class Itself:
            @step(1, depends_on=1)
            async def fetch(self, rows: int) -> int: ...

    assert "step 1 (fetch) has depends_on=1, which is itself" in get_definition_error(define)


def test_a_name_that_is_an_input_and_a_method_is_refused():
    def define() -> None:
        @workflow
        class Both:
            @step(1)
            async def fetch(self, load: int) -> int: ...

            @step(2, depends_on=1)
            async def load(self, rows: int) -> int: ...

    assert "'load' is both an input, of step 1 (fetch), and the method of step 2" in get_definition_error(define)

    def define_by_template() -> None:
        @workflow(id="{fetch}")
        class Both:
            @step(1)
            async def fetch(self) -> int: ...

    assert "'fetch' is both a field of a template" in get_definition_error(define_by_template)


def test_a_parameter_named_like_a_step_that_is_no_dependency_is_refused():
    def define() -> None:
        @workflow
        class Stranger:
            @step(1)
            async def fetch(self) -> int: ...

            @step(2, depends_on=1)
            async def load(self, fetch: int) -> int: ...

            @step(3, depends_on=2)
            async def told(self, fetch: int) -> int: ...

    told = get_definition_error(define)
    assert "'fetch' of step 3 (told) is named like step 1 (fetch), which it does not depend on" in told
    assert "Add 1 to its depends_on" in told


def test_a_name_that_is_an_input_here_and_an_output_there_is_refused():
    def define() -> None:
        @workflow
        class TwoMeanings:
            @step(1)
            async def fetch(self) -> int: ...

            @step(2, depends_on=1)
            async def load(self, rows: int, language: str) -> int: ...

            @step(3, depends_on=2)
            async def told(self, language: str) -> int: ...

    assert "'language' is an input of step 2 (load), but in step 3 (told)" in get_definition_error(define)


def test_an_input_has_one_annotation():
    def define() -> None:
        @workflow
        class TwoTypes:
            @step(1)
            async def one(self, n: int) -> int: ...

            @step(2)
            async def two(self, n: str) -> int: ...

    assert "the input 'n' is declared as `int` by step 1 (one) and as `str` by step 2 (two)" in get_definition_error(
        define
    )


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "1"])
def test_a_number_is_a_positive_whole_number(number: Any):
    with pytest.raises(DefinitionError, match="a whole number, 1 or more"):
        step(number)


@pytest.mark.parametrize("given", [None, 1.5, (1, True), [None]])
def test_dependencies_are_numbers_or_names(given: Any):
    with pytest.raises(DefinitionError, match="by their numbers, or by the names"):
        step(2, depends_on=given)


def test_the_error_for_a_step_without_a_number_suggests_the_next():
    def define() -> None:
        @workflow
        class Loose:
            @step(1)
            async def one(self) -> int: ...

            @step
            async def two(self) -> int: ...

    told = get_definition_error(define)
    assert "step 'two' has no number" in told
    assert "@step(2)" in told


@pytest.mark.parametrize("option", [{"depends_on": 1}, {"after": 1}, {"each": "n"}, {"when": bool}])
def test_options_of_the_class_form_need_a_number(option: dict[str, Any]):
    with pytest.raises(DefinitionError, match="give it a number"):

        @step(**option)
        async def one(n: int) -> int: ...


def test_a_class_without_steps_is_shown_how_they_look():
    def define() -> None:
        @workflow
        class Empty:
            def helper(self) -> None: ...

    told = get_definition_error(define)
    assert "has no steps" in told
    assert "@step(1)" in told


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_step_is_an_ordinary_method(kind: Any):
    def above() -> None:
        @workflow
        class Above:
            one = kind(step(1)(lambda self: 1))

    def below() -> None:
        @workflow
        class Below:
            @step(1)
            @kind
            async def one(self) -> int: ...

    assert f"drop @{kind.__name__}" in get_definition_error(above)
    assert "takes `self`" in get_definition_error(below)
    assert f"put @step below @{kind.__name__}" in get_definition_error(lambda: step(kind(_waits)))


def test_a_method_without_self_is_an_error():
    def define() -> None:
        @workflow
        class NoSelf:
            @step(1)
            async def one() -> int: ...  # type: ignore[misc]

    assert "takes no `self`: write `def one(self)`" in get_definition_error(define)


def test_a_method_that_yields_is_no_step():
    with pytest.raises(DefinitionError, match="return a list"):

        class Yields:
            @step(1)
            async def one(self) -> AsyncIterator[int]:
                yield 1


def test_parameters_are_ordinary_ones():
    def define() -> None:
        @workflow
        class Stars:
            @step(1)
            async def one(self, *numbers: int) -> int: ...

    assert "has the parameter `*numbers: 'int'`" in get_definition_error(define)


def test_a_class_that_cannot_be_made_without_arguments_is_refused():
    def define() -> None:
        @workflow
        class Needy:
            def __init__(self, client: object) -> None: ...

            @step(1)
            async def one(self) -> int: ...

    told = get_definition_error(define)
    assert "`Needy()` does not work (missing a required argument: 'client')" in told
    assert "give those of `__init__` defaults" in told


async def _waits(n: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (_waits, "is async"),
        (step(_waits), "is a step"),
        (lambda a, b: True, "takes 'a', 'b', which is neither a step before it nor an input"),
        (lambda *a: True, "has the parameter `*a`"),
        (lambda self: True, "takes `self`"),
        (7, "when= is a function"),
    ],
)
def test_a_condition_is_a_plain_function_of_what_is_known(when: Any, words: str):
    def define() -> None:
        @workflow
        class Conditional:
            @step(1)
            async def one(self, n: int) -> int: ...

            @step(2, depends_on=1, when=when)
            async def two(self, one: int) -> int: ...

    assert words in get_definition_error(define)


def test_a_condition_of_a_first_step_may_use_only_inputs():
    def define() -> None:
        @workflow
        class Conditional:
            @step(1, when=lambda x: x)
            async def one(self, n: int) -> int: ...

    assert "(there are: n)" in get_definition_error(define)


def test_an_id_template_is_checked_as_for_functions():
    def define() -> None:
        @workflow(id="a-{n!r}")
        class Bad:
            @step(1)
            async def one(self, n: int) -> int: ...

    assert "id template" in get_definition_error(define)

    def define_with_keyword() -> None:
        @workflow(id="a-{class}")
        class Bad:
            @step(1)
            async def one(self, n: int) -> int: ...

    assert "rename it" in get_definition_error(define_with_keyword)


# Inheritance


class Base:
    @step(1)
    async def fetch(self, n: int) -> int:
        return n

    @step(2, depends_on=1)
    async def load(self, rows: int) -> int:
        return rows + self.offset()

    def offset(self) -> int:
        return 0


def test_the_steps_of_base_classes_count_and_a_name_replaces_one():
    @workflow
    class Derived(Base):
        @step(2, depends_on=1)
        async def load(self, rows: int) -> int:
            return -rows

        @step(3, depends_on=2)
        async def last(self, loaded: int) -> int: ...

    assert Derived.definition.step_numbers == {"fetch": 1, "load": 2, "last": 3}


def test_a_workflow_can_be_a_base_class():
    @workflow
    class Parent:
        @step(1)
        async def fetch(self, n: int) -> int: ...

    @workflow
    class Child(Parent):  # type: ignore[misc]
        @step(2, depends_on=1)
        async def load(self, rows: int) -> int: ...

    assert Child.definition.step_numbers == {"fetch": 1, "load": 2}
    assert Parent.definition.step_numbers == {"fetch": 1}

    @workflow
    async def function() -> int: ...

    with pytest.raises(DefinitionError, match="only a class workflow can be a base class"):

        class Wrong(function):  # type: ignore[misc, valid-type]
            pass


def test_a_number_that_a_base_class_has_taken_is_refused():
    def define() -> None:
        @workflow
        class Clash(Base):
            @step(2, depends_on=1)
            async def other(self, rows: int) -> int: ...

    assert "two steps have the number 2: 'load' and 'other'" in get_definition_error(define)


def test_a_step_that_is_replaced_by_a_plain_method_is_an_error():
    def define() -> None:
        @workflow
        class Lost(Base):
            async def load(self, rows: int) -> int: ...

    assert "put @step(2) on it" in get_definition_error(define)


# Names and places


def test_two_classes_of_one_name_are_refused_with_both_places():
    def one() -> Workflow[..., Any]:
        @workflow
        class Etl:
            @step(1)
            async def one(self) -> int: ...

        return Etl

    def two() -> Workflow[..., Any]:
        @workflow
        class Etl:
            @step(1)
            async def one(self) -> int: ...

        return Etl

    first = one()
    told = get_definition_error(two)
    line = inspect.getsourcelines(one)[1] + 1
    assert f"{HERE}:{line}" in told or f"{HERE}:{line + 1}" in told  # of the decorator, or of the class
    assert told.count(HERE) == 2
    assert definitions["Etl"] is first.definition
    second = one()
    assert definitions["Etl"] is second.definition


def test_a_cell_of_a_notebook_that_is_run_again_replaces_its_class():
    cell = "@workflow\nclass InCell:\n    @step(1)\n    async def {}(self) -> int: ...\n"
    for cell_number, method in enumerate(["one", "other"]):
        names: dict[str, Any] = {"workflow": workflow, "step": step, "__name__": "cells"}
        exec(compile(cell.format(method), f"<cell {cell_number}>", "exec"), names)
        assert definitions["InCell"].step_numbers == {method: 1}


def test_a_class_workflow_looks_like_its_class():
    @workflow
    class Documented:
        """Moves data."""

        @step(1)
        async def one(self) -> int: ...

    assert isinstance(Documented, Workflow)
    assert (Documented.name, Documented.__name__, Documented.__doc__) == ("Documented", "Documented", "Moves data.")
    assert Documented.__module__ == __name__
    assert repr(Documented) == "<workflow 'Documented'>"


def test_a_name_may_be_given():
    @workflow(name="etl", tags=["nightly"])
    class Named:
        @step(1)
        async def one(self) -> int: ...

    assert definitions["etl"] is Named.definition
    assert Named.definition.tags == ("nightly",)


# Decorators


def test_decorators_may_stand_in_any_order():
    class Above:
        @parallel(max_concurrency=3)
        @step(2, depends_on=1, retries=4)
        async def work(self, n: int) -> int: ...

    class Below:
        @step(2, depends_on=1, retries=4)
        @parallel(max_concurrency=3)
        async def work(self, n: int) -> int: ...

    above, below = vars(Above)["work"], vars(Below)["work"]
    assert isinstance(above, Step)
    assert isinstance(below, Step)
    assert above.declaration == below.declaration
    assert above.declaration is not None
    assert above.declaration.max_concurrency == 3
    assert above.definition.retry == below.definition.retry
    assert above.definition.retry.retries == 4


def test_parallel_needs_a_numbered_step():
    async def work(n: int) -> int: ...

    for define in (lambda: parallel(step(work)), lambda: step(parallel(work))):
        assert "`await holdfast.map(work, items)`" in get_definition_error(define)

    def alone() -> None:
        @workflow
        class Alone:
            @parallel
            async def work(self, n: int) -> int: ...

    assert "put @step(number) on it" in get_definition_error(alone)
    assert "goes on a method" in get_definition_error(lambda: parallel(5))  # type: ignore[type-var]


@pytest.mark.parametrize("most", [0, -1, True, "3", 1.5])
def test_a_concurrency_is_a_positive_whole_number(most: Any):
    with pytest.raises(DefinitionError, match="must be a whole number, 1 or more"):
        parallel(max_concurrency=most)


def test_a_fan_out_must_know_its_items():
    def two_dependencies() -> None:
        @workflow
        class Unclear:
            @step(1)
            async def left(self) -> list[int]: ...

            @step(2)
            async def right(self) -> list[int]: ...

            @parallel
            @step(3, depends_on=(1, 2))
            async def work(self, left: int, right: int) -> int: ...

    def none() -> None:
        @workflow
        class Unclear:
            @parallel
            @step(1)
            async def work(self, n: int) -> int: ...

    assert "each=, as in @step(3, each='left')" in get_definition_error(two_dependencies)
    assert "each=, as in @step(1, each='n')" in get_definition_error(none)


def test_each_names_a_parameter():
    def unknown() -> None:
        @workflow
        class Unknown:
            @step(1, each="m")
            async def work(self, n: int) -> int: ...

    def optional() -> None:
        @workflow
        class WithDefault:
            @step(1, each="n")
            async def work(self, n: int = 0) -> int: ...

    assert "each='m' names no parameter of step 1 (work); its parameters are: n" in get_definition_error(unknown)
    assert "cannot have a default" in get_definition_error(optional)
    with pytest.raises(DefinitionError, match="each= is the name of a parameter"):
        step(1, each=5)  # type: ignore[call-overload]


def test_what_may_be_none_is_seen_in_the_annotation():
    from holdfast.authoring.classes.parameter_bindings import can_be_none

    assert all(map(can_be_none, [None, Any, object, int | None, Optional[int], Literal["a", None]]))  # noqa: UP045
    assert not any(map(can_be_none, [int, list[None], Literal["a"], inspect.Parameter.empty]))
