"""Commands about work for processes elsewhere, and about what a day may cost."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.options import CommandGroup, format_example, json_option, list_by_default, url_option


@click.command(
    epilog=format_example(
        'holdfast send data-pipeline \'{"customer": "acme"}\'', "holdfast send mailer hello --id mail-7 --deadline 60"
    )
)
@click.argument("address")
@click.argument("payload", required=False)
@click.option("--id", "id_", metavar="ID", help="The run's id: sending again under the same ID is the same run.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds until it must end.")
@json_option("A JSON object: id, address, state, created (the last two may be null if the key cannot read).")
@url_option
def send(
    address: str, payload: str | None, id_: str | None, deadline: float | None, as_json: bool, url: str | None
) -> None:
    """Send work to an address, for whoever listens there.

    PAYLOAD is read as JSON (`true`, `3`, `{"customer": "acme"}`); what is not JSON is sent as a string. What is sent is
    a run: `holdfast show` tells how it is, and `holdfast events` follows it.
    """
    from holdfast.cli.addresses import send_work as carry_out

    carry_out(url, address, payload, id=id_, deadline=deadline, as_json=as_json)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=format_example(
        "holdfast addresses", "holdfast addresses set data-pipeline --max-deliveries 5 --deadline 3600"
    ),
)
@json_option(
    "A JSON array of objects: name, max_deliveries, deadline, lease, webhook, webhook_disabled_reason, webhook_timeout."
)
@url_option
@list_by_default
def addresses(as_json: bool, url: str | None) -> None:
    """List addresses: where work is sent to, and taken from by processes elsewhere.

    An address is there as soon as somebody sends to it or listens on it.
    """
    from holdfast.cli.addresses import show_addresses

    show_addresses(url, as_json=as_json)


@addresses.command(
    name="set", epilog=format_example("holdfast addresses set data-pipeline --max-deliveries 5 --lease 60")
)
@click.argument("name")
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=1),
    metavar="N",
    help="Deliveries that may fail, or whose listener may die while it holds nothing else, without a new step.",
)
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds until a run must have ended."
)
@click.option("--no-deadline", is_flag=True, help="Runs may take as long as they like.")
@click.option(
    "--lease", type=click.FloatRange(min=1), metavar="S", help="Seconds of silence after which a listener is dead."
)
@click.option(
    "--webhook-timeout",
    type=click.FloatRange(min=1, max=300),
    metavar="S",
    help="Seconds until a request to the webhook must be answered.",
)
@json_option(
    "A JSON object: name, max_deliveries, deadline, lease, webhook, webhook_disabled_reason, webhook_timeout, changed."
)
@url_option
def set_address(
    name: str,
    max_deliveries: int | None,
    deadline: float | None,
    no_deadline: bool,
    lease: float | None,
    webhook_timeout: float | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Set settings of an address; what is not given stays as it is."""
    from holdfast.cli.addresses import set_address as carry_out

    if deadline is not None and no_deadline:
        raise click.UsageError("--deadline and --no-deadline say the opposite: give one of them.")
    given: dict[str, Any] = {
        "max_deliveries": max_deliveries,
        "deadline": deadline,
        "lease": lease,
        "webhook_timeout": webhook_timeout,
    }
    settings = {word: value for word, value in given.items() if value is not None}
    if no_deadline:
        settings["deadline"] = None
    if not settings:
        raise click.UsageError(
            "what is to be set? Give --max-deliveries, --deadline, --no-deadline, --lease or --webhook-timeout."
        )
    carry_out(url, name, settings, as_json=as_json)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=format_example("holdfast policies", "holdfast policies set researcher --usd 20 --on-breach pause"),
)
@json_option("A JSON array of objects: name, policy, day, run_count, usd, breach.")
@url_option
@list_by_default
def policies(as_json: bool, url: str | None) -> None:
    """List policies: what agents may use up in a day, and how the day is.

    A policy limits the runs and the cost of an agent, a workflow or an address in a day (of UTC), and says what happens
    when a limit is reached. Servers see to it: one must be running (`holdfast serve`).
    """
    from holdfast.cli.policies import show_policies

    show_policies(url, as_json=as_json)


_JSON_CHANGE_HELP = "A JSON object: name, changed, message."


@policies.command(
    name="set", epilog=format_example("holdfast policies set researcher --runs 500 --usd 20 --on-breach pause")
)
@click.argument("agent")
@click.option("--runs", type=click.IntRange(min=0), metavar="N", help="So many runs in a day.")
@click.option("--usd", type=click.FloatRange(min=0), metavar="X", help="So many dollars in a day.")
@click.option(
    "--on-breach",
    type=click.Choice(("notify", "refuse", "pause", "disable")),
    default="refuse",
    show_default=True,
    help="notify: only tell; refuse: no new runs through servers until the day is over; pause: disable it until "
    "then; disable: until someone enables it.",
)
@json_option(_JSON_CHANGE_HELP)
@url_option
def set_policy(agent: str, runs: int | None, usd: float | None, on_breach: str, as_json: bool, url: str | None) -> None:
    """Limit what an agent may use up in a day, in place of the policy that it has."""
    from holdfast.cli.policies import set_policy as carry_out

    if runs is None and usd is None:
        raise click.UsageError("that limits nothing: give --runs, --usd or both.")
    carry_out(url, agent, runs, usd, on_breach, as_json=as_json)


@policies.command(epilog=format_example("holdfast policies delete researcher"))
@click.argument("agent")
@json_option(_JSON_CHANGE_HELP)
@url_option
def delete(agent: str, as_json: bool, url: str | None) -> None:
    """Delete the policy of an agent. An agent that the policy disabled for the day is enabled again."""
    from holdfast.cli.policies import delete_policy

    delete_policy(url, agent, as_json=as_json)
