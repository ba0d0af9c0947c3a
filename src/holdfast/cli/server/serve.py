"""``holdfast serve``."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from functools import partial
from socket import socket

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.options import (
    command,
    count_option,
    duration_option,
    log_options,
    set_up_log,
    store_only_option,
)
from holdfast.cli.shared.service import run_service, service_options
from holdfast.processes.readiness import Readiness

_MIN_COLLECTED_OBJECTS = 20_000
"""New objects after which garbage is collected."""
_MAX_SILENCE_S = 60.0
"""Seconds without a report after which a supervisor kills a server process."""


@command(
    "holdfast serve",
    "holdfast serve --host 0.0.0.0 --host-name agents.example.com --tls-cert cert.pem --tls-key key.pem",
    "holdfast serve --trust-proxy 10.0.0.7 --host-name agents.example.com",
    "holdfast serve --processes 4 --probe-address 0.0.0.0:7180",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="IP",
    help="The address to listen on. Any other than this machine needs an API key first.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7100,
    show_default=True,
    metavar="N",
    help="The port; 0: any free port.",
)
@click.option(
    "--host-name",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which clients call the server, in addition to localhost; may be repeated. `*`: any.",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The certificate, to serve HTTPS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key, if not in the same file.")
@click.option(
    "--trust-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="IP",
    help="Trust what this proxy says about where requests come from; may be repeated.",
)
@click.option(
    "--max-body",
    type=click.FloatRange(min=0, min_open=True),
    default=16.0,
    show_default=True,
    metavar="MIB",
    help="Maximum size of the body of a request.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=500.0,
    show_default=True,
    metavar="N",
    help="Maximum requests per second of one key, counted by each server on its own.",
)
@count_option("--max-streams", default=256, help="Maximum number of event streams that one key may have open at once.")
@duration_option("--keep-audit", min_s=0, default="90 days", help="How long entries of the audit log are kept.")
@click.option(
    "--allow-webhook-to",
    "webhook_hosts",
    multiple=True,
    metavar="HOST",
    help="A host in a private network that webhooks may be sent to; may be repeated.",
)
@duration_option(
    "--grace",
    "grace_s",
    min_s=1,
    default="10 s",
    help="How long requests in flight may take to finish when the server stops.",
)
@service_options(
    "--processes",
    "--workers",
    help="Start this many server processes on the same address, and replace those that die. Default: this process is "
    "the only one.",
)
@log_options
@store_only_option("a server serves a store, give its URL.")
def serve(
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    trusted_proxies: tuple[str, ...],
    max_body: float,
    rate: float,
    max_streams: int,
    keep_audit: float,
    webhook_hosts: tuple[str, ...],
    grace_s: float,
    process_count: int | None,
    probe_address: tuple[str, int] | None,
    log_level: str | None,
    log_format: str | None,
    url: str | None,
) -> None:
    """Serve the store over HTTP, for agents of any framework and language.

    By default it listens on this machine only. There, programs of the same user may do everything until you create the
    first API key (`holdfast keys create`); from then on every request needs one. Start as many servers as you like, on
    the same store; --processes starts several on one address. SIGTERM or Ctrl-C stops a server cleanly; a second one
    stops it at once.

    `GET /v1/openapi.json` describes the API. --namespace is the namespace of requests that need no key.
    """
    set_up = partial(set_up_log, "holdfast.server", log_level, log_format)

    def execute(readiness: Readiness, sockets: Sequence[socket]) -> None:
        # Imported here, because `serve --help` must work without the packages of a server.
        from holdfast.server import endpoints  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before ``gc.freeze``
        from holdfast.server.app import Settings
        from holdfast.server.uvicorn_server import find_loop_factory
        from holdfast.server.uvicorn_server import serve as serve_http
        from holdfast.telemetry.environment import configure_from_environment
        from holdfast.telemetry.telemetry import enable_metrics

        configure_from_environment("holdfast-server")
        enable_metrics()
        # Requests make many objects and few cycles: collections were an eighth of the server's CPU time.
        gc.freeze()
        gc.set_threshold(_MIN_COLLECTED_OBJECTS)
        run_in_loop(
            serve_http(
                url,
                host=host,
                port=port,
                allowed_hosts=allowed_hosts,
                tls_cert=tls_cert,
                tls_key=tls_key,
                trusted_proxies=trusted_proxies,
                grace_s=grace_s,
                settings=Settings(
                    max_body_bytes=int(max_body * 1024 * 1024),
                    requests_per_s=rate,
                    max_open_streams=max_streams,
                    audit_retention_s=keep_audit,
                    allowed_webhook_hosts=tuple(map(str.lower, webhook_hosts)),
                ),
                print_line=set_up(),
                sockets=sockets,
                readiness=readiness,
            ),
            loop_factory=find_loop_factory(),
        )

    def open_shared_sockets() -> Sequence[socket]:
        from holdfast.server.http.listening_sockets import open_sockets

        return asyncio.run(open_sockets(host, port))

    run_service(
        execute,
        kind="server",
        url=url,
        process_count=process_count,
        probe_address=probe_address,
        set_up_log=set_up,
        max_silence_s=_MAX_SILENCE_S,
        open_sockets=open_shared_sockets,
    )
