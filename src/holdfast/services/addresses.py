"""Addresses: names that work is sent to, and that processes elsewhere take it from.

An address is a workflow without code. What is sent to it is a run like any other, with a journal, a state and a result;
only that no engine executes it: whoever listens on the address is handed the payload with the steps that are recorded
so far, and records the next ones (see ``server.deliveries``). So all that can be done with runs can be done with these.

An address is there as soon as somebody sends to it or listens on it. Its settings are a document of the store; its
webhook is another (see ``services.webhook_settings``), since that has a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from holdfast.admission.durations import duration_to_seconds
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, encode_inputs_by_name
from holdfast.errors import UsageError
from holdfast.services.documents import list_documents
from holdfast.services.json_form import from_json, to_json_bytes
from holdfast.services.run_start import StartOptions, build_new_run, resolve_start
from holdfast.services.thread_offload import OffLoopRunner, run_off_loop
from holdfast.services.webhook_settings import Webhook, find_webhook, list_webhooks, remove_webhook
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.documents import Document
from holdfast.stores.operations import MAX_DELIVERIES, Run, StartResult, StartRun
from holdfast.stores.served_versions import list_announced_specs

DOCUMENT_KIND = "address"
"""The kind of document that holds an address's settings."""
PAYLOAD_PARAMETER = "payload"
"""The one input of its runs."""
MAX_NAME_LENGTH = 150
DEFAULT_LEASE_S = 30.0
MIN_LEASE_S, MAX_LEASE_S = 1.0, 86400.0
DEFAULT_WEBHOOK_TIMEOUT_S = 30.0
MAX_WEBHOOK_TIMEOUT_S = 300.0
_SETTINGS = ("max_deliveries", "deadline", "lease", "webhook_timeout")
_DURATION_SETTINGS = frozenset({"deadline", "lease", "webhook_timeout"})
"""Those of them that are lengths of time."""


@dataclass(frozen=True, slots=True)
class AddressInfo:
    """An address and its settings."""

    name: str
    max_deliveries: int = MAX_DELIVERIES
    """Deliveries that may fail, or whose listener may die while it holds nothing else, without a new step. Then the run
    is dead."""
    deadline: float | None = None
    """Seconds that a run has from its beginning until it must have ended, unless its sender says otherwise."""
    lease: float = DEFAULT_LEASE_S
    """Seconds of silence after which a listener counts as dead."""
    webhook: str | None = None
    """Where deliveries are sent to, so that nobody needs to fetch them."""
    webhook_disabled_reason: str | None = None
    """Why nothing is sent there any more, until the webhook is set again."""
    webhook_timeout: float = DEFAULT_WEBHOOK_TIMEOUT_S
    """Seconds until a request to the webhook must be answered. A receiver that needs longer answers 202."""

    @property
    def spec(self) -> WorkflowSpec:
        """The workflow that it is."""
        return WorkflowSpec(
            self.name,
            (PAYLOAD_PARAMETER,),
            timeout_s=self.deadline,
            max_deliveries=self.max_deliveries,
            is_address=True,
        )


def validate_address_name(name: object) -> str:
    """A name that an address may have."""
    is_proper = isinstance(name, str) and name.strip() == name != "" and name.isprintable() and "@" not in name
    if not isinstance(name, str) or not is_proper or len(name) > MAX_NAME_LENGTH:
        raise UsageError(
            f"an address is a text of 1 to {MAX_NAME_LENGTH} printable characters without '@', not {repr(name)[:60]}"
        )
    return name


def validate_address(address: AddressInfo) -> AddressInfo:
    """The same, if its settings make sense. Raises ``UsageError``."""
    where = f"address {validate_address_name(address.name)!r}"
    most, deadline, lease = address.max_deliveries, address.deadline, address.lease
    if not _is_number(most, int) or most < 1:
        raise UsageError(f"{where}: max_deliveries={most!r} must be a whole number, 1 or more")
    if deadline is not None and not (_is_number(deadline) and 0 < deadline < float("inf")):
        raise UsageError(f"{where}: deadline={deadline!r} must be a number of seconds above 0")
    if not (_is_number(lease) and MIN_LEASE_S <= lease <= MAX_LEASE_S):
        raise UsageError(f"{where}: lease={lease!r} must be from {MIN_LEASE_S:g} to {MAX_LEASE_S:g} seconds")
    timeout, longest = address.webhook_timeout, MAX_WEBHOOK_TIMEOUT_S
    if not (_is_number(timeout) and 1 <= timeout <= longest):
        raise UsageError(f"{where}: webhook_timeout={timeout!r} must be from 1 to {longest:g} seconds")
    return address


def _is_number(value: object, kind: type | UnionType = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


async def find_address(store: Store, name: str) -> AddressInfo | None:
    """An address that was declared."""
    found = await store.documents.list(DOCUMENT_KIND, [name])
    return _with_webhook(_address_from_document(found[0]), await find_webhook(store, name)) if found else None


async def list_addresses(store: Store) -> list[AddressInfo]:
    """All of them, in the order of their names."""
    found, hooks = await list_documents(store, DOCUMENT_KIND), await list_webhooks(store)
    return [_with_webhook(_address_from_document(one), hooks.get(one.name)) for one in found]


async def declare_address(store: Store, name: str) -> AddressInfo:
    """The address of this name, which is declared if nobody has done so. Raises ``UsageError`` if it cannot be one.

    Its webhook is not looked for: whoever sends or listens does not need to know of it.
    """
    found = await store.documents.list(DOCUMENT_KIND, [validate_address_name(name)])
    if found:
        return _address_from_document(found[0])
    new = AddressInfo(name)
    await _check_not_a_workflow(store, name)
    if await store.documents.put(DOCUMENT_KIND, name, _encode_settings(new), if_version=0) is None:
        return await declare_address(store, name)  # somebody else was quicker
    await store.publish_workflows([new.spec])
    return new


async def put_address(store: Store, name: str, **settings: Any) -> AddressInfo:
    """Change settings of an address, or declare it with them; what is not named stays. Raises ``UsageError``.

    Its webhook is not among them: ``services.webhook_settings`` sets it.
    """
    validate_address_name(name)
    while True:
        found = await store.documents.list(DOCUMENT_KIND, [name])
        if not found:
            await _check_not_a_workflow(store, name)
        address = validate_address(
            replace(_address_from_document(found[0]) if found else AddressInfo(name), **settings)
        )
        version = found[0].version if found else 0
        if await store.documents.put(DOCUMENT_KIND, name, _encode_settings(address), if_version=version) is not None:
            await store.publish_workflows([address.spec])
            return _with_webhook(address, await find_webhook(store, name))


async def send_to_address(
    store: Store,
    name: str,
    payload: Any,
    options: StartOptions,
    *,
    deadline_s: float | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
    join_unsuccessful: bool = False,
    runner: OffLoopRunner = run_off_loop,
) -> tuple[Run, bool]:
    """Start a run of an address, or join the one that is there (false). Errors as for the start of any run.

    Args:
        store: where.
        name: the address, which is declared if nobody has done so.
        payload: what is sent.
        options: of the run, as for a workflow.
        deadline_s: seconds that it has; what the address says unless given.
        max_value: the largest payload, in bytes.
        join_unsuccessful: a run that is there is joined also if it has ended without a result.
        runner: does what takes long for a large payload.
    """
    if options.version is not None:
        raise UsageError(f"address {name!r} has no code, and so no version={options.version!r} of it")
    address = await declare_address(store, name)
    spec = address.spec if deadline_s is None else replace(address.spec, timeout_s=deadline_s)
    inputs = encode_inputs_by_name(name, spec.parameters, (payload,), {})
    new = await runner(len(inputs), lambda: build_new_run(spec, inputs, options, now=store.now(), max_value=max_value))
    [answer] = await store.commit([StartRun(new)])
    run = resolve_start(answer, new, join_unsuccessful=join_unsuccessful)
    return run, isinstance(answer, StartResult) and answer.is_new


async def delete_address(store: Store, name: str) -> bool:
    """Forget the settings of an address, and its webhook. Its runs stay, and it is back as soon as somebody uses it."""
    await remove_webhook(store, name)
    return await store.documents.delete(DOCUMENT_KIND, name)


async def _check_not_a_workflow(store: Store, name: str) -> None:
    if any(not spec.is_address for spec in list_announced_specs(name, await store.get_workflow_specs())):
        raise UsageError(
            f"{name!r} is the name of a workflow with code, which workers execute: start it, or choose another name "
            f"for the address"
        )


def _encode_settings(address: AddressInfo) -> bytes:
    return to_json_bytes({name: getattr(address, name) for name in _SETTINGS})


def _with_webhook(address: AddressInfo, hook: Webhook | None) -> AddressInfo:
    return address if hook is None else replace(address, webhook=hook.url, webhook_disabled_reason=hook.disabled_reason)


def _address_from_document(document: Document) -> AddressInfo:
    return from_json(AddressInfo, {**document.load_json(), "name": document.name})


def parse_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an address with durations in seconds. Raises ``UsageError``."""
    if unknown := settings.keys() - set(_SETTINGS):
        raise UsageError(f"address {name!r} has no setting {min(unknown)!r}: there are {', '.join(_SETTINGS)}")
    return {
        word: duration_to_seconds(value, f"address {name!r}: {word}")
        if word in _DURATION_SETTINGS and value is not None
        else value
        for word, value in settings.items()
    }
