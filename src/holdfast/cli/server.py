"""``holdfast serve``."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.cli.event_loop import run_in_loop
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
        max_body_bytes=max_body,
        requests_per_s=rate,
        max_open_streams=max_streams,
        audit_retention_s=keep_audit,
        allowed_webhook_hosts=tuple(map(str.lower, webhook_hosts)),
    )
    run_in_loop(
        serve(
            url,
            host=host,
            port=port,
            allowed_hosts=host_names,
            tls_cert=tls_cert,
            tls_key=tls_key,
            trusted_proxies=proxies,
            grace_s=grace,
            settings=settings,
            print_line=say,
        )
    )
