"""Edit a file in a run, and die where one is told to: ``edit_and_die.py FOLDER KILL``.

``before`` and ``after``: with SIGKILL, before and after the file is replaced; after it, nothing is recorded of that.
The disk of the store is slow, so that whoever does not wait for what he writes there is found out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from holdfast import ModelRetry, Runtime, workflow
from holdfast.agents.sandboxed_files import SandboxedFolder
from holdfast.stores.sqlite import SqliteStore
from holdfast.tools import file_tools

folder, kill = sys.argv[1:]
[edit_file] = [one for one in file_tools(folder) if one.name == "edit_file"]
exchange = SandboxedFolder.compare_and_swap
commit = SqliteStore.commit


async def commit_slowly(*args: Any) -> Any:
    await asyncio.sleep(0.1)
    return await commit(*args)


SqliteStore.commit = commit_slowly


def exchange_and_die(root: SandboxedFolder, path: str, before: bytes, after: bytes) -> bool:
    done = kill == "after" and exchange(root, path, before, after)
    assert done == (kill == "after")
    os.kill(os.getpid(), signal.SIGKILL)
    return done


if kill != "never":
    SandboxedFolder.compare_and_swap = exchange_and_die


@workflow(id="the-edit")
async def edit_a_file() -> str:
    try:
        return await edit_file("file.txt", "x", "xx", all=True)
    except ModelRetry as told:
        return str(told)


async def main() -> None:
    async with Runtime():
        print(await edit_a_file())


asyncio.run(main())
