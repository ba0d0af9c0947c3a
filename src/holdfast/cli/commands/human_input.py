"""Commands by which people take part: signals, and answers to what runs ask."""

from __future__ import annotations

import sys

import click

from holdfast.cli.options import F, format_example, json_changes_option, json_option, limit_option, url_option


def _answer_options(command: F) -> F:
    """The options of a command that answers."""
    for option in (
        click.option(
            "--by",
            metavar="WHO",
            help="Who answers; unless given, the user of this machine, or of a server, the name of the key.",
        ),
        click.option("--reason", metavar="TEXT", default="", help="Why, for people to read, and for the run."),
    ):
        command = option(command)
    return command


@click.command(
    epilog=format_example(
        "holdfast signal order-7 approved true", 'holdfast signal order-7 note "call first" --id note-from-ann'
    )
)
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--id", "dedup", metavar="DEDUP", help="Sending again under the same DEDUP changes nothing.")
@json_changes_option
@url_option
def signal(run_id: str, name: str, value: str | None, dedup: str | None, as_json: bool, url: str | None) -> None:
    """Send a value into a run, to its `wait_for_signal(NAME)`.

    VALUE is read as JSON (`true`, `3`, `{"by": "ann"}`); what is not JSON is sent as a string. Without a VALUE, None is
    sent.
    """
    from holdfast.cli.signals import send_signal

    sys.exit(send_signal(url, run_id, name, value, dedup, as_json=as_json))


@click.command(
    epilog=format_example("holdfast approvals", "holdfast approvals deploy-7 --all", "holdfast approvals --for ann")
)
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--all", "all_", is_flag=True, help="Also those that are closed: answered, or nobody waits any more.")
@click.option("--workflow", metavar="W", help="Only those of runs of this workflow.")
@click.option("--for", "assignee", metavar="WHO", help="Only those that WHO is asked.")
@limit_option
@json_option("A JSON array of objects: all that is shown of each.")
@url_option
def approvals(
    run_id: str | None,
    all_: bool,
    workflow: str | None,
    assignee: str | None,
    limit: int,
    as_json: bool,
    url: str | None,
) -> None:
    """List what runs ask people, the longest open first.

    Each question is shown with all that belongs to it: who is asked, since when and until when, the arguments of a
    call in full, the choices or the fields of a form, and the command that answers it.
    """
    from holdfast.cli.approvals import show_approvals

    show_approvals(url, run_id, workflow=workflow, assignee=assignee, include_closed=all_, limit=limit, as_json=as_json)


@click.command(
    epilog=format_example(
        "holdfast approve 3mkjh2t65l7y",
        "holdfast approve 3mkj production",
        """holdfast approve 3mkj --value '{"days": 3}' --by ann""",
    )
)
@click.argument("approval_id", metavar="ID")
@click.argument("value", required=False)
@click.option("--value", "as_value", metavar="JSON", help="The answer as JSON: what is filled into a form.")
@click.option("--arguments", metavar="JSON", help="Of a tool's call: arguments in place of those that are shown.")
@_answer_options
@json_changes_option
@url_option
def approve(
    approval_id: str,
    value: str | None,
    as_value: str | None,
    arguments: str | None,
    by: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Say yes to what a run asks.

    ID is that of the approval, as `holdfast approvals` shows it (its beginning will do), or that of the run, if the
    run has one open approval. VALUE is the choice, if there are choices. The answer is
    checked first: if it does not fit, the question stays open. Each question is answered once.
    """
    from holdfast.cli.approvals import approve

    sys.exit(
        approve(url, approval_id, value, value=as_value, arguments=arguments, by=by, reason=reason, as_json=as_json)
    )


@click.command(epilog=format_example("holdfast deny 3mkjh2t65l7y", 'holdfast deny 3mkj --reason "not on a Friday"'))
@click.argument("approval_id", metavar="ID")
@_answer_options
@json_changes_option
@url_option
def deny(approval_id: str, by: str | None, reason: str, as_json: bool, url: str | None) -> None:
    """Say no to what a run asks.

    ID is that of the approval (its beginning will do), or that of the run, if the run has one open approval.
    """
    from holdfast.cli.approvals import deny

    sys.exit(deny(url, approval_id, by=by, reason=reason, as_json=as_json))
