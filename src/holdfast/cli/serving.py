"""``holdfast serve``."""

from __future__ import annotations

import logging
from collections.abc import Collection

import click

from holdfast.cli.event_loop import in_loop
from holdfast.server.serve import serve  # what is missing here is said by an error of its own


def serve_http(
    url: str | None,
    *,
    host: str,
    port: int,
    host_names: Collection[str],
    tls_cert: str | None,
    tls_key: str | None,
    proxies: Collection[str],
    max_body: int,
    rate: float,
    keep_audit: float,
    webhook_hosts: Collection[str],
    grace: float,
) -> None:
    """Serve until told to stop."""
    from holdfast.server.app import Settings

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings(
        max_body=max_body, rate=rate, keep_audit=keep_audit, allow_webhooks_to=tuple(map(str.lower, webhook_hosts))
    )
    in_loop(
        serve(
            url,
            host=host,
            port=port,
            hosts=host_names,
            tls_cert=tls_cert,
            tls_key=tls_key,
            trust_proxy=proxies,
            grace=grace,
            settings=settings,
            say=_say,
        )
    )


def _say(line: str) -> None:
    click.echo(line, err=True)  # with the log
