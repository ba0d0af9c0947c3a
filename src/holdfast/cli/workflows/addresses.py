"""``holdfast send`` and ``holdfast addresses``."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.shared.formatting import format_duration, make_printable, print_json, to_one_line
from holdfast.cli.shared.options import command, duration_option, format_example, json_option, listing_group, url_option
from holdfast.cli.shared.parsing import parse_json_or_text
from holdfast.cli.shared.store_access import run_client, try_get_run
from holdfast.cli.shared.tables import print_listing
from holdfast.client.client import Client
from holdfast.errors import NotAllowed, RunNotFound
from holdfast.services.addresses import AddressInfo
from holdfast.services.json_form import to_json


@command(
    'holdfast send data-pipeline \'{"customer": "acme"}\'', "holdfast send mailer hello --id mail-7 --deadline '1 min'"
)
@click.argument("address")
@click.argument("payload", required=False)
@click.option("--id", "id_", metavar="ID", help="The run's id. Sending again with the same ID joins the same run.")
@duration_option("--deadline", help="How long until it must end.")
@json_option("A JSON object: id, address, state, created (the last two may be null if the key cannot read).")
@url_option
def send(
    address: str, payload: str | None, id_: str | None, deadline: float | None, as_json: bool, url: str | None
) -> None:
    """Send work to an address, for the processes that listen there.

    PAYLOAD is parsed as JSON (`true`, `3`, `{"customer": "acme"}`); text that is not JSON is sent as a string. The work
    is a run: `holdfast show` shows it, and `holdfast events` follows it.
    """
    value = None if payload is None else parse_json_or_text(payload)

    async def send_work(client: Client) -> tuple[bool | None, str, str | None]:
        created = id_ is None or await _is_new(client, id_)
        run_id = (await client.send(address, value, deadline=deadline, id=id_)).run_id
        run = await try_get_run(client, run_id)
        return created, run_id, None if run is None else run.state.value

    created, run_id, state = run_client(url, send_work)
    if as_json:
        print_json({"id": run_id, "address": address, "state": state, "created": created})
    elif created is False:
        print(make_printable(f"run {run_id!r} was sent before: it is {state}"))
    else:
        print(make_printable(f"sent to {address!r} as run {run_id!r}"))


async def _is_new(client: Client, run_id: str) -> bool | None:
    """Whether there is no such run yet; ``None`` if this key may not read runs."""
    try:
        await client.get(run_id)
    except RunNotFound:
        return True
    except NotAllowed:
        return None
    return False


@listing_group("holdfast addresses", "holdfast addresses set data-pipeline --max-deliveries 5 --deadline 1h")
@json_option("A JSON array of addresses, each as in `GET /v1/addresses`.")
@url_option
def addresses(as_json: bool, url: str | None) -> None:
    """List addresses, which agents in other frameworks and languages listen on.

    An address exists as soon as something is sent to it or a process listens on it.
    """
    found = run_client(url, lambda client: client.addresses.list())
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
    header = ("address", "deliveries", "deadline", "lease", "delivered")
    empty_text = (
        "no addresses yet: one exists as soon as something is sent to it (`holdfast send NAME`) or a process "
        "listens on it"
    )
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text, right_columns=(1,))


def _describe_delivery(address: AddressInfo) -> str:
    if address.webhook is None:
        return "fetched by listeners"
    if address.webhook_disabled_reason is not None:
        return f"not sent: {address.webhook_disabled_reason}"
    return f"sent to {address.webhook}"


@addresses.command(
    name="set", epilog=format_example("holdfast addresses set data-pipeline --max-deliveries 5 --lease '1 min'")
)
@click.argument("name")
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=1),
    metavar="N",
    help="Deliveries that may fail, or whose listener may die while it holds nothing else, without a new step.",
)
@duration_option("--deadline", help="How long until a run must have ended.")
@click.option("--no-deadline", is_flag=True, help="No deadline for runs.")
@duration_option("--lease", min_s=1, help="How long a listener may be silent before it counts as dead.")
@duration_option(
    "--webhook-timeout", min_s=1, max_s=300, help="How long until a request to the webhook must be answered."
)
@json_option("A JSON object, as from `PUT /v1/addresses/{name}`, and `changed`.")
@url_option
def set_address(name: str, no_deadline: bool, as_json: bool, url: str | None, **options: float | None) -> None:
    """Change settings of an address. Settings that you do not give stay as they are."""
    if options["deadline"] is not None and no_deadline:
        raise click.UsageError("--deadline and --no-deadline say the opposite: give one of them.")
    settings: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if no_deadline:
        settings["deadline"] = None
    if not settings:
        raise click.UsageError(
            "what is to be set? Give --max-deliveries, --deadline, --no-deadline, --lease or --webhook-timeout."
        )

    async def set_one(client: Client) -> tuple[AddressInfo | None, AddressInfo]:
        before = next((one for one in await client.addresses.list() if one.name == name), None)
        return before, await client.addresses.set(name, **settings)

    before, now = run_client(url, set_one)
    if as_json:
        print_json({**to_json(now), "changed": before != now})
        return
    deadline = "no deadline" if now.deadline is None else f"a deadline of {format_duration(now.deadline)}"
    result = "has these settings now" if before != now else "had these settings before: nothing changed"
    print(
        make_printable(
            f"address {name!r} {result}: at most {now.max_deliveries} deliveries in a row without a new step, "
            f"{deadline}, and listeners count as dead after {format_duration(now.lease)} of silence"
        )
    )
