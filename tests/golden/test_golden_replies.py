"""Whatever answer of a model a release has recorded, the code of today reads as the same answer."""

from __future__ import annotations

import json
from pathlib import Path

import pydantic_ai
import pytest
from golden_replies import REPLIES
from record_replies import CURRENT, FOLDER

from holdfast.agents.models import reply
from holdfast.reports.recorded_reply import ToolCallReport, decode_reply

RECORDS = sorted(FOLDER.glob("*/*.json"))


def get_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", RECORDS, ids=get_name)
def test_a_recorded_answer_is_read_as_what_was_answered(path: Path):
    assert reply.REPLY_CODEC.decode(path.read_bytes(), path.stem) == REPLIES[path.stem]


@pytest.mark.parametrize("path", RECORDS, ids=get_name)
def test_an_answer_that_is_read_is_written_as_it_was(path: Path):
    recorded = path.read_bytes()
    written = reply.REPLY_CODEC.encode(reply.REPLY_CODEC.decode(recorded, path.stem), path.stem)
    library = json.loads(recorded)["library"]
    if library != pydantic_ai.__version__ and b'"other":' in recorded:
        pytest.skip("another version of the library may write its own form otherwise")
    # The version of the library stands in the record: that is the one thing that may be another one now.
    now = json.dumps(pydantic_ai.__version__).encode()
    assert written.replace(now, json.dumps(library).encode()) == recorded


@pytest.mark.parametrize("path", RECORDS, ids=get_name)
def test_the_plain_parts_are_those_of_the_answer(path: Path):
    whole = REPLIES[path.stem]
    plain = decode_reply(path.read_bytes())
    assert plain is not None
    assert plain.text == (whole.response.text or "")
    assert plain.thinking == (whole.response.thinking or "")
    calls = tuple(
        ToolCallReport.from_raw(call.tool_name, call.args, call.tool_call_id) for call in whole.response.tool_calls
    )
    assert plain.tool_calls == calls
    assert (plain.model, plain.usage, plain.failed_models, plain.feedback, plain.compaction) == (
        whole.model,
        whole.usage,
        whole.failed_models,
        whole.feedback,
        whole.compaction,
    )


def test_every_answer_has_been_recorded_by_this_version():
    assert {path.stem for path in CURRENT.glob("*.json")} == set(REPLIES)


def test_no_answer_was_taken_away():
    assert {path.stem for path in RECORDS} <= set(REPLIES)
