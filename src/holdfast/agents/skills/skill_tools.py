"""The tools with which a model loads the skills of an agent, and the catalog of skills in its instructions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from holdfast.agents.argument_errors import format_names
from holdfast.agents.run_context import RunContext
from holdfast.agents.sandboxed_files import Entry, SandboxedFolder
from holdfast.agents.skills.skill import Skill
from holdfast.agents.skills.skill_folders import MAX_FILE_BYTES, SKILL_FILE
from holdfast.agents.tools import Tool, tool
from holdfast.codec.formatting import truncate
from holdfast.errors import ModelRetry, PathRefused

LOAD_SKILL = "load_skill"
READ_SKILL_FILE = "read_skill_file"

_MAX_LISTED_FILES = 100
"""Maximum number of a skill's files that a model sees."""


def format_catalog(skills: Mapping[str, Skill]) -> str:
    """The catalog of skills in the agent's instructions."""
    lines = [f"- {skill.name}: {skill.description}" for skill in skills.values()]
    guidance = (
        f"You have skills: instructions for particular kinds of work, some with tools and files. When a task is of "
        f"such a kind, load the skill with `{LOAD_SKILL}` before you begin, and follow what it says. Its tools are "
        f"there once it is loaded; loading it once is enough."
    )
    return "\n".join(["# Skills", "", guidance, *lines])


def make_skill_tools(skills: Mapping[str, Skill]) -> list[Tool]:
    """The tools of an agent that has these skills."""
    tools = [_make_load_tool(skills)]
    if any(skill.folder is not None for skill in skills.values()):
        tools.append(_make_read_tool(skills))
    return tools


def _make_load_tool(skills: Mapping[str, Skill]) -> Tool:
    description = (
        "Load a skill: returns its instructions, and the names of its files. Call it before work of that kind."
    )

    async def load(name: str, context: RunContext[Any] | None) -> str:
        skill = _find_skill(skills, name)
        text = await skill.load(context)
        files = [] if skill.folder is None else await asyncio.to_thread(_list_files, SandboxedFolder(skill.folder))
        return "\n\n".join([text, *_describe_tools(skill), *_describe_files(skill, files)])

    async def load_plain(name: str) -> str:
        return await load(name, None)

    async def load_with_context(ctx: RunContext[Any], name: str) -> str:
        return await load(name, ctx)

    # A tool that takes a context needs the deps of its process, so it takes one only if a skill does.
    has_context = any(skill.has_context for skill in skills.values())
    function: Any = load_with_context if has_context else load_plain
    return tool(name=LOAD_SKILL, description=description, effect="read")(function)


def _make_read_tool(skills: Mapping[str, Skill]) -> Tool:
    @tool(name=READ_SKILL_FILE, effect="read")
    async def read_skill_file(skill: str, path: str) -> str:
        """Read a text file of a skill.

        Args:
            skill: the name of the skill.
            path: the file, as `load_skill` names it.
        """
        found = _find_skill(skills, skill)
        if found.folder is None:
            raise ModelRetry(f"The skill {found.name!r} has no files.")
        return await asyncio.to_thread(_read_text, SandboxedFolder(found.folder), path)

    return read_skill_file


def _find_skill(skills: Mapping[str, Skill], name: str) -> Skill:
    found = skills.get(name)
    if found is not None:
        return found
    nearest = get_close_matches(name[:64], skills, n=3)
    known = format_names([*nearest, *(other for other in skills if other not in nearest)])
    raise ModelRetry(f"There is no skill {truncate(name, 64)!r}. The skills that you have are: {known}.")


def _describe_tools(skill: Skill) -> list[str]:
    if not skill.tools:
        return []
    names = ", ".join(f"`{skill_tool.name}`" for skill_tool in skill.tools)
    return [f"Tools of this skill, which you can call from now on: {names}"]


def _describe_files(skill: Skill, files: list[Entry]) -> list[str]:
    if not files:
        return []
    lines = [f"- {file.path} ({file.size:,} bytes)" for file in files[:_MAX_LISTED_FILES]]
    more = ["- and more"] if len(files) > _MAX_LISTED_FILES else []
    heading = f'Files of this skill, which `{READ_SKILL_FILE}` reads (with skill="{skill.name}"):'
    return ["\n".join([heading, *lines, *more])]


def _list_files(root: SandboxedFolder) -> list[Entry]:
    """The files that a model may want to read, up to one more than it sees."""
    files = (
        entry
        for entry in root.walk()
        if entry.kind == "file" and entry.path != SKILL_FILE and not _is_hidden(entry.path)
    )
    return list(islice(files, _MAX_LISTED_FILES + 1))


def _is_hidden(path: str) -> bool:
    return any(name.startswith(".") or name == "__pycache__" for name in path.split("/"))


def _read_text(root: SandboxedFolder, path: str) -> str:
    try:
        data = root.read(path, MAX_FILE_BYTES)
    except PathRefused as refused:
        raise ModelRetry(str(refused)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ModelRetry(f"{truncate(path, 200)!r} is no text file: only text can be read.")
    return text
