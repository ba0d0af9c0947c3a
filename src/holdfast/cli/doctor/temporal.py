"""Checks of a Temporal server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.cli.doctor.checks import FAIL, CheckResult, fail, ok, warn
from holdfast.cli.doctor.workload import diagnose_workload
from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_count, format_duration
from holdfast.errors import HoldfastError
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.errors import translate_errors
from holdfast.stores.temporal.run_start import TAGS_ATTRIBUTE
from holdfast.stores.temporal.targets import Target, parse_target
from holdfast.stores.urls import resolve_store_url

_MIN_RETENTION_DAYS = 3
"""With a shorter retention, a run may be gone before anyone has looked at it."""


def diagnose_temporal(url: str | None) -> Iterator[CheckResult]:
    """Check the server; and if nothing fails, the work in it."""
    found = run_in_loop(_diagnose(resolve_store_url(url)))
    yield from found
    if all(check.status != FAIL for check in found):
        yield from diagnose_workload(url)


async def _diagnose(url: str) -> list[CheckResult]:
    try:
        target = parse_target(url)
        began = time.perf_counter()
        client = await connect(target)
        took = time.perf_counter() - began
        with translate_errors(target):
            version = (await client.workflow_service.get_cluster_info(GetClusterInfoRequest())).server_version
            return [
                ok("server", f"Temporal {version} at {target.address}, {format_duration(took)} away"),
                await _diagnose_namespace(client, target),
                await _diagnose_tags(client, target),
                _diagnose_payloads(target),
            ]
    except HoldfastError as error:
        return [fail("server", str(error))]


async def _diagnose_namespace(client: Client, target: Target) -> CheckResult:
    response = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=target.namespace))
    days = response.config.workflow_execution_retention_ttl.ToTimedelta().days
    message = f"{target.namespace}: histories of runs that have ended are kept for {format_count(days, 'day')}"
    advice = "a run that has ended longer ago can be neither read nor retried, and its id starts a new one"
    return warn("namespace", message, advice) if days < _MIN_RETENTION_DAYS else ok("namespace", message)


async def _diagnose_tags(client: Client, target: Target) -> CheckResult:
    try:
        request = ListSearchAttributesRequest(namespace=target.namespace)
        known = (await client.operator_service.list_search_attributes(request)).custom_attributes
    except RPCError as error:
        return ok("tags", f"whether they can be searched for is not known ({error.message})")
    if TAGS_ATTRIBUTE.name in known:
        return ok("tags", f"searched for by {TAGS_ATTRIBUTE.name}")
    create = (
        f"temporal operator search-attribute create -n {target.namespace} --name {TAGS_ATTRIBUTE.name} --type "
        "KeywordList"
    )
    return ok(
        "tags", f"there is no {TAGS_ATTRIBUTE.name}: lists by tag look at every run", f"`{create}` makes them quick"
    )


def _diagnose_payloads(target: Target) -> CheckResult:
    if not target.payload_location:
        advice = "?payloads=/a/shared/folder in the URL keeps larger values elsewhere"
        return ok("payloads", "in histories: values of up to 2 MB", advice)
    if "://" not in target.payload_location and not Path(target.payload_location).expanduser().is_dir():
        return warn("payloads", f"there is no folder {target.payload_location}", "the first large one makes it")
    return ok("payloads", "large ones are kept elsewhere")
