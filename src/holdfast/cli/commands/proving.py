"""Commands for journals, code and the machine: what is there, and whether it is sound."""

from __future__ import annotations

import sys

import click

from holdfast.cli.declaring import example, show_error, url_option
from holdfast.errors import HoldfastError


@click.command(epilog=example("holdfast export etl-acme > etl-acme.json", "holdfast export etl-acme -o etl-acme.json"))
@click.argument("run_id", metavar="ID")
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
@url_option
def export(run_id: str, output: str | None, url: str | None) -> None:
    """Write a run's journal as JSON, for `holdfast replay` and for tests.

    The file contains recorded values as they are: what the run was given, what its steps returned, and what was sent to
    it. Look through it before you share it or put it under version control.
    """
    from holdfast.cli.journals import write_journal

    write_journal(url, run_id, output)


@click.command(
    epilog=example("holdfast replay etl-acme.json app:etl", "holdfast export etl-acme | holdfast replay - app.py")
)
@click.argument("file")
@click.argument("target")
def replay(file: str, target: str) -> None:
    """Try the code in TARGET against a recorded run.

    FILE is what `holdfast export` wrote (`-`: stdin). TARGET is `module`, `module:workflow`, `path/to/app.py` or
    `app.py:workflow`. The workflow's code is run through the journal as a worker would do it that takes the run over:
    no step is executed, and no store is touched. Exits with 0 if the code still does what was recorded, with 1 if it
    does not, and with 2 if there is nothing to compare.
    """
    from holdfast.cli.journals import replay_file

    try:
        code = replay_file(file, target)
    except HoldfastError as error:
        show_error(error)
        code = 2
    sys.exit(code)


@click.command(epilog=example("holdfast check app.py", "holdfast check jobs/ pkg.flows --json"))
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, for programs.")
def check(targets: tuple[str, ...], as_json: bool) -> None:
    """Look for what does not replay in workflow code.

    TARGET is a file, a folder or a module. Its source is read; nothing is imported, nothing runs. Each finding is a
    line with its place, what is wrong, and the way out. `# holdfast: ignore` on the line silences it, and `# holdfast:
    ignore[clock]` only that kind. Exits with 0 if nothing is found, with 1 if something is, and with 2 if something
    cannot be read.
    """
    from holdfast.cli.checking import check_targets

    try:
        code = check_targets(targets, as_json=as_json)
    except HoldfastError as error:
        show_error(error)
        code = 2
    sys.exit(code)


@click.command(epilog=example("holdfast doctor", "holdfast doctor --url sqlite:////var/lib/app/runs.db --json"))
@click.option("--json", "as_json", is_flag=True, help="A JSON object, for programs.")
@url_option
def doctor(as_json: bool, url: str | None) -> None:
    """Check the machine and the store.

    Says of each thing whether it is well, and what to do if not: also which model providers can be asked from here.
    Changes nothing, and shows no key. Exits with 1 if something fails.
    """
    from holdfast.cli.doctor import examine

    sys.exit(examine(url, as_json=as_json))
