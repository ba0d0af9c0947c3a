"""Finds the workflows that a worker serves: ``module``, ``module:attr``, ``path/to/app.py``, ``app.py:attr``.

Importing a module registers every workflow and every agent that it defines or imports. Without an attribute, the worker
serves all of them. An attribute must be a workflow, an agent, or a list of these: the worker serves only them, and the
sub-agents of agents.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

from holdfast.agents.agent import Agent
from holdfast.authoring.registry import definitions
from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow
from holdfast.errors import UsageError

_MAX_SHOWN_FRAMES = 3
_TARGET_FORMS = "`module`, `module:workflow`, `path/to/app.py` or `app.py:workflow`"


def load_workflows(target: str) -> tuple[str, ...]:
    """Import what ``target`` names, and return the names of the workflows to serve."""
    location, attribute = _split_target(target)
    working_dir = os.getcwd()
    if working_dir not in sys.path and "" not in sys.path:
        sys.path.insert(0, working_dir)
    module = _import_file(Path(location)) if _is_path(location) else _import_module(location)
    if attribute:
        return _select_workflows(module, attribute, target)
    if not definitions:
        raise UsageError(
            f"there is no workflow in {location!r}: put `@workflow` on an async function in it, make an `Agent` there, "
            f"or name another module."
        )
    return tuple(definitions)


def _split_target(target: str) -> tuple[str, str]:
    location, colon, attribute = target.rpartition(":")
    if not colon or os.sep in attribute or attribute.endswith(".py"):  # C:\app.py has a colon, too
        location, attribute = target, ""
    elif not attribute.isidentifier():
        raise UsageError(f"{target!r} names no workflows: after the colon comes one name. Write {_TARGET_FORMS}.")
    if not location:
        raise UsageError(f"{target!r} names no module. Write {_TARGET_FORMS}.")
    return location, attribute


def _is_path(location: str) -> bool:
    return location.endswith(".py") or os.sep in location or (os.altsep is not None and os.altsep in location)


# Importing


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name that other modules of its program use for it."""
    path = path.expanduser().resolve()
    try:
        path.stat()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"{path} is not a Python file. Write {_TARGET_FORMS}.")
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(names)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = _import_module(name)
    origin = getattr(module, "__file__", None)
    if origin is None or not os.path.samefile(origin, path):
        raise UsageError(
            f"{path} cannot be imported: `import {name}` finds {origin or 'a built-in module'} instead. "
            f"Give the file a name of its own."
        )
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is neither a module's name nor a Python file. Write {_TARGET_FORMS}.")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If a module that the target imports is missing, the target itself is right.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _import_failure(name, error) from error
        raise UsageError(_describe_missing_module(name, error.name)) from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _describe_missing_module(name: str, missing: str) -> str:
    file = Path(*name.split(".")).with_suffix(".py")
    local_modules = [path.stem for path in Path().glob("*.py")]
    if "." not in name and (similar := difflib.get_close_matches(name, local_modules, 1)):
        hint = f"did you mean {similar[0]!r}?"
    else:
        hint = f"modules are looked for in {os.getcwd()} and in the installed packages."
    part = "" if missing == name else f" (there is no module {missing!r})"
    return f"no module is named {name!r}{part}: {hint} A file is named by its path, as in `path/to/{file.name}`."


def _import_failure(name: str, error: BaseException) -> UsageError:
    lines = traceback.format_exception_only(error)
    if isinstance(error, SystemExit):
        lines = [f"SystemExit: {error}: the module ends the process when it is imported\n"]
    frames = traceback.format_list(traceback.extract_tb(_trim_traceback(error))[-_MAX_SHOWN_FRAMES:])
    details = "".join(("  " + line.rstrip().replace("\n", "\n  ") + "\n") for line in (*frames, *lines))
    return UsageError(f"importing {name!r} failed:\n{details.rstrip()}")


def _trim_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first line on, without this module and Python's import machinery."""
    entry = error.__traceback__
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen importlib") and file != importlib.__file__:
            return entry
        entry = entry.tb_next
    return None


# Choosing


def _select_workflows(module: ModuleType, attribute: str, target: str) -> tuple[str, ...]:
    try:
        found: Any = getattr(module, attribute)
    except AttributeError:
        raise UsageError(_describe_missing_attribute(module, attribute, target)) from None
    is_list = isinstance(found, list | tuple)
    items = [_get_workflow(item) for item in (cast("Sequence[Any]", found) if is_list else [found])]
    if not items:
        raise UsageError(f"{target!r} is an empty list: there is nothing to serve.")
    for item in items:
        if not isinstance(item, Workflow):
            found_item = f"{'contains' if is_list else 'is'} {_describe_item(item)}"
            raise UsageError(f"{target!r} {found_item}, neither a workflow nor an agent. {_describe_workflows(module)}")
    return tuple(dict.fromkeys(name for item in items for name in _list_served_workflows(item)))


def _get_workflow(item: Any) -> Any:
    """The workflow of an agent of another framework (see ``integrations``); anything else as it is."""
    return getattr(item, "holdfast_workflow", item)


def _list_served_workflows(item: Workflow[..., Any]) -> list[str]:
    """The names to serve for a workflow. An agent's runs wait for those of its sub-agents, so these are served, too."""
    workflows: Sequence[Workflow[..., Any]] = item.collect_agents() if isinstance(item, Agent) else [item]
    return [name for workflow in workflows for name in workflow.definition.served_names]


def _describe_missing_attribute(module: ModuleType, attribute: str, target: str) -> str:
    similar = difflib.get_close_matches(attribute, _list_workflow_attributes(module) or list(vars(module)), 1)
    location = target.rpartition(":")[0]
    hint = f"did you mean {location}:{similar[0]}?" if similar else _describe_workflows(module)
    return f"module {module.__name__!r} has no {attribute!r}: {hint}"


def _list_workflow_attributes(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(_get_workflow(value), Workflow)]


def _describe_workflows(module: ModuleType) -> str:
    names = ", ".join(_list_workflow_attributes(module))
    return f"Workflows and agents in {module.__name__!r}: {names or 'none'}."


def _describe_item(item: Any) -> str:
    if isinstance(item, Step):
        return f"a step (`{item.name}`)"
    if callable(item) and hasattr(item, "__code__"):
        return f"a plain function (`{item.__name__}`)"
    return f"an object of type `{type(item).__name__}`"
