"""Answers of models whose records every later version must be able to read."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from pydantic_ai.messages import (
    BinaryImage,
    Citation,
    FilePart,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    WebCitationSource,
)
from pydantic_ai.usage import RequestUsage

from holdfast.admission.usage import Usage
from holdfast.agents.models.reply import Reply
from holdfast.reports.recorded_reply import FailedModel, RecordedCompaction

WHEN = datetime(2026, 11, 15, 12, 30, 1, 250_000, tzinfo=UTC)

REPLIES: dict[str, Reply] = {
    "text": Reply(
        ModelResponse(
            parts=[TextPart("Paris – “la ville lumière”.")],
            usage=RequestUsage(input_tokens=12, output_tokens=7),
            model_name="gpt-4o-2024-08-06",
            timestamp=WHEN,
            provider_name="openai",
            provider_url="https://api.openai.com/v1/",
            provider_response_id="chatcmpl-1",
            finish_reason="stop",
        ),
        "openai-chat:gpt-4o",
        Usage(1, 12, 7, nano_usd=100_000),
    ),
    "calls": Reply(
        ModelResponse(
            parts=[
                TextPart("I will look."),
                ToolCallPart("search", '{"query": "tea",  "limit": 3}', "call_1"),
                ToolCallPart("weigh", {"grams": 2.5, "of": ["tea", None]}, "call_2"),
                ToolCallPart("stop", None, "call_3"),
            ],
            timestamp=WHEN,
            model_name="function",
            finish_reason="tool_call",
        ),
        "function:function",
        Usage(1, unpriced=1),
    ),
    "openai_responses": Reply(
        ModelResponse(
            parts=[
                ThinkingPart(
                    "Let me think.",
                    id="rs_1",
                    signature="gAAAAAB-encrypted",
                    provider_name="openai",
                    provider_details={"raw_content": ["a", "b"]},
                ),
                ThinkingPart("", id="rs_2", provider_name="openai"),
                TextPart("Done.", id="msg_1", provider_name="openai", provider_details={"phase": "final_answer"}),
                ToolCallPart("search", "{}", "call_1", id="fc_1", provider_name="openai"),
                NativeToolCallPart("web_search", {"query": "tea"}, "ws_1", id="ws_1", provider_name="openai"),
                NativeToolReturnPart(
                    "web_search", {"status": "completed"}, "ws_1", timestamp=WHEN, provider_name="openai"
                ),
            ],
            usage=RequestUsage(
                input_tokens=1200,
                cache_read_tokens=1024,
                output_tokens=90,
                output_reasoning_tokens=64,
                details={"reasoning_tokens": 64},
                cost=Decimal("0.0012345"),
            ),
            model_name="gpt-5-2026-01-01",
            timestamp=WHEN,
            provider_name="openai",
            provider_url="https://api.openai.com/v1/",
            canonical_system="openai",
            provider_details={
                "finish_reason": "completed",
                "timestamp": "2026-11-15T12:30:00Z",
                "service_tier": "flex",
            },
            provider_response_id="resp_1",
            finish_reason="stop",
            history_digest="0" * 64,
        ),
        "openai:gpt-5",
        Usage(1, 1200, 90, 1024, 1_234_500),
    ),
    "anthropic": Reply(
        ModelResponse(
            parts=[
                ThinkingPart("The user wants tea.", signature="EqQBCgIYAhIM+signed==", provider_name="anthropic"),
                ThinkingPart("", id="redacted_thinking", signature="EmwKAhgBEgy+redacted", provider_name="anthropic"),
                ToolCallPart("search", {"query": "tea"}, "toolu_01"),
            ],
            usage=RequestUsage(
                input_tokens=2100, cache_write_tokens=100, cache_read_tokens=1800, output_tokens=40, details={"x": 1}
            ),
            model_name="claude-sonnet-4-5-20250929",
            timestamp=WHEN,
            provider_name="anthropic",
            provider_url="https://api.anthropic.com",
            provider_details={"finish_reason": "tool_use", "container_id": "c_1"},
            provider_response_id="msg_01",
            finish_reason="tool_call",
        ),
        "anthropic:claude-sonnet-4-5",
        Usage(1, 2100, 40, 1800, 2_115_000),
    ),
    "fallback": Reply(
        ModelResponse(parts=[TextPart("Here I am.")], timestamp=WHEN, model_name="b", run_id="r", metadata={"k": [1]}),
        "b:b",
        Usage(1, unpriced=1),
        (FailedModel("a:a", "status 503: overloaded", 6), FailedModel("c:c", "status 401: no", 1)),
    ),
    "feedback": Reply(
        ModelResponse(parts=[ToolCallPart("answer", '{"year": "soon"}', "call_9")], timestamp=WHEN),
        "test",
        Usage(1),
        feedback="`year` must be a whole number.",
    ),
    "compaction": Reply(
        ModelResponse(
            parts=[TextPart("The user wants tea. Two shops were tried: /shops/1 and /shops/2.")],
            usage=RequestUsage(input_tokens=90_000, output_tokens=300),
            timestamp=WHEN,
            model_name="gpt-4o-mini",
            finish_reason="stop",
        ),
        "openai:gpt-4o-mini",
        Usage(1, 90_000, 300, nano_usd=13_680_000),
        compaction=RecordedCompaction(summarized_count=57, kept_count=8, answer_count=28, max_result_length=4000),
    ),
    "others": Reply(
        ModelResponse(
            parts=[
                FilePart(BinaryImage(b"\x89PNG\x00", media_type="image/png", identifier="pic"), id="f_1"),
                TextPart("Tea is old.", citations=[Citation([WebCitationSource(url="https://example.org/tea")])]),
            ],
            timestamp=WHEN,
        ),
        "test",
        Usage(1),
    ),
}
"""By name. What one of them means never changes; a new version may add some."""
