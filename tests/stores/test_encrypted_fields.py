"""Every text and every value that goes into a store is sealed, or known not to be: nothing is forgotten."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from holdfast.codec import AesEncryption
from holdfast.core.records import Attempt, Record, Signal
from holdfast.stores import (
    approvals,
    archives,
    audit_log,
    claims,
    contract,
    daily_usage,
    disabled_workflows,
    documents,
    erasure,
    journal_pages,
    live_events,
    memories,
    operations,
    queues,
    retention,
    schedules,
    step_transactions,
)
from holdfast.stores.capabilities import Capability
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import EncryptedStore
from holdfast.stores.encrypted.encrypted_fields import ValueTransform
from holdfast.stores.operations import LiveEvent, Op
from holdfast.stores.sqlite import SqliteStore

SEALED = set(
    """
    NewRun.inputs
    Run.inputs Run.output Run.error Run.waits_for
    Record.payload Record.preview
    Attempt.progress Attempt.error Attempt.outcome
    Signal.payload
    LiveEvent.data
    FinishRun.output FinishRun.error
    ParkRun.waits_for
    ReleaseRun.error
    SendSignal.payload
    ApprovalRequest.question ApprovalRequest.choices ApprovalRequest.form_schema ApprovalRequest.arguments
    ApprovalRequest.reason
    Approval.answer AnswerApproval.payload
    Memory.value PutMemory.value PutMemory.text
    Document.data
    ScheduleDefinition.inputs
    """.split()  # noqa: SIM905 - words are easier to read than a column of strings
)
"""What is changed on its way in."""

READABLE = set(
    """
    NewRun.id NewRun.workflow NewRun.digest NewRun.seed NewRun.queue NewRun.tags NewRun.python_version NewRun.parent
    NewRun.forked_from NewRun.session NewRun.previous_run NewRun.version NewRun.queue_key NewRun.dedup_key
    NewRun.restored_from NewRun.trace_parent
    Run.id Run.workflow Run.queue Run.digest Run.seed Run.tags Run.python_version Run.parent Run.forked_from Run.session
    Run.previous_run Run.version Run.queue_key Run.trace_parent
    Record.name
    Attempt.name
    Signal.name
    LiveEvent.stream LiveEvent.kind
    History.links
    AwaitRun.run_id AppendRecord.model
    AuditEvent.key_id AuditEvent.key_name AuditEvent.action AuditEvent.target AuditEvent.outcome
    AuditEvent.remote_address
    ParkRun.signal_names ParkRun.approval_ids
    SendSignal.run_id SendSignal.name SendSignal.dedup_key
    CancelRun.run_id CancelRun.seed PauseRun.run_id ResumeRun.run_id ReopenRun.run_id ReopenRun.version
    SetBudget.run_id ForkRun.source_run
    ApprovalRequest.assignee ApprovalRequest.tool
    Approval.id Approval.run_id Approval.workflow Approval.assignee Approval.answered_by
    RequestApproval.id RemindApproval.id RemindApproval.assignee WithdrawApproval.id AnswerApproval.id
    AnswerApproval.answered_by
    Memory.namespace Memory.key Memory.text PutMemory.namespace PutMemory.key DeleteMemory.namespace DeleteMemory.key
    Document.kind Document.name
    ScheduleDefinition.name ScheduleDefinition.workflow ScheduleDefinition.timing ScheduleDefinition.catch_up
    ScheduleDefinition.overlap ScheduleDefinition.queue ScheduleDefinition.tags ScheduleDefinition.session
    ScheduleDefinition.queue_key
    Schedule.last_run
    RunExtras.signal_dedup_keys ArchivedLink.child_id
    AuditEvent.key_id AuditEvent.key_name AuditEvent.action AuditEvent.target AuditEvent.outcome
    AuditEvent.remote_address
    """.split()  # noqa: SIM905
)
"""What a database must look at, or what names something: see ``stores.encrypted.store``. (``Memory.text`` is what was
kept before encryption was switched on.)"""

TRANSFORMS: dict[Any, Callable[[ValueTransform, Any], Any]] = {
    **dict.fromkeys(typing.get_args(Op), ValueTransform.transform_op),
    operations.StartResult: ValueTransform.transform_answer,
    operations.Run: ValueTransform.transform_run,
    contract.History: ValueTransform.transform_history,
    live_events.RunUpdates: ValueTransform.transform_updates,
    journal_pages.JournalPage: ValueTransform.transform_journal_page,
    approvals.Approval: ValueTransform.transform_approval,
    memories.Memory: ValueTransform.transform_memory,
    documents.Document: ValueTransform.transform_document,
    schedules.ScheduleDefinition: ValueTransform.transform_new_schedule,
    schedules.Schedule: ValueTransform.transform_schedule,
    archives.ArchivedRun: ValueTransform.transform_archived,
}
"""What goes in and out of a store, and what is done to it there."""

NAMES = {
    name: value
    for module in (
        contract,
        operations,
        approvals,
        archives,
        memories,
        live_events,
        journal_pages,
        schedules,
        documents,
        erasure,
        audit_log,
        claims,
        daily_usage,
        disabled_workflows,
        queues,
        retention,
        step_transactions,
    )
    for name, value in vars(module).items()
} | {"ArchivedRun": archives.ArchivedRun, "RunExtras": archives.RunExtras}
"""For annotations of names that are only imported for type checkers."""


def hints_of(kind: Any) -> dict[str, Any]:
    found = typing.get_type_hints(kind, localns=NAMES)
    names = kind._fields if hasattr(kind, "_fields") else [one.name for one in dataclasses.fields(kind)]
    return {name: found[name] for name in names}


def is_made_of_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind))


def example_of(hint: Any) -> Any:
    """Something of this type in which nothing is missing."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return example_of(next(one for one in args if one is not types.NoneType))
    if origin is typing.Literal:
        return args[0]
    if origin is tuple:
        return (example_of(args[0]),) if len(args) == 2 and args[1] is Ellipsis else tuple(map(example_of, args))
    if origin is not None and issubclass(origin, typing.Mapping):
        return {example_of(args[0]): example_of(args[1])}
    if origin is not None and issubclass(origin, typing.Sequence):
        return [example_of(args[0])]
    if is_made_of_fields(hint):
        return hint(**{name: example_of(of) for name, of in hints_of(hint).items()})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    known = {bytes: b"plain", str: "plain", int: 1, float: 1.0, bool: True}
    assert hint in known, f"an example of {hint} is needed here"
    return known[hint]


def has_words(value: Any) -> bool:
    """Whether a field holds text or bytes itself, not in something that has fields of its own."""
    if isinstance(value, enum.Enum) or is_made_of_fields(type(value)):
        return False
    if isinstance(value, dict):
        return any(has_words(one) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple)):
        return any(map(has_words, value))
    return isinstance(value, (bytes, str))


def compared(before: Any, after: Any) -> Iterator[tuple[str, bool]]:
    """All fields with text or bytes in them, also of what is inside, and whether they are other ones now."""
    if is_made_of_fields(type(before)):
        for name in hints_of(type(before)):
            one, other = getattr(before, name), getattr(after, name)
            if has_words(one):
                yield f"{type(before).__name__}.{name}", one != other
            yield from compared(one, other)
    elif isinstance(before, dict):
        for key in before:
            yield from compared(before[key], after[key])
    elif isinstance(before, (list, tuple)):
        for one, other in zip(before, after, strict=True):
            yield from compared(one, other)


SEALING = ValueTransform(lambda data: b"sealed" + data, lambda text: "sealed" + text)


def found_in(kind: Any) -> dict[str, bool]:
    before = example_of(kind)
    found: dict[str, bool] = {}
    for name, is_changed in compared(before, TRANSFORMS[kind](SEALING, before)):
        assert found.setdefault(name, is_changed) is is_changed, f"{name} is sealed in one place only"
    return found


@pytest.mark.parametrize("kind", TRANSFORMS, ids=lambda kind: kind.__name__)
def test_every_field_with_words_is_sealed_or_known_to_stay_readable(kind: Any):
    found = found_in(kind)
    assert set(found) <= SEALED | READABLE, "say in this test, and in `fields`, whether a new field is sealed"
    assert {name for name, is_changed in found.items() if is_changed} == set(found) & SEALED


def test_no_field_is_named_here_that_there_is_not():
    found = {name for kind in TRANSFORMS for name in found_in(kind)}
    assert found == SEALED | READABLE
    assert not SEALED & READABLE


@pytest.mark.parametrize("kind", TRANSFORMS, ids=lambda kind: kind.__name__)
def test_encrypted_values_are_decrypted(kind: Any):
    before = example_of(kind)
    opening = ValueTransform(lambda data: data.removeprefix(b"sealed"), lambda text: text.removeprefix("sealed"))
    after = TRANSFORMS[kind](opening, TRANSFORMS[kind](SEALING, before))
    lost = {name for name, is_changed in compared(before, after) if is_changed}
    assert lost <= {"PutMemory.text"}


def classes_in(hint: Any) -> Iterator[Any]:
    if is_made_of_fields(hint):
        yield hint
        for inner in hints_of(hint).values():
            yield from classes_in(inner)
    for inner in typing.get_args(hint):
        yield from classes_in(inner)


def methods_of_contract() -> Iterator[tuple[str, str, Any]]:
    """All methods of stores (under "") and of their capabilities."""
    hints = typing.get_type_hints(Store, localns=NAMES)
    capabilities = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is Capability}
    assert len(capabilities) > 10
    for owner, kind in {"": Store, **capabilities}.items():
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            yield owner, name, method


def names_in(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(names_in(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def test_every_method_that_handles_sealed_fields_is_overridden(tmp_path: Path):
    store = EncryptedStore(SqliteStore(tmp_path / "runs.db"), AesEncryption(bytes(32)))
    sealed = {name.split(".")[0] for name in SEALED}
    needed: set[tuple[str, str]] = {("memories", "search"), ("step_transactions", "begin")}
    for owner, name, method in methods_of_contract():
        hints = typing.get_type_hints(method, localns=NAMES).values()
        if sealed & {kind.__name__ for hint in hints for kind in classes_in(hint)}:
            needed.add((owner, name))
    needed -= {("archives", "activate")}  # it is handed a run, and writes none of its values
    assert len(needed) > 15
    for owner, name in needed - {("memories", "search")}:
        method = vars(type(getattr(store, owner) if owner else store))[name]
        assert names_in(method.__code__) & {"_encrypt", "_decrypt", "_commit_encrypted", "_decrypt_signal"}, (
            owner,
            name,
        )


def test_methods_that_take_bytes_as_they_are_are_known():
    takes_bytes = {
        (owner, name)
        for owner, name, method in methods_of_contract()
        if bytes in typing.get_type_hints(method, localns=NAMES).values()
    }
    assert takes_bytes == {("documents", "put")}


# What stores look into


def begun(**told: Any) -> LiveEvent:
    return LiveEvent(0, "1.1.0", -1, live_events.STARTED, json.dumps(told).encode(), 1.0)


def test_of_a_step_that_has_begun_only_the_arguments_are_sealed():
    told = {"name": "pay", "kind": "step", "arguments": "card='4711'", "attempt": 2}
    sealed = SEALING.transform_live_event(begun(**told))
    assert json.loads(sealed.data) == told | {"arguments": "sealedcard='4711'"}
    for other in (begun(name="a child", what="child", run="r"), begun(name="no arguments", arguments="")):
        assert ValueTransform(bytes, str).transform_live_event(other) == other
    odd = begun()._replace(data=b"[]")
    assert SEALING.transform_live_event(odd) == odd


def test_a_missing_value_stays_missing():
    assert SEALING.transform_record(Record(0, 2, 0, "", True, None, 1.0)).payload is None  # type: ignore[arg-type]
    assert SEALING.transform_attempt(Attempt(0, 1))[3] is None
    assert SEALING.transform_signal(Signal(1, "go", b"1", 1.0)).payload == b"sealed1"
