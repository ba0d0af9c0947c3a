"""Skills in folders: what a SKILL.md must have, and which files a model may read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Skill, load_skills
from holdfast.agents.skills.skill_folders import MAX_FILE_BYTES
from holdfast.errors import DefinitionError
from holdfast.testing import Runner, ScriptedModel, call

HEAD = "---\nname: {name}\ndescription: {description}\n---\n"


def made(folder: Path, name: str, body: str = "Do it well.", **files: str | bytes) -> Path:
    home = folder / name
    home.mkdir(parents=True)
    (home / "SKILL.md").write_text(HEAD.format(name=name, description=f"All about {name}.") + body)
    for path, content in files.items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return home


async def run_skill_calls(agent_name: str, skills: list[Any], *calls: Any) -> list[Any]:
    """The results of these calls for the model, each call in its own turn."""
    model = ScriptedModel([*calls, "done"])
    result = await Runner().run(Agent(model, name=agent_name, skills=skills), "go")
    assert result.status == "completed", result.error
    return [turn.last_message.parts[0].content for turn in model.calls[1:]]


def read(path: str, skill: str = "reports") -> Any:
    return call("read_skill_file", skill=skill, path=path)


def test_every_folder_in_a_folder_is_a_skill(tmp_path: Path) -> None:
    made(tmp_path, "reports")
    made(tmp_path, "charts")
    made(tmp_path, ".hidden")
    (tmp_path / "no-skill").mkdir()
    (tmp_path / "README.md").write_text("no skill either")
    assert [(one.name, one.description) for one in load_skills(tmp_path)] == [
        ("charts", "All about charts."),
        ("reports", "All about reports."),
    ]
    assert [one.name for one in load_skills(str(tmp_path / "reports"))] == ["reports"]
    (tmp_path / "SKILL.md").write_text("---\nname: all\ndescription: Itself.\n---\nx")
    assert [one.name for one in load_skills(tmp_path)] == ["all", "charts", "reports"]


def test_a_relative_path_is_relative_to_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "skills", "reports")
    monkeypatch.chdir(tmp_path)
    assert [one.name for one in load_skills("skills")] == ["reports"]


def test_the_head_may_be_as_editors_and_people_write_it(tmp_path: Path) -> None:
    home = tmp_path / "from-windows"
    home.mkdir()
    text = (
        "\ufeff---\r\n# a comment\r\ndescription: >\r\n  In two\r\n  lines.\r\nlicense: MIT\r\n"
        "metadata:\r\n  version: 1\r\n--- \r\n\r\nThe body.\r\n---\r\nStill the body.\r\n"
    )
    (home / "SKILL.md").write_bytes(text.encode())
    [skill] = load_skills(home)
    assert (skill.name, skill.description) == ("from-windows", "In two lines.")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1: it does not begin with a head"),
        ("# Reports\n", "line 1: it does not begin with a head"),
        ("---\nname: x\n", "line 1: the head that begins here has no end"),
        ("---\nname: x\n---\nbody", "its head has no description"),
        ("---\ndescription:\n---\nbody", "its head has no description"),
        ("---\nname: x\ndescription: Reports: all of them\n---\nbody", "line 3: its head is no YAML.*in quotes"),
        ("---\nname: x\ndescription: [\n---\nbody", "line 4: its head is no YAML|line 3: its head is no YAML"),
        ("---\njust a text\n---\nbody", "line 2: its head must have a name and a description"),
        ("---\n---\nbody", "line 2: its head must have"),
        ("---\nname: 12\ndescription: d\n---\nbody", "the name in its head is 12, which is no text"),
        ("---\nname: two words\ndescription: d\n---\nbody", "'two words': a model could not call it"),
        ("---\ndescription: [a, b]\n---\nbody", "the description in its head is .*, which is no text"),
        ("---\ndescription: " + "x" * 1025 + "\n---\nbody", "1025 characters"),
        ("---\ndescription: d\n---\n \n", "line 3: there is nothing behind the head"),
        (b"---\ndescription: d\n---\nbody \xff", "line 4: it is not UTF-8"),
        ("---\ndescription: d\n---\n" + "x" * MAX_FILE_BYTES, "too large"),
        ("---\ndescription: !!python/object/apply:os.getcwd []\n---\nbody", "line 2: its head is no YAML"),
    ],
    ids=[
        "empty", "no-head", "no-end", "no-description", "blank-description", "colon", "bracket", "text", "empty-head",
        "number", "name", "list", "long", "no-body", "latin", "large", "code",
    ],
)  # fmt: skip
def test_a_faulty_skill_file_is_named_with_what_to_do(tmp_path: Path, content: str | bytes, words: str) -> None:
    home = tmp_path / "faulty"
    home.mkdir()
    (home / "SKILL.md").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DefinitionError, match=words) as raised:
        load_skills(tmp_path)
    assert str(home / "SKILL.md") in str(raised.value)


def test_a_folder_without_skills_is_an_error_that_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"neither .* nor a folder in it has a SKILL\.md"):
        load_skills(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DefinitionError, match="is not a folder"):
        load_skills(tmp_path / "file")


@pytest.mark.asyncio
async def test_a_model_loads_the_body_and_reads_the_files(tmp_path: Path) -> None:
    made(
        tmp_path,
        "reports",
        body="# Reports\n\nUse the template.\n",
        **{"template.md": "Dear …", "data/units.csv": "a,b\n", ".secret": "no", "__pycache__/x.pyc": b"\0"},
    )
    loaded, template, units = await run_skill_calls(
        "folders-read",
        [tmp_path],
        call("load_skill", name="reports"),
        read("template.md"),
        read("./data//units.csv"),
    )
    assert loaded == (
        "# Reports\n\nUse the template.\n\n"
        'Files of this skill, which `read_skill_file` reads (with skill="reports"):\n'
        "- data/units.csv (4 bytes)\n- template.md (8 bytes)"
    )
    assert (template, units) == ("Dear …", "a,b\n")


@pytest.mark.asyncio
async def test_a_long_list_of_files_is_cut(tmp_path: Path) -> None:
    made(tmp_path, "reports", **{f"{n:03}.txt": "" for n in range(150)})
    [loaded] = await run_skill_calls("folders-many", [tmp_path], call("load_skill", name="reports"))
    assert loaded.endswith("- 099.txt (0 bytes)\n- and more")


@pytest.mark.asyncio
async def test_a_model_cannot_read_outside_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("the secret")
    home = made(tmp_path / "skills", "reports", **{"in/side.txt": "fine"})
    made(tmp_path / "skills", "charts", **{"chart.txt": "of another skill"})
    (home / "link.txt").symlink_to(outside)
    (home / "up").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    paths = [
        "../../secret.txt", "in/../../../secret.txt", str(outside), "~/secret.txt", "link.txt", "up/secret.txt",
        "../charts/chart.txt", "pipe", "in", "", "nothing.txt", "in/side.txt/x", "a\0b", "x" * 5000,
    ]  # fmt: skip
    contents = await run_skill_calls("folders-confined", [tmp_path / "skills"], *map(read, paths), read("in/side.txt"))
    assert contents.pop() == "fine"
    assert len(contents) == len(paths)
    for path, content in zip(paths, contents, strict=True):
        assert "secret" not in content.replace(repr(path), "").replace("secret.txt", ""), path
        assert str(tmp_path / "skills") not in content
        assert not content.startswith(("the secret", "of another", "The tool")), path


@pytest.mark.asyncio
async def test_binary_and_large_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    made(
        tmp_path,
        "reports",
        **{
            "logo.png": b"\x89PNG\r\n\0",
            "latin.txt": b"caf\xe9",
            "huge.txt": b"x" * (MAX_FILE_BYTES + 1),
            "bom.txt": "\ufeffx",
        },
    )
    calls = [read(path) for path in ("logo.png", "latin.txt", "huge.txt", "bom.txt")]
    logo, latin, huge, bom = await run_skill_calls("folders-binary", [tmp_path], *calls)
    assert logo == "'logo.png' is no text file: only text can be read."
    assert latin == "'latin.txt' is no text file: only text can be read."
    assert "huge.txt" in huge
    assert "131,072 are allowed" in huge
    assert bom == "x"


@pytest.mark.asyncio
async def test_files_of_skills_that_have_none_or_that_there_are_not(tmp_path: Path) -> None:
    made(tmp_path, "reports", **{"a.txt": "a"})
    plain = Skill("plain", "Plain.", "Plain.")
    none, unknown = await run_skill_calls(
        "folders-none", [tmp_path, plain], read("a.txt", "plain"), read("a.txt", "report")
    )
    assert none == "The skill 'plain' has no files."
    assert unknown == "There is no skill 'report'. The skills that you have are: reports, plain."


@pytest.mark.asyncio
async def test_the_body_is_read_when_the_skill_is_loaded_and_recorded(tmp_path: Path) -> None:
    home = made(tmp_path, "reports", body="The first body.")

    def rewrite(_: Any) -> Any:
        (home / "SKILL.md").write_text("---\ndescription: d\n---\nThe second body.")
        return call("load_skill", name="reports")

    def ruin(_: Any) -> Any:
        (home / "SKILL.md").write_text("ruined")
        return call("load_skill", name="reports")

    bodies = await run_skill_calls("folders-changed", [tmp_path], call("load_skill", name="reports"), rewrite, ruin)
    assert bodies[:2] == ["The first body.", "The second body."]
    assert "it does not begin with a head" in bodies[2]


def test_a_link_in_place_of_the_skill_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = made(tmp_path / "elsewhere", "real") / "SKILL.md"
    home = tmp_path / "skills" / "reports"
    home.mkdir(parents=True)
    (home / "SKILL.md").symlink_to(elsewhere)
    with pytest.raises(DefinitionError, match="symbolic link"):
        load_skills(tmp_path / "skills")


@pytest.mark.asyncio
async def test_a_skill_folder_survives_wherever_the_process_dies(tmp_path: Path) -> None:
    made(tmp_path, "reports", **{"a.txt": "a"})
    model = ScriptedModel([call("load_skill", name="reports"), read("a.txt"), "done"])
    agent = Agent(model, name="folders-everywhere", skills=[tmp_path])
    report = await Runner(max_pairs=5, replay_processes=0).crash_everywhere(agent, "go")
    assert report.point_count > 8
