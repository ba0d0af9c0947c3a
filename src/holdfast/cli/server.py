"""``holdfast serve``."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.cli.event_loop import in_loop
from holdfast.cli.log_setup import set_up_log
from holdfast.server.uvicorn_server import serve  # what is missing here is said by an error of its own


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
    max_streams: int,
    keep_audit: float,
    webhook_hosts: Collection[str],
    grace: float,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve until told to stop."""
    from holdfast.server.app import Settings

    say = set_up_log("holdfast.server", log_level, log_format)
    settings = Settings(
        max_body=max_body,
        rate=rate,
        max_streams=max_streams,
        keep_audit=keep_audit,
        allow_webhooks_to=tuple(map(str.lower, webhook_hosts)),
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
            say=say,
        )
    )
