"""Skills in folders: each has a ``SKILL.md``, and any files that it mentions.

A ``SKILL.md`` begins with YAML front matter, between two lines of ``---``, with the skill's ``name`` (default: the name
of the folder) and its ``description``. The text after it are the instructions that the model gets when it loads the
skill. Other keys are ignored. Name and description are read when the agent is defined, the rest when the model loads
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from holdfast.agents.sandboxed_files import SandboxedFolder
from holdfast.agents.skills.skill import Skill
from holdfast.errors import DefinitionError, PathRefused

SKILL_FILE = "SKILL.md"

MAX_FILE_BYTES = 128 * 1024
"""Maximum size of a file that a model can read."""

_FRONT_MATTER_DELIMITER = "---"


def load_skills(folder: str | Path) -> list[Skill]:
    """The skills in a folder: one for every subfolder with a ``SKILL.md``, and one for the folder if it has one.

    A relative path is relative to the current directory. Raises ``DefinitionError`` for a folder without skills, and
    for a ``SKILL.md`` that cannot be read.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise DefinitionError(f"skills from {str(folder)!r}: {root} {problem}")
    subfolders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [FolderSkill(path.resolve()) for path in (root, *subfolders) if (path / SKILL_FILE).is_file()]
    if not found:
        raise DefinitionError(
            f"skills from {str(folder)!r}: neither {root} nor a folder in it has a {SKILL_FILE}. A skill is a folder "
            f"with a {SKILL_FILE} that begins with:\n---\nname: my-skill\ndescription: What it is for.\n---"
        )
    return list[Skill](found)


def collect_skills(value: Sequence[Skill | str | Path], subject: str) -> dict[str, Skill]:
    """The skills of ``Agent(skills=...)`` by name, with those of folders."""
    if isinstance(value, str | Path | Skill):
        raise DefinitionError(f"{subject}: skills is a list, as in skills=[{str(value)!r}]")
    found: dict[str, Skill] = {}
    for item in value:
        if not isinstance(item, Skill | str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"{subject}: a skill is a function with @skill, a Skill, or the path of a folder, not {item!r:.200}"
            )
        for skill in [item] if isinstance(item, Skill) else load_skills(item):
            if found.setdefault(skill.name, skill) is not skill:
                raise DefinitionError(
                    f"{subject}: two of its skills are called {skill.name!r}: a model loads them by name"
                )
    return found


class FolderSkill(Skill):
    """A skill in a folder."""

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
        """Read the instructions, each time that a model loads the skill."""
        return _parse_skill_file(self._file)[1]


def _parse_skill_file(file: Path) -> tuple[dict[str, Any], str]:
    """The front matter and the body of a ``SKILL.md``. Raises ``DefinitionError`` with the problem and its line."""
    try:
        # Sandboxed: a process that may write in the folder could put a link to any other file there.
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
    return _parse_front_matter(file, "\n".join(lines[1:end])), body


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
