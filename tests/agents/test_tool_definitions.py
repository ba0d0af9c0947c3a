"""``@tool`` takes functions that a model can call, and refuses others when they are defined."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import sys
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Union, Unpack

import pydantic_ai
import pytest
import typing_extensions
from pydantic import Field
from tool_calls import own_workflows  # noqa: F401 - used by every test
from typing_extensions import TypedDict

from holdfast import step, workflow
from holdfast.agents.run_context import RunContext
from holdfast.agents.tools import Tool, to_tool, tool
from holdfast.authoring.parallel import parallel
from holdfast.core.states import Effect
from holdfast.errors import DefinitionError, InvalidToolArguments, ModelRetry, UsageError
from holdfast.testing import Runner


class Keys(TypedDict):
    key: str


class OldKeys(typing.TypedDict):
    key: str


class OwnContext(RunContext[int]):
    pass


async def with_old_typed_dict(keys: OldKeys) -> None: ...
async def with_args(*words: str) -> None: ...
async def with_unpacked(**keys: Unpack[Keys]) -> None: ...
async def with_unpacked_too(**keys: typing_extensions.Unpack[Keys]) -> None: ...
async def with_socket(connection: socket.socket) -> None: ...
async def with_callable(query: str, then: Callable[[], None]) -> None: ...
async def with_field(query: str = Field(description="what")) -> None: ...
async def with_late_context(query: str, ctx: RunContext[int]) -> None: ...
async def with_named_context(*, ctx: RunContext[int]) -> None: ...
async def with_contexts(*ctx: RunContext[int]) -> None: ...
async def with_maybe_context(ctx: Union[RunContext[int], None]) -> None: ...  # noqa: UP007
async def with_own_context(ctx: OwnContext) -> None: ...
async def with_foreign_context(ctx: pydantic_ai.RunContext[int]) -> None: ...
async def with_lost_type(query: Lost) -> None: ...  # noqa: F821
async def with_generator(query: str):
    yield query


class Someone:
    async def method(self, query: str) -> str:
        """Ask somebody.

        Args:
            query: What.
        """
        return f"{type(self).__name__}: {query}"

    @classmethod
    async def of_class(cls, query: str) -> None: ...

    @staticmethod
    async def of_none(query: str) -> None: ...

    async def __call__(self, query: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (with_args, "takes *words, and a model passes arguments by name: take a list, `words: list[...]`, instead"),
        (with_unpacked, "takes **keys of an unpacked TypedDict: write its keys as parameters"),
        (with_unpacked_too, "takes **keys of an unpacked TypedDict: write its keys as parameters"),
        (
            with_socket,
            "parameter 'connection' is a socket, which a model cannot send as JSON. What is the",
        ),
        (with_callable, "parameter 'then' is a Callable, which a model cannot send as JSON"),
        (with_field, "handed as it is: write `query: Annotated[..., Field(...)]`, and its default behind it"),
        (with_late_context, "a tool takes a RunContext as its first parameter"),
        (with_named_context, "a tool takes a RunContext as its first parameter"),
        (with_contexts, "a tool takes a RunContext as its first parameter"),
        (with_maybe_context, "a tool takes a RunContext as its first parameter"),
        (with_own_context, "a tool takes a RunContext as its first parameter"),
        (with_foreign_context, "use holdfast.RunContext in place of pydantic_ai's"),
        (with_lost_type, "an annotation cannot be resolved"),
        (with_generator, "is a generator; a tool returns one value: collect the items"),
        (Someone.method, "takes 'self': @tool goes on a function, not on a method of a class"),
        (Someone.__dict__["of_class"], "@tool goes on an ordinary function, and 'Someone.of_class' is a classmethod"),
        (Someone.__dict__["of_none"], "@tool goes on an ordinary function, and 'Someone.of_none' is a staticmethod"),
        (Someone(), "@tool goes on a function, not on <test_tool_definitions.Someone object"),
        (functools.partial(with_args), "@tool goes on a function, not on functools.partial"),
        (Someone, "@tool goes on a function, not on <class"),
        (lambda: None, "a model could not call it by this name"),
        (3, "@tool goes on a function, not on 3"),
        (parallel(lambda self, item: item), "@parallel goes with @step, not with @tool"),
    ],
)
def test_what_no_model_can_call_is_refused(function: Any, words: str):
    with pytest.raises(DefinitionError) as refused:
        tool(function)
    assert words in str(refused.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads it from then on")
def test_the_typed_dict_of_old_pythons_is_refused_with_the_one_to_use():
    with pytest.raises(DefinitionError, match=r"parameter 'keys' has no JSON schema: .*typing_extensions.TypedDict"):
        tool(with_old_typed_dict)


def test_a_function_that_is_wrapped_is_shown_as_itself():
    @functools.wraps(Someone.of_none)
    async def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert list(tool(wrapper).schema["properties"]) == ["query"]


@pytest.mark.parametrize("name", ["", "web search", "a.b", "x" * 65, "añadir", "a\n", "final_result"])
def test_names_are_those_that_every_provider_accepts(name: str):
    async def search(query: str) -> None: ...

    if not name:
        assert tool(name=name)(search).name == "search"
        return
    with pytest.raises(DefinitionError, match="give it another"):
        tool(name=name)(search)


@pytest.mark.parametrize("name", ["web_search", "web-search", "X9", "x" * 64])
def test_all_other_names_are_accepted(name: str):
    async def search(query: str) -> None: ...

    assert tool(name=name)(search).name == name


def test_the_options_are_those_of_a_step():
    @tool(
        retries=3,
        backoff=0.5,
        max_backoff=timedelta(minutes=1),
        retry_on=ConnectionError,
        give_up_on=ConnectionRefusedError,
        timeout=30,
        effect="read",
    )
    async def search(query: str) -> None: ...

    definition = search.definition
    assert (definition.effect, definition.timeout_s) == (Effect.READ, 30)
    retry = definition.retry
    assert (retry.retries, retry.backoff, retry.max_backoff) == (3, 0.5, 60)
    wanted = [ConnectionError(), ConnectionRefusedError(), ValueError()]
    assert [retry.should_retry(1, error) for error in wanted] == [True, False, False]


@pytest.mark.parametrize("options", [{}, {"retry_on": Exception}, {"retry_on": lambda error: True}])
def test_what_the_model_has_to_hear_is_never_retried(options: Any):
    @tool(retries=3, **options)
    async def search(query: str) -> None: ...

    retry = search.definition.retry
    for error in (ModelRetry("no"), pydantic_ai.ModelRetry("no"), InvalidToolArguments("no")):
        assert not retry.should_retry(1, error)
    assert retry.should_retry(1, ValueError())


def test_options_that_cannot_work_are_refused():
    with pytest.raises(DefinitionError, match=r"tool 'pay' .* has effect='once', so it gets one attempt"):

        @tool(effect="once", retries=2)
        async def pay(amount: int) -> None: ...

    with pytest.raises(DefinitionError, match="@tool goes on a function, not on <tool 'search'>"):

        @tool
        @tool
        async def search(query: str) -> None: ...

    with pytest.raises(DefinitionError, match="@step goes on a function, not on <tool 'find'>"):

        @step
        @tool
        async def find(query: str) -> None: ...


def test_a_tool_is_no_step_of_a_class_workflow():
    with pytest.raises(DefinitionError, match="not on a method of a class"):

        class Flow:
            @tool
            async def search(self, query: str) -> None: ...


def test_an_agent_is_given_tools_or_functions():
    async def search(query: str) -> None:
        """Search."""

    made = to_tool(search, "agent 'x'")
    assert isinstance(made, Tool)
    assert (made.name, made.description) == ("search", "Search.")
    assert to_tool(made, "agent 'x'") is made

    method = to_tool(Someone().method, "agent 'x'")
    assert (method.name, list(method.schema["properties"])) == ("method", ["query"])
    assert asyncio.run(method("why")) == "Someone: why"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (step(with_generator.__class__(with_field.__code__, {}, "plain")), "'plain' is a step.*write @tool"),
        ("search", "a tool is a function, with @tool or without, and not 'search'"),
        (Someone(), "a tool is a function"),
        (None, "and not None"),
    ],
)
def test_and_nothing_else(given: Any, words: str):
    with pytest.raises(DefinitionError, match=rf"agent 'x': .*{words}"):
        to_tool(given, "agent 'x'")


def test_a_tool_looks_like_its_function():
    @tool
    async def search(query: str, limit: Annotated[int, Field(ge=1)] = 3) -> str:
        """Search."""
        return query

    assert search.__name__ == "search"
    assert search.__doc__ == "Search."
    assert str(inspect.signature(search)) == "(query: 'str', limit: 'Annotated[int, Field(ge=1)]' = 3) -> 'str'"
    assert repr(search) == "<tool 'search'>"


def test_outside_a_run_it_is_a_plain_call():
    @tool
    async def search(ctx: RunContext[dict[str, str]], query: str) -> str:
        ctx.heartbeat("on it")
        return f"{ctx.deps['prefix']}{query}{ctx.progress}{ctx.attempt}"

    @tool
    def double(number: int) -> int:
        return 2 * number

    assert asyncio.run(search(RunContext({"prefix": ">"}), "x")) == ">xNone1"
    assert double(4) == 8


@pytest.mark.asyncio
async def test_in_workflow_code_it_is_a_recorded_step():
    @tool
    async def shout(word: str) -> str:
        return word.upper()

    @tool
    def double(number: int) -> int:
        return 2 * number

    @workflow
    async def flow() -> str:
        return f"{await shout('hi')} {await double(4)}"

    result = await Runner().run(flow)
    assert result.output == "HI 8"
    assert [one.name for one in result.steps] == ["shout", "double"]


@pytest.mark.asyncio
async def test_workflow_code_cannot_call_a_tool_that_takes_a_context():
    @tool
    async def find(ctx: RunContext[None], query: str) -> str:
        return query

    @workflow
    async def flow() -> str:
        try:
            return await find(RunContext(None), "x")
        except UsageError as error:
            return str(error)

    told = (await Runner().run(flow)).output
    assert told.startswith("tool 'find' takes a RunContext, which only a call by an agent's model has")
