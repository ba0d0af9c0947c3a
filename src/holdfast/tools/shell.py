"""A tool with which a model runs allowed programs, never through a shell.

This is not a sandbox. The model can do everything that an allowed program can do: ``git`` runs any command with
``-c core.pager=...``, ``python`` runs anything, and all of them can read the files of this user. The tool limits which
programs run, which environment variables they get, how long they run, and how much output the model gets
(``program_runner``).

A program is located once, when the tool is made, in the folders of ``PATH`` that are absolute and not below the working
folder. So a program that the model writes there never runs in its place.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, cast

from pydantic import Field

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.agents.tool_approvals import ApprovalRule
from holdfast.agents.tools import Tool, tool
from holdfast.codec.formatting import truncate
from holdfast.core.states import Effect
from holdfast.errors import DefinitionError, ModelRetry, UsageError
from holdfast.tools.program_runner import ProgramResult, run_program

MAX_OUTPUT_BYTES = 32 * 1024
MAX_COMMAND_CHARS = 100_000
"""Maximum length of a command with all its arguments."""

_DESCRIPTION = """Run a program, and get what it writes. There is no shell: no pipes, no redirection, no variables, no \
wildcards; every argument is passed on as it is. It has no input, and is stopped after {timeout:g} seconds.
Allowed are these, and nothing else:
{allowed}"""


def shell_tool(
    *,
    allow: Sequence[str | Sequence[str]],
    cwd: str | os.PathLike[str],
    timeout: Duration = 30,
    max_output: int = MAX_OUTPUT_BYTES,
    env: Iterable[str] = (),
    requires_approval: ApprovalRule = True,
    effect: Effect | str = Effect.ONCE,
) -> Tool:
    """A tool named ``shell`` that runs allowed programs. Not a sandbox: the model can do everything that they can do.

    Args:
        allow: the programs: a name (``"ls"``) allows it with any arguments, a list (``["python", "-m", "pytest"]``)
            with arguments that begin like this. Names are located in ``PATH``, once; an absolute path is used as it is.
        cwd: the folder in which they run.
        timeout: how long one may run.
        max_output: maximum number of bytes of its output that the model gets: its beginning and end.
        env: names of environment variables of this process that it gets, besides ``PATH`` and ``LANG``.
        requires_approval: whether a person must approve each call, as with ``@tool``.
        effect: ``once``, unless all allowed programs may run again after a crash.
    """
    if os.name != "posix":
        raise UsageError("shell_tool needs sessions and signals, which this system does not have: use Linux or macOS")
    limit = declared_seconds(timeout, "the timeout of shell_tool")
    assert limit is not None
    if max_output < 1:
        raise DefinitionError(f"shell_tool: max_output is {max_output}, and has to be at least 1")
    shell = _Shell(allow, os.path.realpath(cwd), limit, max_output, env)
    description = _DESCRIPTION.format(timeout=limit, allowed=shell.allowed_text)
    approval = shell.needs_approval if requires_approval is True else requires_approval
    return tool(description=description, requires_approval=approval, effect=effect)(shell.shell)


class _Shell:
    """Runs the allowed programs."""

    def __init__(
        self,
        allow: Sequence[str | Sequence[str]],
        cwd: str,
        timeout_s: float,
        max_output_bytes: int,
        env: Iterable[str],
    ) -> None:
        self._cwd = cwd
        self._timeout_s = timeout_s
        self._max_output_bytes = max_output_bytes
        self._env_names = tuple(_validate_env_names(env))
        self._path = os.pathsep.join(_iterate_path_folders(cwd))
        if not self._path:
            raise DefinitionError(f"shell_tool: every folder of PATH is below cwd ({cwd}): choose a smaller cwd")
        self._allowed_prefixes = [_parse_prefix(item) for item in _validate_allow(allow)]
        if not self._allowed_prefixes:
            raise DefinitionError("shell_tool: allow is empty: name the programs that may be run, as in allow=['ls']")
        self._programs = {name: self._locate_program(name) for name, *_ in self._allowed_prefixes}

    @property
    def allowed_text(self) -> str:
        """The allowed commands, for the model."""
        return "\n".join(f"- {' '.join(prefix)} …" for prefix in self._allowed_prefixes)

    def needs_approval(self, argv: list[str]) -> bool:
        """True for every call that is not refused anyway."""
        self._resolve_program(argv)
        return True

    async def shell(self, argv: Annotated[list[str], Field(min_length=1)]) -> str:
        """Run a program.

        Args:
            argv: the program, and then its arguments, one by one, as in ["ls", "-l", "some folder"].
        """
        program = self._resolve_program(argv)
        environment = self._build_environment()
        try:
            ended = await run_program(
                [program, *argv[1:]],
                cwd=self._cwd,
                env=environment,
                timeout_s=self._timeout_s,
                max_output_bytes=self._max_output_bytes,
            )
        except OSError as error:
            # The system's message would reveal paths.
            raise ModelRetry(
                f"{argv[0]!r} was not started: {os.strerror(error.errno or 0)}. The program, or the folder that it is "
                f"to run in, may be gone."
            ) from None
        return self._format_result(ended)

    def _resolve_program(self, argv: list[str]) -> str:
        if any("\0" in word for word in argv) or sum(map(len, argv)) > MAX_COMMAND_CHARS:
            raise ModelRetry("The command was not run: it is too long, or has a character \\0.")
        if not any(tuple(argv[: len(prefix)]) == prefix for prefix in self._allowed_prefixes):
            raise ModelRetry(
                f"{truncate(' '.join(argv), 200)!r} was not run: it is not allowed. What is allowed has to begin, word "
                f"by word, with one of these:\n{self.allowed_text}"
            )
        program = self._programs[argv[0]]
        if program is None:
            raise ModelRetry(f"{argv[0]!r} was not run: it is allowed, but not installed here.")
        return program

    def _locate_program(self, name: str) -> str | None:
        if os.path.isabs(name):
            return name
        found = shutil.which(name, path=self._path)
        return None if found is None or _is_below(found, self._cwd) else found

    def _build_environment(self) -> dict[str, str]:
        passed_on = {name: os.environ[name] for name in self._env_names if name in os.environ}
        return {"LANG": os.environ.get("LANG", "C.UTF-8"), **passed_on, "PATH": self._path}

    def _format_result(self, result: ProgramResult) -> str:
        if result.stop_reason == "time":
            status = f"stopped, with all that it had started, after {self._timeout_s:g} seconds"
        elif result.stop_reason == "output":
            status = f"stopped because it wrote too much ({result.written_bytes:,} bytes)"
        elif result.exit_code < 0:
            status = f"ended by signal {_format_signal(-result.exit_code)}"
        else:
            status = f"exit code {result.exit_code}"
        return f"[{status}]\n{result.output}" if result.output else f"[{status}, no output]"


def _validate_allow(given: Any) -> Sequence[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise DefinitionError(f"shell_tool: allow is a list of programs, as in allow=['ls'], and not {given!r}")
    return cast("Sequence[Any]", given)


def _parse_prefix(given: Any) -> tuple[str, ...]:
    words: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    if not words or not all(isinstance(word, str) and word for word in words):
        raise DefinitionError(f"shell_tool: {given!r} in allow is neither a program's name nor a list that begins so")
    program = cast("tuple[str, ...]", words)[0]
    if os.sep in program and not os.path.isabs(program):
        raise DefinitionError(
            f"shell_tool: {program!r} in allow is a relative path: give a name, which is looked for in PATH, or an "
            f"absolute path"
        )
    if " " in program and not os.path.isabs(program):
        raise DefinitionError(f"shell_tool: {program!r} in allow is one word to the system: write {program.split()!r}")
    return words


def _validate_env_names(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        raise DefinitionError(f"shell_tool: env is a list of names, as in env=['HOME'], and not {given!r}")
    for name in given:
        if name == "PATH" or not isinstance(name, str) or "=" in name:
            raise DefinitionError(f"shell_tool: {name!r} in env is no name of a variable that can be passed on")
        yield name


def _iterate_path_folders(cwd: str) -> Iterator[str]:
    """The folders of ``PATH`` into which a model that works in ``cwd`` cannot put a program."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(folder) and not _is_below(folder, cwd):
            yield folder


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), folder]) == folder


def _format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
