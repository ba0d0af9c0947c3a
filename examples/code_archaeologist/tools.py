"""Tools of the agents: they read and write files of one folder, which they get as ``deps``."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import ModelRetry, RunContext, tool


@tool(effect="read")
def read_file(ctx: RunContext[Path], name: str) -> str:
    """Read a file.

    Args:
        name: the file's name, without a folder.
    """
    path = _resolve_name(ctx.deps, name)
    if not path.exists():
        raise ModelRetry(f"There is no file {name!r}. There are: {', '.join(sorted(os.listdir(ctx.deps)))}.")
    print(f"  {ctx.agent} reads {name}\n", end="", flush=True)  # one write: another thread may print, too
    return path.read_text()


@tool
def write_file(ctx: RunContext[Path], name: str, text: str) -> str:
    """Write a file, or replace it. Python must compile.

    Args:
        name: the file's name, without a folder.
        text: all of its new text.
    """
    path = _resolve_name(ctx.deps, name)
    if path.suffix == ".py":
        try:
            compile(text, name, "exec")
        except SyntaxError as error:
            raise ModelRetry(f"This does not compile, and was not written: {error}") from error
    # Atomic and idempotent: a process that dies here leaves the old file or the new one.
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)
    print(f"  {ctx.agent} writes {name}\n", end="", flush=True)
    return f"{len(text.splitlines())} lines written"


def _resolve_name(folder: Path, name: str) -> Path:
    if Path(name).name != name or name.startswith("."):
        raise ModelRetry(f"{name!r} is no file of the folder: give a file's name, without a folder.")
    return folder / name
