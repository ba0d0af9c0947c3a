"""Commands that run until they are stopped: in this process, or in several under a supervisor, with probes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.shared.group import F
from holdfast.errors import UsageError
from holdfast.processes.readiness import Readiness
from holdfast.processes.supervised_process import SupervisedProcess
from holdfast.stores.urls import resolve_store_url, split_namespace

if TYPE_CHECKING:
    from holdfast.processes.supervisor import Supervisor


class AddressType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - click 8.1 takes none
    """``HOST:PORT``, as a tuple."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Parse what was typed."""
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address: write HOST:PORT, as in 0.0.0.0:7180.", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


def service_options(*names: str, help: str) -> Callable[[F], F]:
    """``--processes``, under these names and with this help, and ``--probe-address``."""

    def declare(command: F) -> F:
        command = click.option(
            "--probe-address",
            type=AddressType(),
            metavar="HOST:PORT",
            help="Answer `GET /healthz` and `GET /readyz` here, for Kubernetes and other service managers, and "
            "`GET /metrics`, for Prometheus.",
        )(command)
        return click.option(*names, "process_count", type=click.IntRange(min=1), metavar="N", help=help)(command)

    return declare


def run_service(
    execute: Callable[[Readiness, Sequence[socket.socket]], None],
    *,
    kind: str,
    url: str | None,
    process_count: int | None,
    probe_address: tuple[str, int] | None,
    set_up_log: Callable[[], object],
    max_silence_s: float,
    open_sockets: Callable[[], Sequence[socket.socket]] = tuple,
) -> None:
    """Execute a command in this process, or have a supervisor start ``process_count`` processes of the same command.

    Args:
        execute: executes the command. It gets the readiness of this process to maintain, and inherited sockets.
        kind: what log lines call such a process.
        url: the store.
        process_count: how many processes; ``None``: this one, without a supervisor.
        probe_address: where probes are answered.
        set_up_log: sets up the log of the supervisor. In this process, ``execute`` does so.
        max_silence_s: seconds without a sign of life after which the supervisor kills a process.
        open_sockets: opens sockets that all processes inherit.
    """
    readiness = Readiness()
    process = SupervisedProcess.from_environment()
    if process is not None:
        process.start_reporting(readiness)
        if probe_address is not None:
            from holdfast.telemetry.process_totals import dump_metrics
            from holdfast.telemetry.telemetry import enable_metrics

            metrics = enable_metrics()
            process.start_answering(lambda: dump_metrics(metrics))
        execute(readiness, process.sockets)
    elif process_count is None:
        with _answer_probes(probe_address, readiness):
            execute(readiness, ())
    else:
        if split_namespace(resolve_store_url(url))[0].startswith("memory:"):
            raise UsageError(
                "memory:// belongs to one process, and --processes starts several: use a store that they can share, "
                "such as sqlite:///runs.db"
            )
        from holdfast.processes.supervisor import Supervisor

        set_up_log()
        supervisor = Supervisor(
            sys.argv[1:], process_count, kind=kind, sockets=open_sockets(), max_silence_s=max_silence_s
        )
        readiness.get_reason = supervisor.get_not_ready_reason
        with _answer_probes(probe_address, readiness, supervisor):
            sys.exit(supervisor.run())


def _answer_probes(
    address: tuple[str, int] | None, readiness: Readiness, supervisor: Supervisor | None = None
) -> AbstractContextManager[object]:
    if address is None:
        return nullcontext()
    from holdfast.processes.probe_listener import ProbeListener, ProbeResponse, make_probe_routes
    from holdfast.telemetry.process_totals import ProcessTotals
    from holdfast.telemetry.prometheus import CONTENT_TYPE, render_metrics
    from holdfast.telemetry.telemetry import enable_metrics

    source = enable_metrics() if supervisor is None else ProcessTotals(supervisor.ask_processes)
    routes = make_probe_routes(readiness)
    routes["/metrics"] = lambda: ProbeResponse(200, render_metrics(source.list_metrics()).encode(), CONTENT_TYPE)
    return ProbeListener(*address, routes)
