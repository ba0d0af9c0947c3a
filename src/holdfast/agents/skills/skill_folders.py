"""Skills that are kept in folders: each has a ``SKILL.md``, and whatever files that speaks of.

A ``SKILL.md`` begins with a head in YAML, between two lines of ``---``, which has the skill's ``name`` (that of the
folder unless given) and its ``description``; what stands behind the head is what the model is told when it loads the
skill. Other keys of the head are passed over. Name and description are read when the agent is defined, the rest when
the model asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.agents.sandboxed_files import SandboxedFolder
from holdfast.agents.skills.skill import Skill
from holdfast.errors import DefinitionError, PathRefused

SKILL_FILE = "SKILL.md"

MAX_FILE_BYTES = 128 * 1024
"""Bytes of a file that a model may be told."""

_FRONT_MATTER_DELIMITER = "---"


def load_skills(folder: str | Path) -> list[Skill]:
    """The skills in a folder: of every folder in it that has a ``SKILL.md``, and of itself if it has one.

    A relative path is taken from the current directory. Raises ``DefinitionError`` for a folder without any, and for a
    ``SKILL.md`` that cannot be read.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise DefinitionError(f"skills from {str(folder)!r}: {root} {what}")
    inside = sorted(one for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    found = [FolderSkill(one.resolve()) for one in (root, *inside) if (one / SKILL_FILE).is_file()]
    if not found:
        raise DefinitionError(
            f"skills from {str(folder)!r}: neither {root} nor a folder in it has a {SKILL_FILE}. A skill is a folder "
            f"with a {SKILL_FILE} that begins with:\n---\nname: my-skill\ndescription: What it is for.\n---"
        )
    return list[Skill](found)


def collect_skills(value: Sequence[Skill | str | Path], subject: str) -> dict[str, Skill]:
    """The skills of an agent by name, as they are given to it: skills, and paths of folders."""
    if isinstance(value, str | Path | Skill):
        raise DefinitionError(f"{subject}: skills is a list, as in skills=[{str(value)!r}]")
    found: dict[str, Skill] = {}
    for one in value:
        if not isinstance(one, Skill | str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"{subject}: a skill is a function with @skill, a Skill, or the path of a folder, not {one!r:.200}"
            )
        for skill in [one] if isinstance(one, Skill) else load_skills(one):
            if found.setdefault(skill.name, skill) is not skill:
                raise DefinitionError(
                    f"{subject}: two of its skills are called {skill.name!r}: a model loads them by name"
                )
    return found


class FolderSkill(Skill):
    """A skill that is kept in a folder."""

    def __init__(self, folder: Path) -> None:
        file = folder / SKILL_FILE
        head, _ = _parse_skill_file(file)
        name = head.get("name", folder.name)
        if not isinstance(name, str):
            raise DefinitionError(f"{file}: the name in its head is {name!r}, which is no text: put it in quotes")
        description = head.get("description")
        if description is None or description == "":
            raise DefinitionError(
                f"{file}: its head has no description. Add `description: ...`, which tells the model what the skill is "
                f"for, and when to use it."
            )
        if not isinstance(description, str):
            raise DefinitionError(
                f"{file}: the description in its head is {description!r}, which is no text: put it in quotes"
            )
        try:
            super().__init__(name, description, self._read_body)
        except DefinitionError as error:
            raise DefinitionError(f"{file}: {error}") from None
        self.folder = folder
        self._file = file

    def _read_body(self) -> str:
        """Read anew whenever it is asked for."""
        return _parse_skill_file(self._file).body


class _SkillFile(NamedTuple):
    front_matter: dict[str, Any]
    body: str


def _parse_skill_file(file: Path) -> _SkillFile:
    """A ``SKILL.md`` in its two parts; ``DefinitionError`` says what is wrong with it, and where."""
    try:
        # Not just opened: who may write in the folder could put a link to any other file there.
        data = SandboxedFolder(file.parent).read(file.name, MAX_FILE_BYTES)
    except PathRefused as error:
        raise DefinitionError(
            f"{file} cannot be read: {error} A model is told all of it at once, so parts of a long one go into files "
            f"beside it."
        ) from None
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DefinitionError(f"{file}, line {line}: it is not UTF-8: save it as UTF-8") from None
    if not lines or lines[0].rstrip() != _FRONT_MATTER_DELIMITER:
        raise DefinitionError(
            f"{file}, line 1: it does not begin with a head. Write above all else:\n---\nname: {file.parent.name}\n"
            f"description: What it is for.\n---"
        )
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FRONT_MATTER_DELIMITER), None)
    if end is None:
        raise DefinitionError(f"{file}, line 1: the head that begins here has no end: close it with a line of ---")
    body = "\n".join(lines[end + 1 :]).strip()
    if not body:
        raise DefinitionError(
            f"{file}, line {end + 1}: there is nothing behind the head. Write there what the model is to know when it "
            f"uses the skill."
        )
    return _SkillFile(_parse_front_matter(file, "\n".join(lines[1:end])), body)


def _parse_front_matter(file: Path, text: str) -> dict[str, Any]:
    import yaml

    try:
        head: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = 2 if mark is None else mark.line + 2
        problem = getattr(error, "problem", None) or "unreadable"
        raise DefinitionError(
            f"{file}, line {line}: its head is no YAML ({problem}). A text with a colon or a # in it goes in quotes, "
            f'as in `description: "Reports: how to write them"`.'
        ) from None
    if not isinstance(head, dict):
        raise DefinitionError(
            f"{file}, line 2: its head must have a name and a description, as in `description: What it is for.`"
        )
    return cast("dict[str, Any]", head)
