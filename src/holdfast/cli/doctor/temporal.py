"""What ``doctor`` tells of a Temporal server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check
from holdfast.cli.doctor.workload import work_checks
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import counted, duration
from holdfast.errors import HoldfastError
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.errors import translating
from holdfast.stores.temporal.run_start import TAGS
from holdfast.stores.temporal.targets import Target, parse_target
from holdfast.stores.urls import store_url

_SHORT = 3
"""Days: whoever keeps histories for less may find a run gone before anybody has looked at it."""


def temporal_checks(url: str | None) -> Iterator[Check]:
    """Whether the server can be used, and how; and if it can, what is in it."""
    found = in_loop(_checks(store_url(url)))
    yield from found
    if all(check.status != FAIL for check in found):
        yield from work_checks(url)


async def _checks(url: str) -> list[Check]:
    try:
        target = parse_target(url)
        began = time.perf_counter()
        client = await connect(target)
        took = time.perf_counter() - began
        with translating(target):
            return [
                Check("server", OK, f"Temporal {await _version(client)} at {target.address}, {duration(took)} away"),
                await _namespace(client, target),
                await _tags(client, target),
                _payloads(target),
            ]
    except HoldfastError as error:
        return [Check("server", FAIL, str(error))]


async def _version(client: Client) -> str:
    return (await client.workflow_service.get_cluster_info(GetClusterInfoRequest())).server_version


async def _namespace(client: Client, target: Target) -> Check:
    told = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=target.namespace))
    days = told.config.workflow_execution_retention_ttl.ToTimedelta().days
    message = f"{target.namespace}: histories of runs that have ended are kept for {counted(days, 'day')}"
    advice = "a run that has ended longer ago can be neither read nor retried, and its id starts a new one"
    return Check("namespace", WARN if days < _SHORT else OK, message, advice if days < _SHORT else "")


async def _tags(client: Client, target: Target) -> Check:
    try:
        asked = ListSearchAttributesRequest(namespace=target.namespace)
        known = (await client.operator_service.list_search_attributes(asked)).custom_attributes
    except RPCError as error:
        return Check("tags", OK, f"it is not told whether they can be searched for ({error.message})")
    if TAGS.name in known:
        return Check("tags", OK, f"searched for by {TAGS.name}")
    create = f"temporal operator search-attribute create -n {target.namespace} --name {TAGS.name} --type KeywordList"
    return Check("tags", OK, f"there is no {TAGS.name}: lists by tag look at every run", f"`{create}` makes them quick")


def _payloads(target: Target) -> Check:
    if not target.payloads:
        advice = "?payloads=/a/shared/folder in the URL keeps larger values elsewhere"
        return Check("payloads", OK, "in histories: values of up to 2 MB", advice)
    if "://" not in target.payloads and not Path(target.payloads).expanduser().is_dir():
        return Check("payloads", WARN, f"there is no folder {target.payloads}", "the first large one makes it")
    return Check("payloads", OK, "large ones are kept elsewhere")
