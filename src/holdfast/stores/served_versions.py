"""Which workers serve which runs, and why no worker claims a run.

**Versions.** A run belongs to a version of its workflow: the version of the code that started it, ``""`` if it has
none. A worker claims only what it serves, so old and new code can run at the same time. Each served version has a
*served name*: ``etl`` for the runs of ``etl`` without a version, ``etl@2`` for those of version ``2``. Workers have
these names in their rows, and announce workflows under them; a release without versions reads ``etl@2`` as the name of
an unknown workflow. (A workflow without a version, but with an ``@`` in its name, is served as ``a@b@``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.workers import Worker

_VERSION_SEPARATOR = "@"


SCRIPT_QUEUE_PREFIX = "command:"
"""The queue of a script's run begins with it: see ``scripts.script_run``. No worker serves such a queue."""


class UnservedReason(NamedTuple):
    """Why no worker claims a run."""

    summary: str
    """A few words, for a list."""
    fact: str
    hint: str

    @property
    def message(self) -> str:
        """A sentence, with what to do about it."""
        return f"{self.fact}: {self.hint}"


def make_served_name(workflow: str, version: str) -> str:
    """The served name of a version of a workflow."""
    if not version and _VERSION_SEPARATOR not in workflow:
        return workflow
    return f"{workflow}{_VERSION_SEPARATOR}{version}"


def get_versions_range(workflow: str) -> tuple[str, str]:
    """The first served name of a workflow with a version, and the end of the range of all of them."""
    return workflow + _VERSION_SEPARATOR, workflow + chr(ord(_VERSION_SEPARATOR) + 1)


def split_served_name(name: str) -> tuple[str, str]:
    """The workflow and the version of a served name."""
    workflow, at, version = name.rpartition(_VERSION_SEPARATOR)
    return (workflow, version) if at else (name, "")


def explain_invalid_version(version: object) -> str | None:
    """Why this cannot be the version of a workflow; ``None`` if it can."""
    if not isinstance(version, str):
        return f"a version is a text, not {version!r}: version={str(version)!r}"
    if len(version) > 100 or not version.isprintable() or _VERSION_SEPARATOR in version:
        return f"a version has at most 100 printable characters, and no {_VERSION_SEPARATOR!r}, unlike {version[:50]!r}"
    return None


def list_served_names(specs: Iterable[WorkflowSpec]) -> list[str]:
    """The served names of a worker that executes these workflows."""
    return [make_served_name(spec.name, version) for spec in specs for version in (spec.version, *spec.serves)]


def list_served_versions(workflow: str, workers: Iterable[Worker]) -> list[str]:
    """The versions of a workflow that some of these workers serve."""
    names = {split_served_name(name) for worker in workers for name in worker.workflows}
    return sorted(version for name, version in names if name == workflow)


def explain_unserved(
    workflow: str, version: str | None, queue: str | None, live_workers: Sequence[Worker]
) -> UnservedReason | None:
    """Why none of these workers claims runs of a workflow (of this version and in this queue, if given)."""
    summary = "no live worker serves it"
    if queue is not None and queue.startswith(SCRIPT_QUEUE_PREFIX) and not _is_served(queue, live_workers):
        fact = f"no live process executes script {workflow!r}"
        return UnservedReason("no live process executes it", fact, "start the same `holdfast run` command again")
    versions = list_served_versions(workflow, live_workers)
    if not versions:
        fact = f"no live worker serves workflow {workflow!r}"
        return UnservedReason(summary, fact, "start one with `holdfast worker MODULE`, or run its program again")
    if version is not None and version not in versions:
        which = f"version {version!r}" if version else "runs without a version"
        others = ", ".join(repr(served) if served else "those without one" for served in versions)
        return UnservedReason(
            f"no live worker serves {which}",
            f"no live worker serves {which} of workflow {workflow!r} (served: {others})",
            f"start a worker with the code of that version, or let other code take these runs, too: "
            f"@workflow(version=..., serves=[{version!r}])",
        )
    names = {make_served_name(workflow, wanted) for wanted in (versions if version is None else [version])}
    able = [worker for worker in live_workers if not names.isdisjoint(worker.workflows)]
    if queue is not None and not any(worker.queues is None or queue in worker.queues for worker in able):
        of = f" in version {version!r}" if version else ""
        return UnservedReason(
            summary,
            f"no live worker for workflow {workflow!r}{of} serves queue {queue!r}",
            f"start one with `holdfast worker MODULE --queue {queue}`",
        )
    return None


def _is_served(queue: str, workers: Iterable[Worker]) -> bool:
    """Whether one of these workers serves this very queue."""
    return any(worker.queues is not None and queue in worker.queues for worker in workers)


def list_announced_specs(workflow: str, specs: Mapping[str, WorkflowSpec]) -> list[WorkflowSpec]:
    """All announced versions of a workflow, newest first.

    The age of a version is that of its first announcement: an old worker that is started again does not make its
    version new.
    """
    found = [spec for spec in specs.values() if spec.name == workflow]
    return sorted(found, key=lambda spec: spec.announced_at, reverse=True)


async def find_spec_to_start(store: Store, workflow: str, version: str | None = None) -> WorkflowSpec | None:
    """The version that a start by name uses: this one, or the newest one that a live worker serves.

    So rolling back a deployment also changes which version is started, as soon as its workers are gone. If no worker
    serves any version, it is the newest of all. ``None``: the workflow or version was never announced.
    """
    found = list_announced_specs(workflow, await store.get_workflow_specs(workflow))
    if version is not None:
        return next((spec for spec in found if spec.version == version), None)
    if len(found) < 2:
        return found[0] if found else None
    now = store.now()
    alive = [
        worker for worker in await store.list_workers() if worker.state == "live" and worker.lease_expires_at >= now
    ]
    served = list_served_versions(workflow, alive)
    return next((spec for spec in found if spec.version in served), found[0])
