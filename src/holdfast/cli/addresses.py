"""``holdfast send`` and ``holdfast addresses``: work for processes elsewhere, and the settings of where it goes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_duration, make_printable, print_json, to_one_line
from holdfast.cli.store_access import open_client, try_get_run
from holdfast.cli.tables import print_table
from holdfast.cli.values import parse_json_or_text
from holdfast.client.client import Client
from holdfast.errors import NotAllowed, RunNotFound
from holdfast.services.addresses import AddressInfo


def send_work(
    url: str | None, address: str, value: str | None, *, id: str | None, deadline: float | None, as_json: bool
) -> None:
    """Send work to an address, and say what its run is called."""
    payload = None if value is None else parse_json_or_text(value)
    run_in_loop(_send_work(url, address, payload, id, deadline, as_json))


async def _send_work(
    url: str | None, address: str, payload: Any, id: str | None, deadline: float | None, as_json: bool
) -> None:
    async with open_client(url) as client:
        created = id is None or await _is_new(client, id)
        run_id = (await client.send(address, payload, deadline=deadline, id=id)).run_id
        run = await try_get_run(client, run_id)
    state = None if run is None else run.state.value
    if as_json:
        print_json({"id": run_id, "address": address, "state": state, "created": created})
    elif created is False:
        print(make_printable(f"run {run_id!r} was sent before: it is {state}"))
    else:
        print(make_printable(f"sent to {address!r} as run {run_id!r}"))


async def _is_new(client: Client, run_id: str) -> bool | None:
    """Whether there is no such run yet; none if this key may not look."""
    try:
        await client.get(run_id)
    except RunNotFound:
        return True
    except NotAllowed:
        return None
    return False


def show_addresses(url: str | None, *, as_json: bool) -> None:
    """Print all addresses."""
    found = run_in_loop(_fetch_addresses(url))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        create_console().print(
            "there is no address yet: one is there as soon as somebody sends to it (`holdfast send NAME`) or listens "
            "on it",
            soft_wrap=True,
        )
        return
    rows = [
        (
            to_one_line(one.name),
            str(one.max_deliveries),
            "none" if one.deadline is None else format_duration(one.deadline),
            format_duration(one.lease),
            to_one_line(_describe_delivery(one)),
        )
        for one in found
    ]
    print_table(("address", "deliveries", "deadline", "lease", "delivered"), rows, number_columns=(1,))


def _describe_delivery(address: AddressInfo) -> str:
    if address.webhook is None:
        return "fetched by listeners"
    return (
        f"sent to {address.webhook}"
        if address.webhook_disabled_reason is None
        else f"not sent: {address.webhook_disabled_reason}"
    )


async def _fetch_addresses(url: str | None) -> list[AddressInfo]:
    async with open_client(url) as client:
        return await client.addresses.list()


def set_address(url: str | None, name: str, settings: dict[str, Any], *, as_json: bool) -> None:
    """Change settings of an address, and say which it has now."""
    before, now = run_in_loop(_set_address(url, name, settings))
    if as_json:
        print_json({**asdict(now), "changed": before != now})
        return
    deadline = "no deadline" if now.deadline is None else f"a deadline of {format_duration(now.deadline)}"
    said = "has these settings now" if before != now else "had these settings before: nothing changed"
    print(
        make_printable(
            f"address {name!r} {said}: at most {now.max_deliveries} deliveries in a row without a new step, "
            f"{deadline}, and listeners count as dead after {format_duration(now.lease)} of silence"
        )
    )


async def _set_address(url: str | None, name: str, settings: dict[str, Any]) -> tuple[AddressInfo | None, AddressInfo]:
    async with open_client(url) as client:
        before = next((one for one in await client.addresses.list() if one.name == name), None)
        return before, await client.addresses.set(name, **settings)
