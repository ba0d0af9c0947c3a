"""What a model is shown of a tool."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.agents.run_context import RunContext
from holdfast.agents.tools import Tool, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """Somewhere."""

    city: str = Field(title="Town", description="Its name.")
    zip: str | None = None


@dataclass
class Span:
    first: int
    last: int = 9


class Paging(TypedDict, total=False):
    page: int
    title: str


class Tree(BaseModel):
    below: list[Tree] = []


class Early(BaseModel):
    later: Later  # noqa: F821 - defined by a test, after a tool


def properties(made: Tool) -> dict[str, Any]:
    return made.schema["properties"]


def test_the_schema_comes_from_the_hints_and_the_docstring():
    @tool
    async def web_search(query: str, limit: int = 10) -> list[str]:
        """Search the web.

        Returns what is newest first.

        Args:
            query: What to look for,
                in plain words.
            limit: How many pages.
        """
        return []

    assert web_search.schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in plain words."},
            "limit": {"type": "integer", "default": 10, "description": "How many pages."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert web_search.description == "Search the web.\n\nReturns what is newest first."


def test_every_kind_of_annotation_has_a_schema():
    @tool
    def everything(
        flag: bool,
        colour: Colour,
        mode: Literal["fast", "slow"],
        words: list[str],
        counts: dict[str, int],
        day: date,
        key: UUID,
        either: int | str,
        place: Place,
        span: Span,
        paging: Paging,
        maybe: Optional[float] = None,  # noqa: UP045
        anything=3,
    ) -> None: ...

    assert everything.schema == {
        "type": "object",
        "properties": {
            "flag": {"type": "boolean"},
            "colour": {"$ref": "#/$defs/Colour"},
            "mode": {"type": "string", "enum": ["fast", "slow"]},
            "words": {"type": "array", "items": {"type": "string"}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "day": {"type": "string", "format": "date"},
            "key": {"type": "string", "format": "uuid"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "place": {"$ref": "#/$defs/Place"},
            "span": {"$ref": "#/$defs/Span"},
            "paging": {"$ref": "#/$defs/Paging"},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "anything": {"default": 3},
        },
        "required": [
            *("flag", "colour", "mode", "words", "counts", "day", "key", "either", "place", "span", "paging"),
        ],
        "additionalProperties": False,
        "$defs": {
            "Colour": {"type": "string", "enum": ["red", "blue"]},
            "Place": {
                "type": "object",
                "description": "Somewhere.",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "zip": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
            },
            "Span": {
                "type": "object",
                "properties": {"first": {"type": "integer"}, "last": {"type": "integer", "default": 9}},
                "required": ["first"],
                "additionalProperties": False,
            },
            "Paging": {
                "type": "object",
                # A field that is called `title` is no title.
                "properties": {"page": {"type": "integer"}, "title": {"type": "string"}},
                "additionalProperties": False,
            },
        },
    }


def test_a_single_model_stays_a_parameter_under_its_name():
    @tool
    async def visit(place: Place) -> None: ...

    assert visit.schema["required"] == ["place"]
    assert properties(visit) == {"place": {"$ref": "#/$defs/Place"}}


def test_a_tool_without_parameters_has_an_empty_object():
    @tool
    async def look() -> None: ...

    assert look.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert look.description == ""
    assert look.tool_definition.description is None


def test_the_description_of_a_field_wins_over_the_docstring():
    @tool
    async def roll(
        sides: Annotated[int, Field(description="From the field.", ge=2)], times: Annotated[int, Field(le=9)] = 1
    ) -> int:
        """Roll a die.

        Args:
            sides: From the docstring.
            times: Also from the docstring.
            nobody: Not a parameter.
        """
        return sides * times

    assert properties(roll) == {
        "sides": {"type": "integer", "minimum": 2, "description": "From the field."},
        "times": {"type": "integer", "maximum": 9, "default": 1, "description": "Also from the docstring."},
    }


def test_the_context_is_not_the_models():
    @tool
    async def find(ctx: RunContext[int], name: str) -> str:
        """Find somebody.

        Args:
            ctx: Not shown.
            name: Who.
        """
        return name

    assert find.has_context
    assert properties(find) == {"name": {"type": "string", "description": "Who."}}
    assert find.schema["required"] == ["name"]


def test_other_keywords_are_additional_properties():
    @tool
    async def tag(item: str, **labels: int) -> None: ...

    assert tag.schema == {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
        "additionalProperties": {"type": "integer"},
    }


def test_parameters_may_be_named_like_anything():
    @tool
    async def odd(schema: str, model_config: int, json: bool, _id: str = "", copy: int = 0) -> None: ...

    assert list(properties(odd)) == ["schema", "model_config", "json", "_id", "copy"]


def test_an_alias_of_a_parameter_means_nothing():
    @tool
    async def renamed(query: Annotated[str, Field(alias="q", validation_alias="qq")]) -> None: ...

    assert list(properties(renamed)) == ["query"]


@pytest.mark.filterwarnings("error")
def test_a_default_that_json_cannot_show_is_left_out_in_silence():
    nothing = object()

    @tool
    async def pick(item: Any = nothing) -> None: ...

    assert properties(pick) == {"item": {}}


def test_a_type_that_names_itself_has_a_schema():
    @tool
    async def plant(tree: Tree) -> None: ...

    below = {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}
    assert plant.schema["$defs"] == {"Tree": {"type": "object", "properties": {"below": below}}}


NUMPY = """Search the web.

    Newest first.

    Parameters
    ----------
    query : str
        What to look for,
        in words.
    limit : int, optional
        How many.

    Returns
    -------
    list of str
        The pages.

    Raises
    ------
    ValueError
        Never.
    """

SPHINX = """Search the web.

    Newest first.

    :param query: What to look for,
        in words.
    :param int limit: How many.
    :returns: The pages.
    :raises ValueError: Never.
    """

GOOGLE = """Search the web.

    Newest first.

    Args:
        query (str): What to look for,
            in words.
        limit (int, optional): How many.

    Returns:
        The pages.

    Raises:
        ValueError: Never.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_of_all_styles_are_read(docstring: str):
    async def search(query: str, limit: int = 10) -> list[str]:
        return []

    search.__doc__ = docstring
    made = tool(search)
    assert made.description == "Search the web.\n\nNewest first.\n\nReturns: The pages."
    assert {name: one["description"] for name, one in properties(made).items()} == {
        "query": "What to look for, in words.",
        "limit": "How many.",
    }


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        ("Search the web.", "Search the web."),
        ("", ""),
        ("   \n  Search.\n\n  Note: this one is slow.\n", "Search.\n\nNote: this one is slow."),
        ("\n    Args:\n        query: Only this.\n", ""),
        (":param query: Only this.", ""),
        ("Search.\n\nArgs:\n    query: This.\n\nNote:\n    It is slow.", "Search.\n\nNote: It is slow."),
        ("Search.\n\nExamples:\n    >>> search('x')\n    []", "Search.\n\nExamples:\n>>> search('x')\n[]"),
        ("Search.\n\nArgs:\n    query: This.\n\nMore of it.", "Search.\n\nMore of it."),
    ],
)
def test_the_description_is_the_docstring_without_the_parameters(docstring: str, description: str):
    async def search(query: str) -> None: ...

    search.__doc__ = docstring
    assert tool(search).description == description


def test_a_description_that_is_given_wins_and_the_parameters_keep_theirs():
    @tool(name="web-search", description="  Look it up. ")
    async def search(query: str) -> None:
        """Search.

        Args:
            query: What.
        """

    definition = search.tool_definition
    assert (definition.name, definition.description) == ("web-search", "Look it up.")
    assert definition.parameters_json_schema == search.schema
    assert properties(search)["query"]["description"] == "What."


def test_a_type_may_be_defined_after_the_tool_that_takes_it():
    @tool
    async def wait(early: Early) -> None: ...

    globals()["Later"] = type("Later", (BaseModel,), {"__annotations__": {"x": int}, "__module__": __name__})
    try:
        assert wait.schema["$defs"]["Early"]["properties"] == {"later": {"$ref": "#/$defs/Later"}}
    finally:
        del globals()["Later"]


def test_defining_a_tool_imports_neither_the_model_library_nor_the_docstring_parser():
    script = """
import sys
from holdfast.agents.tools import tool

@tool
async def search(query: str) -> str:
    '''Search.

    Args:
        query: What.
    '''

print([name for name in ("pydantic_ai", "griffe") if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
