"""The workflows that this process knows, by name and version.

A workflow's name does not contain its module, so that a script (`__main__.etl`) and a worker that imports it
(`app.etl`) mean the same workflow. So a name must be unique in a program.

A program may have several definitions of one workflow, with different versions: the old function for the runs that were
started with it, and the new one. A definition is registered under the *served name* (see ``stores.served_versions``) of
each version that it serves; without versions, that is the workflow's name.
"""

from __future__ import annotations

from holdfast.authoring.introspection import find_source_location, format_location
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import DefinitionError
from holdfast.stores.served_versions import make_served_name, split_served_name

definitions: dict[str, WorkflowDefinition] = {}


def register(definition: WorkflowDefinition) -> None:
    """Register a workflow. Defining the same function or class again (a reload, a notebook cell) replaces it."""
    for name in definition.served_names:
        known = definitions.get(name)
        if known is not None and not _is_same_source(known, definition):
            raise DefinitionError(_describe_duplicate(name, known, definition))
    replaced = definitions.get(definition.served_names[0])
    for name in () if replaced is None else replaced.served_names:
        if definitions.get(name) is replaced:
            del definitions[name]
    for name in definition.served_names:
        definitions[name] = definition


def get_definition(workflow: str, version: str) -> WorkflowDefinition:
    """The code for runs of this version. Raises ``KeyError``."""
    return definitions[make_served_name(workflow, version)]


def _describe_duplicate(name: str, one: WorkflowDefinition, other: WorkflowDefinition) -> str:
    workflow, version = split_served_name(name)
    places = f"{format_location(one.function)} and {format_location(other.function)}"
    if not version and not one.also_served_versions and not other.also_served_versions:
        return (
            f"two workflows are named {workflow!r}: {places}. Runs are found by name: give one of them another with "
            "`name=...`, or a `version=` of its own if it is other code for the same workflow."
        )
    runs = f"of version {version!r}" if version else "without a version"
    return (
        f"two definitions of workflow {workflow!r} are for its runs {runs}: {places}. "
        f"Each version has one: see their `version=` and `serves=`, or give one of them another name with `name=...`."
    )


def _is_same_source(one: WorkflowDefinition, other: WorkflowDefinition) -> bool:
    a, b = find_source_location(one.function), find_source_location(other.function)
    if a is None or b is None:
        return one.function is other.function
    interactive = a.file.startswith("<") or "ipykernel" in a.file
    return interactive or (a.file == b.file and a.qualname == b.qualname)
