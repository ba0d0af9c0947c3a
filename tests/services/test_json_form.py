"""One JSON form for each type: what is written, and that it is read as it was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.admission.usage import Usage
from holdfast.codec import codec_for
from holdfast.services.approvals import Answer
from holdfast.services.json_form import (
    UnreadableValue,
    UsageWithCost,
    UserValue,
    UtcDatetime,
    from_json,
    to_json,
    to_json_bytes,
)
from holdfast.services.memories import MemoryEntry
from holdfast.services.wire_values import from_wire, to_wire

AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of each kind."""

    value: UserValue
    at: UtcDatetime
    usage: UsageWithCost | None = None


def test_a_value_of_users_code_is_written_as_the_reader_wants_it():
    sample = Sample((1, b"\xff"), AT)
    assert to_json(sample)["value"] == [1, "_w=="]
    assert to_json(sample, repr)["value"] == "(1, b'\\xff')"
    sent = json.loads(to_json_bytes(sample, to_wire))
    assert from_json(Sample, sent, from_wire) == sample


def test_words_for_a_value_that_cannot_be_read_are_words():
    data = to_json(Sample(UnreadableValue("<encrypted>"), AT), lambda value: value)
    assert type(data["value"]) is str


def test_times_are_in_utc_when_written_and_when_read():
    data = to_json(Sample(None, AT))
    assert data["at"] == "2026-01-02T03:04:05.600000Z"
    assert from_json(Sample, data).at.tzinfo is UTC
    elsewhere = AT.astimezone(timezone(timedelta(hours=2))).isoformat()
    assert from_json(Sample, data | {"at": elsewhere}).at.tzinfo is UTC
    answer = Answer(True, answered_by="Ada", answered_at=AT.timestamp())
    assert to_json(answer)["answered_at"] == data["at"]
    assert from_json(Answer, to_json(answer)) == answer


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(2, 10, 5, 1, nano_usd=1_500_000), 0.0015),
        (Usage(1, 10, 5, unpriced=1), None),
    ],
)
def test_usage_is_written_with_its_cost_wherever_it_is(usage: Usage, usd: float | None):
    data = to_json(Sample(None, AT, usage))["usage"]
    assert data == to_json(usage)
    assert (data["usd"], data["nano_usd"]) == (usd, usage.nano_usd)
    assert from_json(Usage, data) == usage


@pytest.mark.parametrize("value", [(1, 2), {"at": AT}, b"\xff", {"a", "b"}])
def test_what_is_recorded_does_not_depend_on_the_json_form(value: Any):
    codec = codec_for(MemoryEntry)
    entry = MemoryEntry("k", value, AT)
    assert codec.decode(codec.encode(entry, "it"), "it") == entry


def test_half_a_character_becomes_a_question_mark():
    assert b'"value":"a?b"' in to_json_bytes(Sample("a\ud800b", AT))


def test_an_error_names_the_field():
    with pytest.raises(ValidationError, match=r"at\s+Field required"):
        from_json(Sample, {"value": 1})


def test_entries_of_memory_that_were_recorded_without_a_time_of_creation_stay_readable():
    codec = codec_for(list[MemoryEntry])
    old = json.loads(codec.encode([MemoryEntry("k", "v", AT)], "test"))
    del old[0]["created_at"]
    assert codec.decode(json.dumps(old).encode(), "test") == [MemoryEntry("k", "v", AT)]
