"""Commands for journals, code and the machine: what is there, and whether it is sound."""

from __future__ import annotations

import sys

import click

from holdfast.cli.options import (
    STATES,
    database_option,
    format_example,
    json_option,
    refuse_server,
    report_error,
    store_only_option,
    url_option,
)
from holdfast.errors import HoldfastError


@click.command(
    epilog=format_example(
        "holdfast export etl-acme > etl-acme.json",
        "holdfast export etl-acme -o etl-acme.json",
        "holdfast export --all -o runs.jsonl",
    )
)
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--all", "everything", is_flag=True, help="All runs and what belongs to them, for `holdfast import`.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="With --all: only these; may be repeated."
)
@click.option("--workflow", metavar="W", help="With --all: only runs of this workflow.")
@click.option("--decrypted", is_flag=True, help="With --all: decrypt encrypted values; by default they stay encrypted.")
@url_option
def export(
    run_id: str | None,
    output: str | None,
    everything: bool,
    states: tuple[str, ...],
    workflow: str | None,
    decrypted: bool,
    url: str | None,
) -> None:
    """Write a run's journal as JSON, for `holdfast replay` and for tests; or many runs, for `holdfast import`.

    The file contains recorded values as they are: what the run was given, what its steps returned, and what was sent to
    it. Look through it before you share it or put it under version control. Encrypted values are readable in a journal;
    with --all they stay encrypted, unless you give --decrypted.
    """
    if (run_id is None) is not everything:
        raise click.UsageError("say which: the ID of a run, or --all.")
    if run_id is None:
        from holdfast.cli.archive_transfer import export_runs

        refuse_server(url, "a server exports one run, by its ID; all of them are exported where the store is.")
        export_runs(url, states, workflow, output, decrypted=decrypted)
        return
    if states or workflow is not None or decrypted:
        raise click.UsageError("--state, --workflow and --decrypted go with --all.")
    from holdfast.cli.journals import write_journal

    write_journal(url, run_id, output)


@click.command(
    "import",
    epilog=format_example(
        "holdfast import runs.jsonl --url postgresql://localhost/app",
        "holdfast export --all | holdfast import - --url ...",
    ),
)
@click.argument("file")
@click.option("--skip-existing", is_flag=True, help="Leave runs as they are whose ids are there already.")
@click.option("--dry-run", is_flag=True, help="Only check the file, and tell.")
@json_option("A JSON object: file, dry_run, runs, skipped.")
@store_only_option("run it where the store can be reached, with the URL that the server was given.")
def import_(file: str, skip_existing: bool, dry_run: bool, as_json: bool, url: str | None) -> None:
    """Put runs into a store that were exported from another one.

    FILE is what `holdfast export --all` wrote (`-`: stdin). Runs keep their ids and all that belongs to them; those
    that have not ended go on where they are, under the workers of this store. To move to another store, stop all
    workers, export, import, and start the workers there. All of the file is checked before anything is written, and a
    run that is there is never overwritten.
    """
    from holdfast.cli.archive_transfer import import_runs

    import_runs(url, file, skip_existing=skip_existing, dry_run=dry_run, as_json=as_json)


@click.command(
    epilog=format_example(
        "holdfast replay etl-acme.json app:etl", "holdfast export etl-acme | holdfast replay - app.py"
    )
)
@click.argument("file")
@click.argument("target")
@json_option(
    "A JSON object: run_id, workflow, recorded_state, is_match, state, replayed_count, record_count, waits_for, "
    "problem."
)
def replay(file: str, target: str, as_json: bool) -> None:
    """Try the code in TARGET against a recorded run.

    FILE is what `holdfast export` wrote (`-`: stdin). TARGET is `module`, `module:workflow`, `path/to/app.py` or
    `app.py:workflow`. The workflow's code is run through the journal as a worker would do it that takes the run over:
    no step is executed, and no store is touched. Exits with 0 if the code still does what was recorded, with 1 if it
    does not, and with 2 if there is nothing to compare.
    """
    from holdfast.cli.journals import replay_file

    try:
        code = replay_file(file, target, as_json=as_json)
    except HoldfastError as error:
        report_error(error)
        code = 2
    sys.exit(code)


@click.command(epilog=format_example("holdfast check app.py", "holdfast check jobs/ pkg.flows --json"))
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@json_option("A JSON array of objects: file, line, column, kind, code_text, reason, remedy, workflow.")
def check(targets: tuple[str, ...], as_json: bool) -> None:
    """Look for what does not replay in workflow code.

    TARGET is a file, a folder or a module. Its source is read; nothing is imported, nothing runs. Each finding is a
    line with its place, what is wrong, and the way out. `# holdfast: ignore` on the line silences it, and `# holdfast:
    ignore[clock]` only that kind. Exits with 0 if nothing is found, with 1 if something is, and with 2 if something
    cannot be read.
    """
    from holdfast.cli.code_check import check_targets

    try:
        code = check_targets(targets, as_json=as_json)
    except HoldfastError as error:
        report_error(error)
        code = 2
    sys.exit(code)


@click.command(epilog=format_example("holdfast namespaces", "holdfast namespaces --json"))
@json_option("A JSON array of names.")
@store_only_option(
    "a server knows by the key whose runs are meant, and `holdfast doctor` tells which namespace that is.",
    database_option,
)
def namespaces(as_json: bool, url: str | None) -> None:
    """List the namespaces of a database.

    Where several programs or tenants share one, each has a namespace, and sees nothing of the others: see the option
    `--namespace` of other commands.
    """
    from holdfast.cli.namespaces import show_namespaces

    show_namespaces(url, as_json=as_json)


@click.command(epilog=format_example("holdfast doctor", "holdfast doctor --url sqlite:////var/lib/app/runs.db --json"))
@json_option("A JSON object: ok, checks (an array of objects: name, status, message, advice).")
@url_option
def doctor(as_json: bool, url: str | None) -> None:
    """Check the machine and the store.

    Says of each thing whether it is well, and what to do if not: also which model providers can be asked from here.
    Changes nothing, and shows no key. Exits with 1 if something fails.
    """
    from holdfast.cli.doctor import run_doctor

    sys.exit(run_doctor(url, as_json=as_json))
