"""Messages survive being recorded, in a form that does not depend on the model library."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_ai import messages as library
from pydantic_ai.messages import (
    AudioUrl,
    BinaryAudio,
    BinaryContent,
    BinaryImage,
    CachePoint,
    CompactionPart,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestAttempt,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    StructuredContent,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchCallPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
    WorkspaceRef,
)
from pydantic_ai.usage import RequestUsage

from holdfast.agents.models import message_layouts
from holdfast.agents.models.messages import dump_message, dump_messages, load_message, load_messages
from holdfast.errors import UnreadableRecord, UnrecordableValue

WHEN = datetime(2026, 11, 15, 12, 30, 1, 250_000, tzinfo=UTC)


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def round_trip(message: ModelMessage) -> ModelMessage:
    return load_message(through_json(dump_message(message)))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
maybe = st.none() | text
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
details = st.none() | st.dictionaries(text, plain, max_size=3)
moments = st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30))))
args = st.none() | text | st.dictionaries(text, plain, max_size=3)
origin = {"id": maybe, "provider_name": maybe, "provider_details": details}

response_parts = st.one_of(
    st.builds(TextPart, text, **origin),
    st.builds(ThinkingPart, text, signature=maybe, **origin),
    st.builds(ToolCallPart, text, args, text, **origin),
    st.builds(NativeToolCallPart, text, args, text, **origin),
    st.builds(
        NativeToolReturnPart, text, plain, text, timestamp=moments, provider_name=maybe, provider_details=details
    ),
    st.builds(CompactionPart, content=maybe, **origin),
)
usages = st.builds(
    RequestUsage,
    input_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
    cache_read_tokens=st.integers(0, 10**9),
    details=st.dictionaries(text, st.integers(), max_size=2),
    cost=st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=9),
)
responses = st.builds(
    ModelResponse,
    st.lists(response_parts, max_size=4),
    usage=usages,
    model_name=maybe,
    model_id=maybe,
    timestamp=moments,
    provider_name=maybe,
    provider_url=maybe,
    canonical_system=maybe,
    provider_details=details,
    provider_response_id=maybe,
    finish_reason=st.sampled_from([None, "stop", "length", "content_filter", "tool_call", "error"]),
    run_id=maybe,
    conversation_id=maybe,
    metadata=details,
    history_digest=maybe,
    state=st.sampled_from(["complete", "suspended", "interrupted"]),
)
contents = st.one_of(
    text,
    st.builds(TextContent, text, metadata=plain),
    *[
        st.builds(
            kind,
            text,
            media_type=maybe,
            identifier=maybe,
            force_download=st.sampled_from([False, True, "allow-local"]),
            vendor_metadata=details,
        )
        for kind in (ImageUrl, AudioUrl, VideoUrl, DocumentUrl)
    ],
    st.builds(BinaryContent, st.binary(max_size=8), media_type=text, identifier=maybe, vendor_metadata=details),
    st.builds(BinaryImage, st.binary(max_size=8), media_type=st.just("image/png"), identifier=maybe),
    st.builds(BinaryAudio, st.binary(max_size=8), media_type=st.just("audio/wav")),
    st.builds(UploadedFile, text, provider_name=st.just("openai"), media_type=maybe, identifier=maybe),
    st.builds(CachePoint, ttl=st.sampled_from(["5m", "1h"])),
)
request_parts = st.one_of(
    st.builds(SystemPromptPart, text, timestamp=moments, dynamic_ref=maybe, metadata=details),
    st.builds(UserPromptPart, text | st.lists(contents, max_size=4), timestamp=moments),
    st.builds(
        ToolReturnPart,
        text,
        plain,
        text,
        metadata=plain,
        timestamp=moments,
        outcome=st.sampled_from(["success", "failed", "denied", "interrupted", "retried"]),
    ),
    st.builds(
        RetryFeedbackPart, text, retry=st.builds(RetryInfo, cause=st.just("model_retry"), attempt=st.integers(1, 9))
    ),
)
requests = st.builds(
    ModelRequest,
    st.lists(request_parts, max_size=4),
    timestamp=st.none() | moments,
    instructions=maybe,
    run_id=maybe,
    conversation_id=maybe,
    metadata=details,
    state=st.sampled_from(["complete", "interrupted"]),
)


@settings(max_examples=60)
@given(responses | requests)
@example(ModelRequest([ToolReturnPart("look", None, "call_1")]))  # a tool that returns nothing
def test_a_message_survives_being_recorded(message: ModelMessage):
    data = through_json(dump_message(message))
    loaded = load_message(data)
    assert loaded == message
    assert [type(part) for part in loaded.parts] == [type(part) for part in message.parts]
    assert through_json(dump_message(loaded)) == data


@settings(max_examples=40)
@given(st.lists(contents, max_size=4))
def test_a_prompt_keeps_what_equality_does_not_see(items: list[Any]):
    message = round_trip(ModelRequest([UserPromptPart(items, timestamp=WHEN)]))
    [part] = message.parts
    for loaded, item in zip(part.content, items, strict=True):
        assert type(loaded) is type(item)
        if not isinstance(item, str | TextContent | CachePoint):
            assert loaded.identifier == item.identifier
            assert vars(loaded).get("_media_type") == vars(item).get("_media_type")


def test_what_has_its_default_value_is_left_out():
    response = ModelResponse([TextPart("Hi"), ToolCallPart("look", None, "c1")], timestamp=WHEN)
    assert dump_message(response) == {
        "role": "model",
        "parts": [{"text": "Hi"}, {"call": "look", "tool_call_id": "c1"}],
        "timestamp": "2026-11-15T12:30:01.250000+00:00",
    }


def test_arguments_stay_the_text_or_the_data_that_came():
    spaced, data, broken = '{"a":  1 }', {"a": 1.0, "b": [10**30]}, '{"a":'
    calls = [ToolCallPart("t", one, str(at)) for at, one in enumerate([spaced, data, broken, "", {}, None])]
    loaded = round_trip(ModelResponse(calls, timestamp=WHEN))
    assert [part.args for part in loaded.parts] == [spaced, data, broken, "", {}, None]


def test_bytes_are_written_as_base64():
    message = ModelRequest([UserPromptPart([BinaryContent(b"\x00\xff", media_type="image/png")], timestamp=WHEN)])
    [part] = dump_message(message)["parts"]
    assert part["prompt"] == [{"binary": "AP8=", "media_type": "image/png"}]


def test_a_moment_in_a_providers_details_is_text_from_the_first_time_on():
    response = ModelResponse([], timestamp=WHEN, provider_details={"timestamp": WHEN, "n": float("inf")})
    once = round_trip(response)
    assert once.provider_details == {"timestamp": "2026-11-15T12:30:01.250000Z", "n": "Infinity"}
    assert round_trip(once) == once


def test_a_result_that_looks_like_a_file_stays_what_it_is():
    lookalike = {"kind": "image-url", "url": "https://example.org/a.png"}
    image = ImageUrl("https://example.org/b.png")
    request = ModelRequest(
        [
            ToolReturnPart("t", lookalike, "1", timestamp=WHEN),
            ToolReturnPart("t", [lookalike, image], "2", timestamp=WHEN),
        ]
    )
    first, second = round_trip(request).parts
    assert first.content == lookalike
    assert second.content == [lookalike, image]


@pytest.mark.parametrize(
    "part",
    [
        FilePart(BinaryImage(b"\x01", media_type="image/png"), id="f"),
        ToolSearchCallPart(args={"queries": ["tea"]}, tool_call_id="c1"),
        TextPart("Tea.", citations=[library.Citation([library.WebCitationSource(url="https://example.org")])]),
    ],
    ids=lambda part: type(part).__name__,
)
def test_parts_that_are_not_in_the_table_go_through_the_library(part: Any):
    data = dump_message(ModelResponse([part], timestamp=WHEN))
    assert data["parts"][0]["library"] == message_layouts.LIBRARY
    assert round_trip(ModelResponse([part], timestamp=WHEN)).parts == [part]


def test_a_text_with_more_to_it_can_still_be_read_without_the_library():
    cited = TextPart("Tea.", citations=[library.Citation([library.WebCitationSource(url="https://example.org")])])
    assert dump_message(ModelResponse([cited]))["parts"][0]["text"] == "Tea."


def test_structured_content_keeps_its_text():
    request = ModelRequest([UserPromptPart([StructuredContent({"a": 1}, tag="state")], timestamp=WHEN)])
    assert round_trip(request) == request


def test_unknown_fields_of_a_message_go_through_the_library():
    attempt = ModelRequestAttempt(
        model_name="a", outcome="error", error="E: no", timestamp=WHEN, duration=timedelta(seconds=2)
    )
    response = ModelResponse(
        [TextPart("Hi")], timestamp=WHEN, failed_attempts=[attempt], workspace_ref=WorkspaceRef(provider="p", id="1")
    )
    data = dump_message(response)
    assert data["parts"] == [{"text": "Hi"}]
    assert "parts" not in data["other"]
    assert round_trip(response) == response


def test_a_field_that_a_newer_library_adds_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    form = message_layouts._part_by_class[TextPart]
    known = tuple(field for field in form.fields if field[0] != "id")
    newer = message_layouts._Layout("text", TextPart, "content", " ".join(name for name, _, _ in known))
    monkeypatch.setitem(message_layouts._part_by_class, TextPart, newer)
    part = TextPart("Hi", id="m1")
    assert round_trip(ModelResponse([part], timestamp=WHEN)).parts == [part]


def test_keys_of_a_newer_version_are_ignored():
    data = dump_message(ModelResponse([TextPart("Hi")], timestamp=WHEN))
    data["mood"] = "good"
    data["parts"][0]["pitch"] = 3
    assert load_message(data) == ModelResponse([TextPart("Hi")], timestamp=WHEN)


def test_the_error_for_an_unreadable_part_names_both_versions():
    data = {"role": "model", "parts": [{"other": {"part_kind": "hologram", "rays": 3}, "library": "9.1.0"}]}
    with pytest.raises(
        UnreadableRecord, match=rf"version 9\.1\.0 of pydantic-ai.*{message_layouts.LIBRARY}.*[Ii]nstall"
    ):
        load_message(data)


@pytest.mark.parametrize(
    "data",
    [
        {"role": "model"},
        {"role": "choir", "parts": []},
        {"role": "model", "parts": [{"song": "la"}]},
        {"role": "model", "parts": [], "timestamp": "soon"},
        {"role": "model", "parts": [{}]},
    ],
)
def test_invalid_message_data_is_unreadable(data: dict[str, Any]):
    with pytest.raises(UnreadableRecord, match="recorded message"):
        load_message(data)


def test_a_message_that_is_none_cannot_be_recorded():
    with pytest.raises(UnrecordableValue, match="`str`"):
        dump_message("hello")  # type: ignore[arg-type]


def test_what_no_json_can_say_cannot_be_recorded():
    response = ModelResponse([], timestamp=WHEN, provider_details={"client": object()})
    with pytest.raises(UnrecordableValue, match="cannot be recorded"):
        dump_message(response)


def test_several_messages_keep_their_order():
    messages = [ModelRequest([UserPromptPart(str(at), timestamp=WHEN)]) for at in range(3)]
    assert load_messages(through_json(dump_messages(messages))) == messages


def test_usage_keeps_the_cost_to_the_last_digit():
    usage = RequestUsage(input_tokens=3, cost=Decimal("0.000000123456789"))
    loaded = round_trip(ModelResponse([], usage=usage, timestamp=WHEN))
    assert isinstance(loaded, ModelResponse)
    assert loaded.usage.cost == Decimal("0.000000123456789")
