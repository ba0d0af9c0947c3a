"""``OutputSpec``: how an answer of a type is asked for, checked and read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart

from holdfast import DefinitionError
from holdfast.admission.usage import Usage
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.output import OutputSpec, make_correction
from holdfast.errors import UnreadableRecord
from holdfast.reports.recorded_reply import decode_reply

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class City:
    """A place with many people."""

    name: str
    size: int


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Aliased(BaseModel):
    family_name: str = Field(alias="familyName")


def make_response(*parts: Any, finish_reason: Any = None) -> ModelResponse:
    return ModelResponse(list(parts), finish_reason=finish_reason)


def make_answer(args: Any, **options: Any) -> ModelResponse:
    return make_response(ToolCallPart("final_result", args, "id-1"), **options)


FITTING: list[tuple[Any, Any, Any]] = [
    (int, {"response": 4}, 4),
    (int, '{"response": "4"}', 4),
    (bool, {"response": False}, False),
    (date, {"response": "2026-01-02"}, date(2026, 1, 2)),
    (Literal["a", "b"], {"response": "a"}, "a"),
    (list[City], '{"response": [{"name": "Oslo", "size": 1}]}', [City("Oslo", 1)]),
    (dict[str, int], {"response": {"a": 1}}, {"a": 1}),
    (City | None, {"response": None}, None),
    (str | int, {"response": 4}, 4),
    (City, {"name": "Oslo", "size": 1}, City("Oslo", 1)),
    (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree(name="a", children=[Tree(name="b")])),
    (Aliased, {"familyName": "x"}, Aliased(familyName="x")),
]


@pytest.mark.parametrize(("output_type", "args", "value"), FITTING)
def test_an_answer_that_fits_is_read_with_and_without_the_model_library(
    output_type: Any, args: Any, value: Any
) -> None:
    output = OutputSpec(output_type)
    response = make_answer(args)
    assert output.get_feedback(response) is None
    assert output.is_final(response)
    assert output.read(response) == value
    plain = decode_reply(REPLY_CODEC.encode(Reply(response, "m", Usage()), "x"))
    assert plain is not None
    assert output.read_plain(plain) == value


def test_the_answer_of_a_model_without_calls_is_its_text() -> None:
    output = OutputSpec(str)
    answer = make_response(ThinkingPart("hm"), TextPart("Hello"))
    assert (output.get_feedback(answer), output.is_final(answer), output.read(answer)) == (None, True, "Hello")
    on_the_way = make_response(TextPart("Let me see"), ToolCallPart("search", {}))
    assert (output.get_feedback(on_the_way), output.is_final(on_the_way)) == (None, False)
    for empty in (make_response(), make_response(TextPart(" \n")), make_response(ThinkingPart("hm"))):
        assert output.get_feedback(empty) == "Your answer is empty. Please answer."
        assert not output.is_final(empty)


@pytest.mark.parametrize(
    ("output_type", "response", "told"),
    [
        (
            City,
            make_response(TextPart("Oslo")),
            "Please give your answer by calling the tool `final_result`, not as a text.",
        ),
        (City, make_response(), "Please give your answer by calling the tool `final_result`"),
        (City, make_answer({"name": 3}), "- name: Input should be a valid string\n- size: Field required\nPlease call"),
        (City, make_answer('{"name": "Os'), "The arguments of `final_result` are not JSON"),
        (City, make_answer('{"name": "Os', finish_reason="length"), "cut off at the limit of tokens"),
        (City, make_answer("[]"), "The answer does not fit"),
        (City, make_answer(None), "- name: Field required"),
        (
            list[City],
            make_answer({"response": [{"name": "a", "size": 1}, {"name": "b"}]}),
            "- response[1].size: Field required",
        ),
        (int, make_answer({"answer": 4}), "`final_result` takes one argument, `response`"),
    ],
)
def test_an_answer_that_does_not_fit_has_feedback(output_type: Any, response: ModelResponse, told: str) -> None:
    output = OutputSpec(output_type)
    complaint = output.get_feedback(response)
    assert complaint is not None
    assert told in complaint
    assert not output.is_final(response)
    with pytest.raises(UnreadableRecord, match="If the type has changed since"):
        output.read(response)


def test_a_valid_answer_is_final_whatever_else_is_called() -> None:
    output = OutputSpec(int)
    both = make_response(ToolCallPart("search", {}), ToolCallPart("final_result", {"response": 4}))
    assert (output.get_feedback(both), output.is_final(both), output.read(both)) == (None, True, 4)
    second = make_response(
        ToolCallPart("final_result", {"response": "x"}), ToolCallPart("final_result", {"response": 5})
    )
    assert (output.get_feedback(second), output.read(second)) == (None, 5)
    other = make_response(ToolCallPart("search", {}))
    assert (output.get_feedback(other), output.is_final(other)) == (None, False)


def test_the_model_is_offered_one_more_tool_for_a_type_and_none_for_a_text() -> None:
    text = OutputSpec(str).make_parameters([], "Be kind.")
    assert (text.output_mode, text.output_tools, text.allow_text_output) == ("text", [], True)
    assert [part.content for part in text.instruction_parts or []] == ["Be kind."]
    [tool] = OutputSpec(City).make_parameters([], None).output_tools
    assert tool.name == "final_result"
    assert tool.outer_typed_dict_key is None
    assert tool.parameters_json_schema["required"] == ["name", "size"]
    assert tool.description is not None
    assert "final answer" in tool.description
    wanted = OutputSpec(list[City]).make_parameters([], None)
    assert (wanted.output_mode, wanted.allow_text_output) == ("tool", False)
    [tool] = wanted.output_tools
    schema = tool.parameters_json_schema
    assert schema["properties"]["response"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["City"]["required"] == ["name", "size"]
    [tool] = OutputSpec(Tree).make_parameters([], None).output_tools  # it names itself
    assert tool.parameters_json_schema["type"] == "object"
    assert set(tool.parameters_json_schema["properties"]) == {"name", "children"}


def test_a_correction_replies_to_every_call() -> None:
    [told] = make_correction(make_response(TextPart("Oslo")), "no text", NOON).parts
    assert isinstance(told, UserPromptPart)
    assert told.content == "no text"
    calls = make_response(ToolCallPart("final_result", {}, "a"), ToolCallPart("search", {}, "b"))
    parts = make_correction(calls, "wrong", NOON).parts
    assert [(part.tool_call_id, part.content) for part in parts if isinstance(part, ToolReturnPart)] == [
        ("a", "wrong"), ("b", "Not called, because final_result was called beside it."),
    ]  # fmt: skip


@pytest.mark.parametrize("output_type", [Callable[[], int], type(sys)])
def test_a_type_that_cannot_be_an_answer_is_refused(output_type: Any) -> None:
    with pytest.raises(DefinitionError):
        OutputSpec(output_type)


def test_declaring_and_reading_need_no_model_library() -> None:
    code = (
        "import sys; from holdfast.agents.output import OutputSpec; "
        "from holdfast.reports.recorded_reply import ToolCallReport, ModelCallReport; from holdfast import Usage; "
        "call = ToolCallReport('x', 'final_result', {'response': [1]}); "
        "reply = ModelCallReport('m', '', '', (call,), None, (), Usage(), None); "
        "assert OutputSpec(list[int]).read_plain(reply) == [1]; "
        "assert 'pydantic_ai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_feedback_for_a_long_answer_is_short():
    call = ToolCallPart("final_result", {"response": ["x"] * 500}, "call_1")
    complaint = OutputSpec(list[int]).get_feedback(ModelResponse([call]))
    assert complaint is not None
    assert "- and 480 more" in complaint
    assert len(complaint) < 3000
