"""Addresses: names to send work to, for processes outside the engine.

An address is a workflow without code. Sending to it creates a run like any other, with a journal, a state, and a
result, but no engine executes it. Instead, a listener receives the payload with the steps recorded so far, and records
the next ones (see ``server.deliveries``). So everything that works with runs works with these.

An address exists as soon as something is sent to it or a process listens on it. Its settings are a document of the
store. Its webhook is another document (see ``services.webhook_settings``), because it has a secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from holdfast.admission.durations import duration_to_seconds
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, encode_inputs_by_name
from holdfast.errors import UsageError
from holdfast.services.documents import find_document, list_documents, update_document
from holdfast.services.json_form import from_json, to_json_bytes
from holdfast.services.run_start import StartOptions, build_new_run, resolve_start
from holdfast.services.thread_offload import OffLoopRunner, run_off_loop
from holdfast.services.webhook_settings import Webhook, find_webhook, list_webhooks, remove_webhook
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.documents import Document
from holdfast.stores.grouped_calls import CommitFunction
from holdfast.stores.operations import MAX_DELIVERIES, Run, StartResult, StartRun
from holdfast.stores.served_versions import list_announced_specs

DOCUMENT_KIND = "address"
"""The kind of document that holds an address's settings."""
PAYLOAD_PARAMETER = "payload"
"""The only input of its runs."""
MAX_NAME_LENGTH = 150
DEFAULT_LEASE_S = 30.0
MIN_LEASE_S, MAX_LEASE_S = 1.0, 86400.0
DEFAULT_WEBHOOK_TIMEOUT_S = 30.0
MAX_WEBHOOK_TIMEOUT_S = 300.0
_SETTINGS = ("max_deliveries", "deadline", "lease", "webhook_timeout")
_DURATION_SETTINGS = frozenset({"deadline", "lease", "webhook_timeout"})
"""The settings that are durations."""


@dataclass(frozen=True, slots=True)
class AddressInfo:
    """An address and its settings."""

    name: str
    max_deliveries: int = MAX_DELIVERIES
    """Maximum number of deliveries in a row that record no new step, because they fail, or because their listener dies
    while it holds nothing else. Then the run is dead."""
    deadline: float | None = None
    """Seconds from the start of a run until it must have ended. Its sender can give another deadline."""
    lease: float = DEFAULT_LEASE_S
    """Seconds of silence after which a listener counts as dead."""
    webhook: str | None = None
    """The URL that deliveries are sent to, instead of being fetched by listeners."""
    webhook_disabled_reason: str | None = None
    """Why nothing is sent there until the webhook is set again."""
    webhook_timeout: float = DEFAULT_WEBHOOK_TIMEOUT_S
    """Seconds until a request to the webhook must be answered. A receiver that needs longer answers 202."""

    @property
    def spec(self) -> WorkflowSpec:
        """The workflow without code."""
        return WorkflowSpec(
            self.name,
            (PAYLOAD_PARAMETER,),
            timeout_s=self.deadline,
            max_deliveries=self.max_deliveries,
            is_address=True,
        )


def validate_address_name(name: object) -> str:
    """The name, if an address may have it. Raises ``UsageError``."""
    is_proper = isinstance(name, str) and name.strip() == name != "" and name.isprintable() and "@" not in name
    if not isinstance(name, str) or not is_proper or len(name) > MAX_NAME_LENGTH:
        raise UsageError(
            f"an address is a text of 1 to {MAX_NAME_LENGTH} printable characters without '@', not {repr(name)[:60]}"
        )
    return name


def validate_address(address: AddressInfo) -> AddressInfo:
    """The address, if its settings are valid. Raises ``UsageError``."""
    where = f"address {validate_address_name(address.name)!r}"
    max_deliveries, deadline, lease = address.max_deliveries, address.deadline, address.lease
    if not _is_number(max_deliveries, int) or max_deliveries < 1:
        raise UsageError(f"{where}: max_deliveries={max_deliveries!r} must be a whole number, 1 or more")
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
    """The address with this name, if it exists."""
    found = await find_document(store, DOCUMENT_KIND, name)
    return None if found is None else _with_webhook(_address_from_document(found), await find_webhook(store, name))


async def list_addresses(store: Store) -> list[AddressInfo]:
    """All addresses, in the order of their names."""
    found, hooks = await list_documents(store, DOCUMENT_KIND), await list_webhooks(store)
    return [_with_webhook(_address_from_document(one), hooks.get(one.name)) for one in found]


async def declare_address(store: Store, name: str) -> AddressInfo:
    """The address with this name, created if it does not exist. Raises ``UsageError`` for an invalid name.

    Its webhook is not read: senders and listeners do not need it.
    """
    found = await find_document(store, DOCUMENT_KIND, validate_address_name(name))
    if found is not None:
        return _address_from_document(found)
    new = AddressInfo(name)
    await _check_not_a_workflow(store, name)
    if await store.documents.put(DOCUMENT_KIND, name, _encode_settings(new), if_version=0) is None:
        return await declare_address(store, name)  # another process was faster
    await store.announce_workflows([new.spec])
    return new


async def put_address(store: Store, name: str, **settings: Any) -> AddressInfo:
    """Change some settings of an address, or create it with them. Raises ``UsageError``.

    ``services.webhook_settings`` sets its webhook.
    """
    new = address = validate_address(replace(AddressInfo(name), **settings))
    if await find_document(store, DOCUMENT_KIND, name) is None:
        await _check_not_a_workflow(store, name)

    def change(document: Document | None) -> bytes:
        nonlocal address
        address = new if document is None else replace(_address_from_document(document), **settings)
        return _encode_settings(address)

    await update_document(store, DOCUMENT_KIND, name, change)
    await store.announce_workflows([address.spec])
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
    commit: CommitFunction | None = None,
    declare: Callable[[str], Awaitable[AddressInfo]] | None = None,
) -> tuple[Run, bool]:
    """Start a run of an address, or join an existing one; and whether it is new. Errors are those of any start.

    Args:
        store: the store.
        name: the address, created if it does not exist.
        payload: the input of the run.
        options: of the run, as for a workflow.
        deadline_s: seconds until the run must have ended. Default: that of the address.
        max_value: maximum size of the payload, in bytes.
        join_unsuccessful: join an existing run even if it ended without a result.
        runner: runs what takes long for a large payload.
        commit: commits the start; default: the store.
        declare: finds or creates the address; default: in the store.
    """
    if options.version is not None:
        raise UsageError(f"address {name!r} has no code, and so no version={options.version!r} of it")
    address = await (declare_address(store, name) if declare is None else declare(name))
    spec = address.spec if deadline_s is None else replace(address.spec, timeout_s=deadline_s)
    inputs = encode_inputs_by_name(name, spec.parameters, (payload,), {})
    new = await runner(len(inputs), lambda: build_new_run(spec, inputs, options, now=store.now(), max_value=max_value))
    [answer] = await (commit or store.commit)([StartRun(new)])
    run = resolve_start(answer, new, join_unsuccessful=join_unsuccessful)
    return run, isinstance(answer, StartResult) and answer.is_new


async def delete_address(store: Store, name: str) -> bool:
    """Delete the settings of an address, and its webhook. Its runs stay, and the next use creates it again."""
    await remove_webhook(store, name)
    return await store.documents.delete(DOCUMENT_KIND, name)


async def _check_not_a_workflow(store: Store, name: str) -> None:
    if any(not spec.is_address for spec in list_announced_specs(name, await store.get_workflow_specs(name))):
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
    """The settings, with durations in seconds. Raises ``UsageError``."""
    if unknown := settings.keys() - set(_SETTINGS):
        raise UsageError(f"address {name!r} has no setting {min(unknown)!r}: there are {', '.join(_SETTINGS)}")
    return {
        word: duration_to_seconds(value, f"address {name!r}: {word}")
        if word in _DURATION_SETTINGS and value is not None
        else value
        for word, value in settings.items()
    }
