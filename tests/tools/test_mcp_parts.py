"""What is made of what an MCP server says: names, schemas, pages, results."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest

from holdfast.agents.tool_results import restore_images
from holdfast.errors import InvalidToolArguments, McpError, UsageError
from holdfast.tools import mcp_stdio
from holdfast.tools.mcp import process_transport, results, server
from holdfast.tools.mcp.connect import list_all_tools
from holdfast.tools.mcp.connection import OpenConnection
from holdfast.tools.mcp.process_transport import StderrLog
from holdfast.tools.mcp.schema_parameters import SchemaParameters
from holdfast.tools.mcp.secret_redaction import SecretRedactor

NOTHING: dict[str, Any] = {"type": "object"}


def named(name: str, schema: dict[str, Any] = NOTHING) -> types.Tool:
    return types.Tool(name=name, input_schema=schema)


def fit(*tools: types.Tool, prefix: str = "") -> list[str]:
    return [one.name for one in mcp_stdio("x", name="fitting", prefix=prefix)._select_tools(list(tools))]


# Names


@pytest.mark.parametrize(
    ("given", "name"),
    [("a.b/c d", "a_b_c_d"), ("größe", "gr__e"), ("x" * 100, "x" * 64), ("ok-1_A", "ok-1_A")],
)
def test_a_name_that_no_provider_accepts_is_made_fit(given: str, name: str) -> None:
    assert fit(named(given)) == [name]


def test_a_tool_that_no_model_can_use_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    large = {"type": "object", "description": "x" * server.MAX_SCHEMA_CHARS}
    made = mcp_stdio("x", name="leaving")
    tools = [named(""), named("final_result"), named("a b"), named("a_b"), named("large", large)]
    for _ in range(2):
        assert [one.name for one in made._select_tools(tools)] == ["a_b"]
    told = [record.getMessage() for record in caplog.records]
    assert [one.partition("left out: ")[2][:30] for one in told] == [
        "it: a model could not call it ",
        "it: 'final_result' is how mode",
        "another one is called 'a_b' al",
        "its schema has more than 50,00",
    ]


def test_of_very_many_tools_not_all_are_offered() -> None:
    assert len(fit(*(named(f"t{number}") for number in range(server.MAX_TOOLS + 5)))) == server.MAX_TOOLS


# Arguments


def refused(schema: dict[str, Any], given: Any) -> list[str]:
    with pytest.raises(InvalidToolArguments) as refusal:
        SchemaParameters("tool", {"type": "object", **schema}).validate(given, None)
    return [line[2:] for line in str(refusal.value).splitlines() if line.startswith("- ")]


@pytest.mark.parametrize(
    ("schema", "given", "told"),
    [
        ({"required": ["a", "b"]}, {}, ["a is missing", "b is missing"]),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "z"}, ["a should be one of 'x', 'y'; it was 'z'"]),
        (
            {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
            {"a": 1},
            ["a should be of type string or null; it was 1"],
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "object", "required": ["n"]}}}},
            {"a": [{"n": 1}, {}]},
            ["a[1].n is missing"],
        ),
        (
            {
                "properties": {
                    "a": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
                }
            },
            {"a": {"n": "x", "m": 1}},
            ["a.m is not a field there", "a.n should be of type integer; it was 'x'"],
        ),
        (
            {"properties": {"password": {"maxLength": 3}}},
            {"password": "abcd"},
            ["password should have 3 characters or"],
        ),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "y"}, ["a should match '^x'; it was 'y'"]),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, ["a do not fit the rule 'uniqueItems'"]),
        ({"minProperties": 1}, {}, ["they do not fit the rule 'minProperties'"]),
    ],
)
def test_arguments_that_do_not_fit_a_schema_are_reported_with_their_path(
    schema: dict[str, Any], given: dict[str, Any], told: list[str]
) -> None:
    found = sorted(refused(schema, given))
    assert len(found) == len(told)
    assert all(one.startswith(begin) for one, begin in zip(found, told, strict=True)), found
    assert "abcd" not in " ".join(found)


def test_a_similar_name_is_suggested() -> None:
    schema = {"properties": {"place": {}}, "additionalProperties": False}
    assert refused(schema, '{"plase": 1}') == ["plase is not a parameter; did you mean 'place'?"]


@pytest.mark.parametrize("given", [None, "", "null", "{}", {}])
def test_no_arguments_at_all_are_an_empty_object(given: Any) -> None:
    assert SchemaParameters("tool", NOTHING).validate(given, None) == ([{}], {})


def test_a_schema_that_refers_to_elsewhere_is_not_fetched_and_refuses_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    assert SchemaParameters("tool", schema).validate({"a": 1}, None) == ([{"a": 1}], {})


def test_an_invalid_recorded_schema_is_reported() -> None:
    with pytest.raises(UsageError, match="cannot be checked: its schema is none"):
        SchemaParameters("tool", {"type": "nonsense"}).validate({}, None)


# Pages


def pages(*cursors: str | None) -> OpenConnection:
    following = iter(cursors)

    async def list_tools(params: types.PaginatedRequestParams) -> types.ListToolsResult:
        cursor = next(following)
        return types.ListToolsResult(tools=[named(f"after-{params.cursor}")], next_cursor=cursor)

    return OpenConnection(SimpleNamespace(list_tools=list_tools))  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_listing_that_does_not_end_is_given_up() -> None:
    assert [tool.name for tool in await list_all_tools(pages("1", "2", None), "x")] == [
        "after-None",
        "after-1",
        "after-2",
    ]
    with pytest.raises(McpError, match="lists its tools without end"):
        await list_all_tools(pages("1", "2", "1"), "x")
    with pytest.raises(McpError, match="on more than 100 pages"):
        await list_all_tools(pages(*map(str, range(1000))), "x")


# Results


def test_several_texts_are_one_and_nothing_is_nothing() -> None:
    text = [types.TextContent(text="a"), types.TextContent(text="b")]
    assert results.to_plain(types.CallToolResult(content=text)) == "a\nb"  # type: ignore[arg-type]
    assert results.to_plain(types.CallToolResult(content=[])) is None


def test_a_large_structured_result_is_cut_with_a_note() -> None:
    large = types.CallToolResult(content=[], structured_content={"rows": ["x" * 1000] * 200})
    found = results.to_plain(large)
    assert found.startswith('{"rows": ["xxx')
    assert found.endswith("of which these are the first 100,000]")


def test_images_are_bounded_and_only_those_are_shown_that_every_model_takes() -> None:
    def images(*blocks: types.ImageContent) -> Any:
        return results.to_plain(types.CallToolResult(content=list(blocks)))

    one = types.ImageContent(data="aGk=", mime_type="image/png")
    assert images(one) == {"$image": "image/png", "base64": "aGk="}
    assert len(images(*[one] * 20)) == results.MAX_IMAGES + 1
    assert images(types.ImageContent(data="aGk=", mime_type="image/svg+xml")) == {
        "left out": "image of type image/svg+xml, 3 bytes"
    }
    huge = types.ImageContent(data="a" * (results.MAX_IMAGE_CHARS + 1), mime_type="image/png")
    assert images(huge) == {"left out": "image of type image/png, 3,750,000 bytes"}


def test_what_only_looks_like_an_image_is_shown_as_it_is() -> None:
    odd = [{"$image": "text/html", "base64": "aGk="}, {"$image": "image/png"}, "x"]
    assert restore_images(odd) == odd
    assert (
        restore_images({"$image": "image/png", "base64": "???"}) == "(an image of type image/png that cannot be read)"
    )


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (types.CallToolResult(content=[], is_error=True), "the server does not say why"),
        (types.CallToolResult(content=[], structured_content={"no": 1}, is_error=True), '{"no": 1}'),
    ],
)
def test_a_failure_without_a_message_is_reported(result: types.CallToolResult, words: str) -> None:
    assert results.format_error(result) == words


# What a server writes to its stderr


def test_what_a_server_complains_of_is_logged_in_bounds_and_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.tools.mcp")
    complaints = StderrLog("complaining", SecretRedactor(["hunter2-secret"]))
    lines = [f"{number} hunter2-secret" for number in range(process_transport.MAX_LINES_PER_WINDOW + 50)]
    complaints.write_end.write("\n".join(["x" * 5000, "", *lines, "the end", " "]) + "\n")
    complaints.close_write_end()
    complaints.reader_thread.join()
    told = [record.getMessage() for record in caplog.records if record.name == "holdfast.tools.mcp.complaining"]
    assert [len(one) for one in told[:3]] == [2000, 2000, 1000]
    assert told[3] == "0 ***"
    assert len(told) == process_transport.MAX_LINES_PER_WINDOW + 1
    assert told[-1] == "54 more lines are not shown"
    assert asyncio.run(complaints.read_last_line()) == "the end"


def test_secrets_are_redacted_longest_first_and_old_ones_are_forgotten() -> None:
    secrets = SecretRedactor(["Bearer abcdefgh", "abcdefghij", "on"])
    assert secrets.redact("abcdefghij, abcdefgh, on") == "***, ***, on"
    secrets.add(f"token-{number}" for number in range(1000))
    assert secrets.redact("abcdefgh token-1 token-999") == "abcdefgh token-1 ***"
