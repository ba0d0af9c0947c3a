"""Finding the workflows that a worker is told to serve: ``module``, ``module:attr``, ``path/to/app.py``,
``app.py:attr``.

Importing a module registers every workflow and every agent that it defines or imports. With an attribute, which must be
one of these or a list of them, only they are served, agents with their sub-agents; without one, all that the import has
registered.
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
    place, attribute = _split_target(target)
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    module = _import_file(Path(place)) if _is_path(place) else _import_module(place)
    if attribute:
        return _select_workflows(module, attribute, target)
    if not definitions:
        raise UsageError(
            f"there is no workflow in {place!r}: put `@workflow` on an async function in it, make an `Agent` there, or "
            f"name another module."
        )
    return tuple(definitions)


def _split_target(target: str) -> tuple[str, str]:
    place, colon, attribute = target.rpartition(":")
    if not colon or os.sep in attribute or attribute.endswith(".py"):  # C:\app.py has a colon, too
        place, attribute = target, ""
    elif not attribute.isidentifier():
        raise UsageError(f"{target!r} names no workflows: after the colon comes one name. Write {_TARGET_FORMS}.")
    if not place:
        raise UsageError(f"{target!r} names no module. Write {_TARGET_FORMS}.")
    return place, attribute


def _is_path(location: str) -> bool:
    return location.endswith(".py") or os.sep in location or (os.altsep is not None and os.altsep in location)


# Importing


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name by which other modules of its program would import it."""
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
        # A module that is missing somewhere inside is a fault of the import, not of the target.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _import_failure(name, error) from error
        raise UsageError(_describe_missing_module(name, error.name)) from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _describe_missing_module(name: str, missing: str) -> str:
    file = Path(*name.split(".")).with_suffix(".py")
    if len(name.split(".")) == 1 and (near := difflib.get_close_matches(name, _list_local_modules(), 1)):
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"modules are looked for in {os.getcwd()} and in the installed packages."
    part = "" if missing == name else f" (there is no module {missing!r})"
    return f"no module is named {name!r}{part}: {hint} A file is named by its path, as in `path/to/{file.name}`."


def _list_local_modules() -> list[str]:
    return [path.stem for path in Path().glob("*.py")]


def _import_failure(name: str, error: BaseException) -> UsageError:
    lines = traceback.format_exception_only(error)
    if isinstance(error, SystemExit):
        lines = [f"SystemExit: {error}: the module ends the process when it is imported\n"]
    frames = traceback.format_list(traceback.extract_tb(_trim_traceback(error))[-_MAX_SHOWN_FRAMES:])
    told = "".join(("  " + line.rstrip().replace("\n", "\n  ") + "\n") for line in (*frames, *lines))
    return UsageError(f"importing {name!r} failed:\n{told.rstrip()}")


def _trim_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without this module and Python's import machinery before the user's first line."""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen importlib") and file != importlib.__file__:
            return step
        step = step.tb_next
    return None


# Choosing


def _select_workflows(module: ModuleType, attribute: str, target: str) -> tuple[str, ...]:
    try:
        found: Any = getattr(module, attribute)
    except AttributeError:
        raise UsageError(_describe_missing_attribute(module, attribute, target)) from None
    several = isinstance(found, list | tuple)
    items = [_get_workflow(item) for item in (cast("Sequence[Any]", found) if several else [found])]
    if not items:
        raise UsageError(f"{target!r} is an empty list: there is nothing to serve.")
    for item in items:
        if not isinstance(item, Workflow):
            what = f"{target!r} contains {_describe_item(item)}" if several else f"{target!r} is {_describe_item(item)}"
            raise UsageError(f"{what}, neither a workflow nor an agent. {_describe_workflows(module)}")
    return tuple(dict.fromkeys(name for item in items for name in _list_served_workflows(item)))


def _get_workflow(item: Any) -> Any:
    """The workflow of an agent of another framework (see ``integrations``); anything else as it is."""
    return getattr(item, "holdfast_workflow", item)


def _list_served_workflows(item: Workflow[..., Any]) -> list[str]:
    """What to serve with it: an agent's runs wait for those of its sub-agents."""
    items: Sequence[Workflow[..., Any]] = item.collect_agents() if isinstance(item, Agent) else [item]
    return [name for one in items for name in one.definition.served_names]


def _describe_missing_attribute(module: ModuleType, attribute: str, target: str) -> str:
    near = difflib.get_close_matches(attribute, _list_workflow_attributes(module) or list(vars(module)), 1)
    place = target.rpartition(":")[0]
    hint = f"did you mean {place}:{near[0]}?" if near else _describe_workflows(module)
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
