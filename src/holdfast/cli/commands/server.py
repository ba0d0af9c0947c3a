"""``holdfast serve``, and what belongs to it: API keys and the audit log."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from holdfast.cli.datetimes import parse_duration, parse_future_datetime
from holdfast.cli.options import (
    CommandGroup,
    database_option,
    format_example,
    json_option,
    limit_option,
    log_options,
    store_only_option,
    url_option,
)


@click.command(
    epilog=format_example(
        "holdfast serve",
        "holdfast serve --host 0.0.0.0 --host-name agents.example.com --tls-cert cert.pem --tls-key key.pem",
        "holdfast serve --trust-proxy 10.0.0.7 --host-name agents.example.com",
    )
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="IP",
    help="The address to listen on; others need an API key first.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7100,
    show_default=True,
    metavar="N",
    help="The port; 0: any that is free.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A name that clients call the server by, beside localhost; may be repeated. `*`: any.",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The certificate, to speak HTTPS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key, unless in the same file.")
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="IP",
    help="Believe what this proxy says about where requests come from; may be repeated.",
)
@click.option(
    "--max-body",
    type=click.FloatRange(min=0, min_open=True),
    default=16.0,
    show_default=True,
    metavar="MIB",
    help="The largest body of a request.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=500.0,
    show_default=True,
    metavar="N",
    help="Requests a second that one key may make, counted by each server on its own.",
)
@click.option(
    "--max-streams",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="Streams of events that one key may have open at once.",
)
@click.option(
    "--keep-audit",
    type=parse_duration,
    default="90d",
    show_default=True,
    metavar="TIME",
    help="How long entries of the audit log are kept.",
)
@click.option(
    "--allow-webhook-to",
    "webhook_hosts",
    multiple=True,
    metavar="HOST",
    help="A host in a private network that webhooks may be sent to; may be repeated.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=1.0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds that requests in flight get to end when the server is told to stop.",
)
@log_options
@store_only_option("a server serves a store, give its URL.")
def serve(
    host: str,
    port: int,
    host_names: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    proxies: tuple[str, ...],
    max_body: float,
    rate: float,
    max_streams: int,
    keep_audit: float,
    webhook_hosts: tuple[str, ...],
    grace: float,
    log_level: str | None,
    log_format: str | None,
    url: str | None,
) -> None:
    """Serve the store over HTTP, for agents of any framework and language.

    Listens on this machine alone unless told otherwise, where programs of the same user may do everything until the
    first API key is made (`holdfast keys create`); from then on every request needs one. Start as many servers as you
    like, on the same store. SIGTERM or Ctrl-C stops a server in good order; a second one, on the spot.

    `GET /v1/openapi.json` tells what can be asked for. With --namespace, that is the one of whoever needs no key.
    """
    from holdfast.cli.server import serve_http

    serve_http(
        url,
        host=host,
        port=port,
        host_names=host_names,
        tls_cert=tls_cert,
        tls_key=tls_key,
        proxies=proxies,
        max_body=int(max_body * 1024 * 1024),
        rate=rate,
        max_streams=max_streams,
        keep_audit=keep_audit,
        webhook_hosts=webhook_hosts,
        grace=grace,
        log_level=log_level,
        log_format=log_format,
    )


# Keys


@click.command(
    "encryption-key",
    epilog=format_example("holdfast encryption-key > key", "export HOLDFAST_ENCRYPTION_KEYS=$(cat key)"),
)
def encryption_key() -> None:
    """Make a key for the encryption of what is recorded, and print it.

    Put it into HOLDFAST_ENCRYPTION_KEYS wherever runs are started, executed or looked at. To exchange a key, put the
    new one in front of the old, with a comma between them: the first one writes, all of them read. Keep it where you
    keep passwords: it is shown once, and what was sealed with a lost key is lost.
    """
    from holdfast.codec import AesEncryption

    click.echo(AesEncryption.new_key())


@click.group(
    cls=CommandGroup,
    epilog=format_example(
        "holdfast keys create ci --scope submit --scope read --expires 90d",
        "holdfast keys create pipeline --scope listen:data-pipeline --namespace acme",
        "holdfast keys list",
        "holdfast keys revoke 3f2a90c1d4e7",
    ),
)
def keys() -> None:
    """Make, list and revoke API keys for `holdfast serve`.

    A key is bound to a namespace and may do what its scopes say: `read` sees, `submit` starts runs and sends,
    `operate` changes runs of others, schedules and queues, and answers questions, `admin` does all of that and makes
    keys, and `listen:ADDRESS` takes the deliveries of an address (`listen:*`: of all).
    """


_KEY_FIELDS = "id, name, namespace, scopes, created_at, created_by, expires_at, revoked_at"


@keys.command(epilog=format_example("holdfast keys create ci --scope submit --scope read --expires 90d"))
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="read, submit, operate, admin, listen:ADDRESS or listen:*; may be repeated.",
)
@click.option(
    "--expires", type=parse_future_datetime, metavar="WHEN", help="Such as 30d or 2027-01-31; never unless given."
)
@click.option("--quiet", is_flag=True, help="Print nothing but the key.")
@json_option(f"A JSON object: {_KEY_FIELDS}, token (the key itself).")
@url_option
def create(
    name: str, scopes: tuple[str, ...], expires: datetime | None, quiet: bool, as_json: bool, url: str | None
) -> None:
    """Make a key, and show it this once: what is kept is a hash.

    From the first key on, every request to a server over the same database needs one.
    """
    from holdfast.cli.keys import create_key

    if quiet and as_json:
        raise click.UsageError("--quiet and --json are two ways to print it: give one of them.")
    create_key(url, name, scopes, expires, quiet=quiet, as_json=as_json)


@keys.command(name="list", epilog=format_example("holdfast keys list", "holdfast keys list --namespace acme --json"))
@json_option(f"A JSON array of objects: {_KEY_FIELDS}.")
@click.option("--namespace", metavar="NAME", help="Only keys of this namespace; all of the database unless given.")
@database_option
def list_(as_json: bool, namespace: str | None, url: str | None) -> None:
    """List keys, also those that were revoked or have expired; never the secret."""
    from holdfast.cli.keys import show_keys

    show_keys(url, namespace, as_json=as_json)


@keys.command(epilog=format_example("holdfast keys revoke 3f2a90c1d4e7"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option("A JSON object for each key, one to a line: id, changed, error.")
@database_option
def revoke(ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Let keys open nothing any more. Servers that run heed it within two seconds."""
    from holdfast.cli.keys import revoke_keys

    sys.exit(revoke_keys(url, ids, as_json=as_json))


# The audit log


@click.command(epilog=format_example("holdfast audit --limit 20", "holdfast audit --namespace acme --json"))
@limit_option
@json_option("A JSON array of objects: id, at, key_id, key_name, action, target, outcome, remote.")
@url_option
def audit(limit: int, as_json: bool, url: str | None) -> None:
    """Tell who asked a server to change what, the newest first; also what was refused.

    Actions are the names of operations in `GET /v1/openapi.json`. What was done on this command line, or by programs
    that open the store themselves, is not in it.
    """
    from holdfast.cli.audit_log import show_audit_log

    show_audit_log(url, limit, as_json=as_json)
