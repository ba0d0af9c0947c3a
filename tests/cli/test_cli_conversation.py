"""Conversations from records that were written by hand: what no script of a model makes."""

from __future__ import annotations

import json
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.records import Record, RecordKind
from holdfast.reports.conversations import ConversationMessage, build_conversation, message_to_json
from holdfast.reports.model_replies import decode_budget_exceeded, extract_answer
from holdfast.reports.recorded_reply import reply_from_record


def reply(*parts: dict[str, Any], number: int = 1, **more: Any) -> bytes:
    message = {"role": "model", "parts": list(parts)}
    envelope = {
        "$model": number,
        "library": "2.66.0",
        "model": "openai:gpt-4o",
        "message": message,
        "usage": {"calls": 1},
    }
    return json.dumps({**envelope, **more}, separators=(",", ":")).encode()


def call(name: str, args: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"call": name, "tool_call_id": call_id, "args": args}


def record(
    position: int, payload: bytes, name: str = "model call", *, ok: bool = True, kind: RecordKind = RecordKind.STEP
) -> Record:
    preview = "child-1" if kind is RecordKind.CHILD else ""
    return Record(position, kind, position, name, ok, payload, 100.0 + position, preview=preview)


def build_messages(*records: Record, **inputs: Any) -> list[ConversationMessage]:
    return build_conversation(json.dumps({"prompt": "Go.", **inputs}).encode(), records)


def test_calls_without_an_outcome_are_marked():
    asks = reply({"text": "Both."}, call("one", '{"x": 1}'), call("two", "{broken", "c2"))
    _, answer, first, second = build_messages(record(0, asks), record(2, b'"fine"', "two"))
    assert answer.tool_calls == [("one", {"x": 1}), ("two", "{broken")]
    assert (first.role, first.text, first.number) == ("note", "one: no outcome yet", 2)
    assert (second.role, second.text, second.number) == ("tool", "fine", 3)


def test_a_failed_sub_agent_is_shown_as_its_model_sees_it():
    error = encode_error(ValueError("no")).decode()
    ended = json.dumps({"child": "child-1", "state": "failed", "error": error}).encode()
    asks = record(0, reply(call("digger", {"task": "dig"})))
    _, _, outcome = build_messages(asks, record(1, ended, "digger", ok=False, kind=RecordKind.CHILD))
    assert (outcome.ok, outcome.child_run_id) == (False, "child-1")
    assert outcome.text == "The sub-agent 'digger' failed: ValueError: no"


def test_the_positions_after_a_correction_belong_to_the_next_model_call():
    wrong = reply(call("final_result", {"x": "y"}), call("search", {}, "c2"), feedback="x must be a number")
    _, first, correction, last = build_messages(
        record(0, wrong), record(1, reply(call("final_result", {"response": 3})))
    )
    assert [name for name, _ in first.tool_calls] == ["final_result", "search"]
    assert (correction.role, correction.text) == ("correction", "x must be a number")
    assert (last.text, last.tool_calls) == ("3", [])


def test_a_wrapped_answer_is_unwrapped_and_another_one_is_not():
    for arguments, value in (({"response": [1]}, [1]), ({"response": 1, "b": 2}, {"response": 1, "b": 2}), ({}, {})):
        found = reply_from_record(record(0, reply(call("final_result", arguments))))
        assert found is not None
        assert extract_answer(found) == value


def test_parts_of_a_prompt_that_are_not_text_are_shown_by_their_type():
    prompt = [
        "Look:",
        {"image_url": "https://x/y.png"},
        {"image": "AAAA", "media_type": "image/png"},
        {"text": "Well?"},
    ]
    [one] = build_messages(prompt=prompt)
    assert one.text == "Look:\n<image https://x/y.png>\n<image/png>\nWell?"


def test_an_answer_in_a_format_of_the_future_stops_nothing():
    _, unread, last = build_messages(record(0, reply({"text": "?"}, number=99)), record(1, reply({"text": "Hello."})))
    assert (unread.role, unread.ok) == ("note", False)
    assert unread.text == "no model has answered: its answer cannot be read by this version"
    assert message_to_json(last)["text"] == "Hello."


def test_a_failure_that_is_not_a_refusal_has_no_refusal_reason():
    assert decode_budget_exceeded(record(0, encode_error(ValueError("no")), ok=False)) is None
    assert decode_budget_exceeded(record(0, b"not an error", ok=False)) is None
