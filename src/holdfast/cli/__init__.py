"""The ``holdfast`` command.

A command and its implementation are in one module, which is imported when the command is used. So ``holdfast --help``
is fast, and a command loads only what it needs. Errors of Holdfast are shown as one message, without a traceback.
"""

from __future__ import annotations

import click

from holdfast.cli.shared.group import LazyCommand, MainGroup
from holdfast.installation import __version__

SECTIONS = {
    "Getting started": {
        "demo": LazyCommand("demo:demo", "See an agent survive kill -9."),
        "run": LazyCommand("runs.run:run", "Run a Python program so that a crash does not repeat its model calls."),
        "worker": LazyCommand("worker:worker", "Execute runs of the workflows and agents in TARGET."),
        "start": LazyCommand(
            "runs.start:start", "Start a run of a workflow or an agent, for any worker that serves it."
        ),
    },
    "Runs": {
        "runs": LazyCommand("runs.list:runs", "List runs, newest first."),
        "show": LazyCommand("runs.show:show", "Show everything known about a run."),
        "events": LazyCommand(
            "runs.events:events",
            "Show what happens in a run, as it happens: answers word by word, tool calls, steps, plans, approvals.",
        ),
        "tail": LazyCommand("runs.tail:tail", "Follow what happens in all runs, one line per event, until Ctrl-C."),
        "signal": LazyCommand("runs.signal:signal", "Send a value to a run, to its `wait_for_signal(NAME)`."),
        "cancel": LazyCommand("runs.control:cancel", "Cancel runs."),
        "pause": LazyCommand("runs.control:pause", "Pause runs until they are resumed."),
        "resume": LazyCommand("runs.control:resume", "Resume paused runs."),
        "retry": LazyCommand(
            "runs.retry:retry", "Retry failed, cancelled, or dead runs: some by their ids, or all that match."
        ),
        "settle": LazyCommand(
            "runs.settle:settle", "Decide the outcome of a `once` step whose worker died while executing it."
        ),
        "fork": LazyCommand("runs.fork:fork", "Start a new run that shares the records of another one."),
        "budget": LazyCommand("runs.budget:budget", "Show what a run has used of its budget, or give it another one."),
        "dead": LazyCommand("runs.dead:dead", "List dead runs, and what they were doing."),
        "prune": LazyCommand(
            "runs.prune:prune", "Delete runs that ended long ago, with everything that belongs to them."
        ),
        "erase": LazyCommand("runs.erase:erase", "Erase one person's data: all values that ended runs have recorded."),
    },
    "Approvals": {
        "approvals": LazyCommand("runs.approvals:approvals", "List open approvals, oldest first."),
        "approve": LazyCommand("runs.approvals:approve", "Approve what a run asks."),
        "deny": LazyCommand("runs.approvals:deny", "Deny what a run asks."),
    },
    "Workflows and agents": {
        "agents": LazyCommand("workflows.agents:agents", "List agents, and whether live workers serve them."),
        "disable": LazyCommand("workflows.disable:disable", "Disable a workflow or an agent, everywhere."),
        "enable": LazyCommand(
            "workflows.disable:enable", "Enable a workflow or an agent that was disabled: its runs continue."
        ),
        "schedules": LazyCommand(
            "workflows.schedules:schedules", "List schedules: when each fires next, and the state of its last run."
        ),
        "queues": LazyCommand(
            "workflows.queues:queues",
            "List queues with limits: what is running and waiting in each, and why nothing starts.",
        ),
        "costs": LazyCommand("workflows.costs:costs", "Show what model calls used, by day, agent, and model."),
        "policies": LazyCommand(
            "workflows.policies:policies",
            "List policies: what agents may use in a day, and what they have used today.",
        ),
        "send": LazyCommand(
            "workflows.addresses:send", "Send work to an address, for the processes that listen there."
        ),
        "addresses": LazyCommand(
            "workflows.addresses:addresses",
            "List addresses, which agents in other frameworks and languages listen on.",
        ),
    },
    "Server": {
        "serve": LazyCommand(
            "server.serve:serve", "Serve the store over HTTP, for agents of any framework and language."
        ),
        "keys": LazyCommand("server.keys:keys", "Create, list, and revoke API keys for `holdfast serve`."),
        "audit": LazyCommand(
            "server.audit:audit",
            "Show who asked a server to change what, newest first, including refused requests.",
        ),
        "mcp": LazyCommand(
            "mcp:mcp",
            "Let an assistant list, inspect, approve, retry, and fork runs, as an MCP server on stdin and stdout.",
        ),
    },
    "Journals and code": {
        "export": LazyCommand(
            "journals.export:export",
            "Write a run's journal as JSON, for `holdfast replay` and for tests; or many runs, for `holdfast import`.",
        ),
        "import": LazyCommand("journals.import_runs:import_runs", "Import runs that were exported from another store."),
        "replay": LazyCommand("journals.replay:replay", "Check the code in TARGET against a recorded run."),
        "check": LazyCommand("journals.check:check", "Find workflow code that does not replay."),
    },
    "Store": {
        "doctor": LazyCommand("doctor:doctor", "Check the machine and the store."),
        "namespaces": LazyCommand(
            "stores.namespaces:namespaces", "List the namespaces of a database, the default one first."
        ),
        "backup": LazyCommand("stores.backup:backup", "Copy the SQLite database to a file, while workers use it."),
        "restore": LazyCommand("stores.restore:restore", "Replace the SQLite database with a backup."),
        "mark-restored": LazyCommand(
            "stores.restore:mark_restored",
            "Tell a database that it was restored, so that no `once` step is executed a second time.",
        ),
        "encryption-key": LazyCommand(
            "stores.encryption_key:encryption_key", "Create a key to encrypt what is recorded, and print it."
        ),
    },
}
"""All commands, in the order in which ``holdfast --help`` lists them."""


@click.group(
    cls=MainGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nFirst time here?  holdfast demo",
)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Holdfast makes agent runs durable: every step's outcome is recorded before the run continues, and another process
    takes over where a dead one stopped.
    """
