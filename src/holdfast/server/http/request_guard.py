"""The guard refuses requests before they are examined: for unexpected hosts, from other sites, or too large.

**Hosts.** A page of another site can point its own name to this machine (DNS rebinding). Its requests then look local,
but they carry that name. So only requests for expected names are accepted.

**Other sites.** A browser sends what pages of other sites request, and says so: by ``Sec-Fetch-Site``, or, if it does
not know that header or does not trust the connection, by ``Origin``. Requests of such pages are refused. Such a page
may only link to something that changes nothing (``allow_navigation``). Programs send neither header, and are not
affected.

**Size.** A body whose declared size is too large is refused at once. ``Request`` counts what arrives of the others.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.server.http.remote_addresses import is_same_origin, parse_host_name
from holdfast.server.http.request import Request, RequestHeaders, body_too_large_problem
from holdfast.services.problems import Problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ANY_HOST = "*"


class RequestGuard:
    """Checks the heads of requests."""

    def __init__(self, *, allowed_hosts: Collection[str], max_body_bytes: int) -> None:
        self._allowed_hosts = frozenset(map(str.lower, allowed_hosts))
        self._max_body_bytes = max_body_bytes

    def check(self, request: Request) -> None:
        """Refuse a request, or do nothing. Raises ``Problem``."""
        headers = request.headers
        self._check_host(headers)
        check_same_site(headers, allow_navigation=request.method in SAFE_METHODS)
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._max_body_bytes):
            raise body_too_large_problem(self._max_body_bytes)

    def _check_host(self, headers: RequestHeaders) -> None:
        hosts = headers.get_all("host")
        host = parse_host_name(hosts[0]) if len(hosts) == 1 else ""
        if not host or (ANY_HOST not in self._allowed_hosts and host not in self._allowed_hosts):
            raise Problem(
                421,
                "unknown-host",
                "This server does not answer under that name",
                f"The request is for host {host[:100]!r}. If that is one of its names, start the server with "
                f"--host-name {host[:100]}."
                if host
                else "A request names one host, in its header Host.",
            )


def check_same_site(headers: RequestHeaders, *, allow_navigation: bool) -> None:
    """Refuse a request of another site's page. Raises ``Problem``."""
    if "sec-fetch-site" in headers:
        is_same_site = all(site in ("same-origin", "none") for site in headers.get_all("sec-fetch-site"))
    elif "origin" in headers:
        is_same_site = all(is_same_origin(origin, headers.get("host", "")) for origin in headers.get_all("origin"))
    else:
        return  # a program
    if is_same_site or (allow_navigation and headers.get("sec-fetch-mode") == "navigate"):
        return
    raise Problem(
        403,
        "cross-site",
        "A page of another site may not ask for that",
        "Requests are taken from programs, and from pages of this server alone.",
    )
