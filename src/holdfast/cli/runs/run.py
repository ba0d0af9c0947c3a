"""``holdfast run``."""

from __future__ import annotations

import sys

import click

from holdfast.cli.shared.options import format_example, url_option


@click.command(
    "run",
    epilog=format_example(
        "holdfast run research.py entanglement",
        "holdfast run --id nightly-2026-11-19 --supervise -m reports.nightly",
        "holdfast run --record 'GET https://api.example.com/prices/*' agent.py",
    ),
    context_settings={"allow_interspersed_args": False},  # options after the script are the script's
)
@click.option("--id", "run_id", metavar="NAME", help="The run's id. The same ID continues the same run.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does, instead of a file.")
@click.option(
    "--record", "patterns", multiple=True, metavar="PATTERN",
    help="Also record HTTP calls that match, as in 'GET https://api.example.com/*'; may be repeated.",
)  # fmt: skip
@click.option(
    "--on-change", type=click.Choice(["stop", "live"]), default="stop", show_default=True,
    help="If the script makes another call than the recorded one: stop, or continue with live calls from there.",
)  # fmt: skip
@click.option("--supervise", is_flag=True, help="Start the script again when its process is killed.")
@click.argument("arguments", metavar="[SCRIPT] [ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@url_option
def run(
    run_id: str | None,
    module: str | None,
    patterns: tuple[str, ...],
    on_change: str,
    supervise: bool,
    arguments: tuple[str, ...],
    url: str | None,
) -> None:
    """Run a Python program so that a crash does not repeat its model calls.

    Each model call that the program makes over HTTP is recorded. After a crash, or a failure, the same command runs
    the program again from its beginning, and the recorded calls are answered from the record. The program needs no
    changes, and may use any framework.
    """
    from holdfast.scripts.script import Script

    if module is None and not arguments:
        raise click.UsageError(
            "Name a script, as in `holdfast run research.py`, or a module: `holdfast run -m reports`."
        )
    script = Script(arguments[0], arguments[1:]) if module is None else Script(module, arguments, is_module=True)
    script.check()
    if supervise:
        from holdfast.scripts import supervisor

        raise SystemExit(supervisor.supervise([word for word in sys.argv[1:] if word != "--supervise"]))
    from holdfast.scripts.execution import run_script

    raise SystemExit(run_script(script, run_id, patterns, url, passes_over_changes=on_change == "live"))
