"""The record of a model's answer: what is in it, and who can read it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pydantic_ai
import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from holdfast.admission.usage import Usage
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.codec import decode_plain
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.reports.recorded_reply import FORMAT_VERSION, FailedModel, ToolCallReport, decode_reply

WHEN = datetime(2026, 11, 15, tzinfo=UTC)


def reply(*parts: Any, **fields: Any) -> Reply:
    return Reply(ModelResponse(list(parts), timestamp=WHEN), "openai:gpt-4o", Usage(1, 10, 5, nano_usd=7), **fields)


def envelope(one: Reply) -> dict[str, Any]:
    return json.loads(REPLY_CODEC.encode(one, "it"))


def test_the_workflow_sees_the_answer_as_it_is_read_from_the_record():
    response = ModelResponse([TextPart("Hi")], timestamp=WHEN, provider_details={"timestamp": WHEN})
    data, seen = REPLY_CODEC.round_trip(Reply(response, "test", Usage(1)), "it")
    assert isinstance(seen, Reply)
    assert seen.response.provider_details == {"timestamp": "2026-11-15T00:00:00Z"}
    assert REPLY_CODEC.decode(data, "it") == seen
    assert REPLY_CODEC.round_trip(seen, "it") == (data, seen)


def test_the_envelope_names_its_format_and_the_library():
    data = envelope(reply(TextPart("Hi")))
    assert list(data) == ["$model", "library", "model", "message", "usage"]
    assert (data["$model"], data["library"]) == (FORMAT_VERSION, pydantic_ai.__version__)
    assert data["usage"] == {"calls": 1, "input_tokens": 10, "output_tokens": 5, "nano_usd": 7}


def test_failed_models_and_the_feedback_are_recorded():
    one = reply(TextPart("Hi"), failed_models=(FailedModel("a:b", "no", 6),), feedback="Not so.")
    data = envelope(one)
    assert data["failed_models"] == [{"model": "a:b", "error": "no", "attempts": 6}]
    assert data["feedback"] == "Not so."
    assert REPLY_CODEC.decode(REPLY_CODEC.encode(one, "it"), "it") == one


def test_an_answer_of_a_newer_version_that_has_only_more_in_it_can_be_read():
    data = envelope(reply(TextPart("Hi")))
    data["library"] = "9.1.0"
    data["mood"] = "good"
    data["usage"]["video_frames"] = 3
    data["failed_models"] = [{"model": "a", "error": "e", "attempts": 2, "status": 500}]
    data["message"]["tempo"] = 1
    data["message"]["parts"][0]["pitch"] = 3
    read = REPLY_CODEC.decode(json.dumps(data, separators=(",", ":")).encode(), "it")
    assert read == reply(TextPart("Hi"), failed_models=(FailedModel("a", "e", 2),))


def test_the_error_for_an_answer_of_a_newer_library_names_both_versions():
    data = envelope(reply(TextPart("Hi")))
    data["message"]["parts"].append({"other": {"part_kind": "hologram"}, "library": "9.1.0"})
    recorded = json.dumps(data, separators=(",", ":")).encode()
    with pytest.raises(UnreadableRecord, match=rf"9\.1\.0 of pydantic-ai.*{pydantic_ai.__version__}"):
        REPLY_CODEC.decode(recorded, "it")
    plain = decode_reply(recorded)
    assert plain is not None
    assert plain.text == "Hi"


@pytest.mark.parametrize("read", [lambda data: REPLY_CODEC.decode(data, "it"), decode_reply], ids=["whole", "plain"])
def test_another_format_says_to_upgrade(read: Any):
    data = {**envelope(reply(TextPart("Hi"))), "$model": FORMAT_VERSION + 1}
    with pytest.raises(
        UnreadableRecord, match=rf"format {FORMAT_VERSION + 1}.*newer.*pip install --upgrade holdfast-agents"
    ):
        read(json.dumps(data, separators=(",", ":")).encode())


def test_plain_parts_are_read_without_the_library():
    one = reply(
        ThinkingPart("Hm."),
        TextPart("Let "),
        TextPart("me look."),
        ToolCallPart("look", '{"at": 1}', "c1"),
        TextPart("Wait."),
        ToolCallPart("weigh", {"grams": 2}, "c2"),
        failed_models=(FailedModel("a", "e"),),
        feedback="No.",
    )
    plain = decode_reply(REPLY_CODEC.encode(one, "it"))
    assert plain is not None
    assert plain.text == one.response.text == "Let me look.\n\nWait."
    assert plain.thinking == "Hm."
    assert plain.tool_calls == (
        ToolCallReport("c1", "look", {"at": 1}),
        ToolCallReport("c2", "weigh", {"grams": 2}),
    )
    assert (plain.model, plain.usage, plain.failed_models, plain.feedback) == (
        one.model,
        one.usage,
        one.failed_models,
        "No.",
    )


def test_reading_plain_parts_imports_no_model_library():
    code = (
        "import sys; from holdfast.reports.recorded_reply import decode_reply\n"
        f"plain = decode_reply({REPLY_CODEC.encode(reply(TextPart('Hi')), 'it')!r})\n"
        "assert plain.text == 'Hi', plain\n"
        "assert 'pydantic_ai' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("payload", [b"null", b"", b'{"a":1}', b'\x01{"$model":1}'])
def test_other_payloads_are_not_answers(payload: bytes):
    assert decode_reply(payload) is None
    with pytest.raises(UnreadableRecord, match="It is not the record of a model's answer"):
        REPLY_CODEC.decode(payload, "it")


def test_a_bare_text_from_a_fork_is_an_answer():
    reply = REPLY_CODEC.decode(b'"twelve"', "it")
    assert (reply.response.text, reply.model, reply.usage, reply.feedback) == ("twelve", "", Usage(), None)
    assert reply == REPLY_CODEC.decode(b'"twelve"', "it")
    assert decode_reply(b'"twelve"') is None  # any step may return a text


@pytest.mark.parametrize(
    "payload", [b'{"$model":1', b'{"$model":1}', b'{"$model":1,"message":{"parts":[{"call":"x"}]}}']
)
def test_a_damaged_answer_is_unreadable(payload: bytes):
    with pytest.raises(UnreadableRecord):
        REPLY_CODEC.decode(payload, "it")
    with pytest.raises(UnreadableRecord):
        decode_reply(payload)


def test_anybody_can_see_the_record_as_plain_data():
    assert decode_plain(REPLY_CODEC.encode(reply(TextPart("Hi")), "it"))["message"]["parts"] == [{"text": "Hi"}]  # type: ignore[index]


def test_halves_of_surrogate_pairs_do_not_lose_the_answer():
    one = reply(TextPart("a\ud83d\ude00b\ud800"), ToolCallPart("t", {"k\udc00": ["\udfff"]}, "c"))
    _, seen = REPLY_CODEC.round_trip(one, "it")
    assert isinstance(seen, Reply)
    text, call = seen.response.parts
    assert text.content == "a😀b\ufffd"
    assert call.args == {"k\ufffd": ["\ufffd"]}


def test_only_replies_can_be_recorded():
    with pytest.raises(UnrecordableValue, match="The answer cannot be recorded: it is a `str`"):
        REPLY_CODEC.round_trip("Hi", "the answer")


def test_a_part_that_is_not_what_it_is_declared_to_be_cannot_be_recorded():
    broken = TextPart("Hi", citations=["nobody"])  # type: ignore[list-item]
    with pytest.raises(UnrecordableValue, match="The answer cannot be recorded"):
        REPLY_CODEC.round_trip(reply(broken), "the answer")
