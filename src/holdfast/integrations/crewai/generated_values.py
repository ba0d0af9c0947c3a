"""What CrewAI makes up and puts into requests: the date, and the names of files for large results of tools.

Requests identify the calls of a program, so these must be the same when it runs again.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from secrets import token_urlsafe
from typing import Any, cast
from uuid import UUID, uuid5

from crewai.utilities import tool_result_artifacts
from crewai.utilities.prompts import Prompts
from crewai.utilities.tool_result_artifacts import ToolResultArtifactStore

from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.integrations.crewai.method_wrappers import Method, wrap_method
from holdfast.integrations.tool_call import record_tool_call_sync

DATE_STEP = "current_date"
_artifact_name: ContextVar[str] = ContextVar("holdfast_crewai_artifact_name", default="")
_NAMESPACE = UUID("6f1e6a52-6f0b-4c57-9d0c-4f4c1ac3b2a1")


def replace_methods() -> None:
    """Let these values be the same when a program runs again."""
    wrap_method(Prompts, "_build_date_block", _wrap_date)
    wrap_method(ToolResultArtifactStore, "store", _wrap_store)
    cast(Any, tool_result_artifacts).token_urlsafe = _make_artifact_name


def make_id(*parts: object) -> str:
    """An id that is the same for the same occurrence of something in a program.

    ``parts`` say what it identifies. The first occurrence of the same in a run differs from the second.
    """
    program = find_program()
    assert program is not None
    run = program.run
    counts: Any = run.extras.setdefault("crewai ids", {})
    count = counts[parts] = counts.get(parts, 0) + 1
    return str(uuid5(_NAMESPACE, "\n".join(map(str, (run.execution.run_id, *parts, count)))))


def _wrap_date(original: Method) -> Method:
    def build(prompts: Prompts) -> str:
        if find_program() is None or not getattr(prompts.agent, "inject_date", False):
            return original(prompts)
        return record_tool_call_sync(DATE_STEP, {}, lambda: original(prompts), effect=Effect.READ)

    return build


def _wrap_store(original: Method) -> Method:
    def store(artifacts: ToolResultArtifactStore, content: str, *args: Any, **kwargs: Any) -> Any:
        if find_program() is None:
            return original(artifacts, content, *args, **kwargs)
        digest = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
        names = (f"{digest}-{number}" for number in range(1, 1 << 30))
        name = next(name for name in names if not (artifacts.directory / _get_artifact_id(name)).exists())
        token = _artifact_name.set(name)
        try:
            return original(artifacts, content, *args, **kwargs)
        finally:
            _artifact_name.reset(token)

    return store


def _make_artifact_name(length: int) -> str:
    """In place of ``token_urlsafe`` where CrewAI names the files."""
    return _artifact_name.get() or token_urlsafe(length)


def _get_artifact_id(name: str) -> str:
    return f"tool-result-{name}"
