"""``holdfast approvals``, ``approve`` and ``deny``, and how ``show`` and ``runs`` tell of questions and answers."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from approvals_project import make_office, run_until_asked
from cli_project import Project, seed

from holdfast.services.approvals import get_os_user


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two runs that wait for people. Only for reading."""
    return make_office(tmp_path_factory.mktemp("office") / "project")


@pytest.fixture
def office(desk: Project, tmp_path: Path) -> Project:
    """The same, to be changed."""
    return Project(shutil.copytree(desk.folder, tmp_path / "office"))


def listed(project: Project, *args: str) -> list[dict[str, Any]]:
    return project.here("approvals", "--json", *args).json


def find_approval_id(project: Project, run: str) -> str:
    [one] = listed(project, run)
    return one["id"]


# Listing


def test_a_question_is_shown_with_all_that_it_takes_to_decide(desk: Project):
    done = desk.here("approvals")
    assert done.code == 0
    first, second = done.out.split("\n\n")
    ship, mail = find_approval_id(desk, "shipping-vase"), find_approval_id(desk, "mailing")
    lines = first.splitlines()
    assert lines[0] == f"{ship}  Ship vase?"
    assert lines[1] == " " * 14 + "It is \\x1b[31mfragile.", "nothing that is recorded steers the terminal"
    assert lines[2] == "    run        shipping-vase (shipping), step 1"
    assert re.fullmatch(r"    asked      (now|\d+ s ago) \(.*\) of ann", lines[3])
    assert re.fullmatch(r"    until      in 1 d 23 h \(.*\)", lines[4])
    assert lines[5:] == [
        f"    answer     holdfast approve {ship}",
        f"               holdfast deny {ship}",
    ]
    assert "    tool       send_mail\n    reason     it leaves the house\n    arguments\n      {\n" in second
    assert '        "to": "customer@example.org",\n        "text": "first line\\nsecond line"\n      }\n' in second
    assert f"holdfast approve {mail} --arguments JSON" in second


def test_questions_are_listed_for_programs(desk: Project):
    ship, mail = listed(desk)
    assert (ship["run_id"], ship["workflow"]) == ("shipping-vase", "shipping")
    assert (ship["step_number"], ship["state"]) == (1, "open")
    assert (ship["assignee"], ship["choices"], ship["form"], ship["answer"]) == ("ann", [], None, None)
    assert ship["expires_at"] > ship["requested_at"]
    assert mail["arguments"] == {"to": "customer@example.org", "text": "first line\nsecond line"}
    assert (mail["tool"], mail["reason"], mail["assignee"]) == ("send_mail", "it leaves the house", "")


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        ([], ["shipping-vase", "mailing"]),
        (["mailing"], ["mailing"]),
        (["--workflow", "shipping"], ["shipping-vase"]),
        (["--for", "ann"], ["shipping-vase"]),
        (["--for", "bob"], []),
        (["mailing", "--all"], ["mailing"]),
    ],
    ids=lambda value: " ".join(value) or "none",
)
def test_questions_are_chosen_by_run_workflow_and_person(desk: Project, args: list[str], runs: list[str]):
    assert [one["run_id"] for one in listed(desk, *args)] == runs


def test_an_empty_list_says_so(desk: Project, seeded: Project):
    assert desk.here("approvals", "--for", "bob").out == "no approval matches\n"
    assert seeded.here("approvals").out == "no open approvals\n"
    assert seeded.here("approvals", "--all").out == "no approvals yet\n"
    unknown = desk.here("approvals", "shipping-vas")
    assert unknown.code == 1
    assert "Did you mean shipping-vase?" in unknown.err


def test_a_long_list_is_cut_and_says_so(desk: Project):
    out = desk.here("approvals", "--limit", "1").out
    assert out.endswith("\n\nthere are more: name a run, --workflow or --for, or give a higher --limit\n")
    assert "Send the mail?" not in out
    assert len(listed(desk, "--limit", "1")) == 1


def test_the_commands_in_a_list_name_the_same_store(desk: Project):
    out = desk.here("approvals", "mailing", "--url", desk.url).out
    assert f"holdfast deny {find_approval_id(desk, 'mailing')} --url {desk.url}\n" in out


# Answering


def test_from_question_to_question_to_the_end(office: Project):
    ship = find_approval_id(office, "shipping-vase")
    done = office.here("approve", ship[:6], "--by", "ann", "--reason", "paid")
    assert done.code == 0
    assert done.out.splitlines() == [
        f"approved as ann: 'Ship vase?\\nIt is \\x1b[31mfragile.' (approval {ship})",
        "run 'shipping-vase': it continues when a worker claims it",
        "no live worker serves workflow 'shipping': start one with `holdfast worker MODULE`, or run its program again",
    ]
    assert "answers that are there, and not recorded yet: #1" in office.here("show", "shipping-vase").out
    run_until_asked(office, "shipping-vase", 2)

    how = find_approval_id(office, "shipping-vase")
    shown = office.here("approvals", "shipping-vase").out
    assert "    choices    by sea\n               by air\n" in shown
    assert f"    answer     holdfast approve {how} 'by sea'\n" in shown
    wrong = office.here("approve", how, "by bike")
    assert (wrong.code, wrong.out) == (1, "")
    assert "cannot be answered with 'by bike': choose one of by sea, by air" in wrong.err
    assert f"with {json.dumps('by air')}" in office.here("approve", how, "by air").out
    run_until_asked(office, "shipping-vase", 3)

    what = find_approval_id(office, "shipping-vase")
    shown = office.here("approvals", "shipping-vase").out
    assert '    form       weight (number): in kilograms\n               colour ("red" or "blue", may be left' in shown
    wrong = office.here("approve", what, "--value", '{"weight": "much"}')
    assert "$.weight: 'much' is not of type 'number'" in wrong.err
    assert office.here("approve", what, '{"weight": 2.5}').code == 0
    run_until_asked(office, "shipping-vase", 4)

    output = office.here("show", "shipping-vase").out
    assert "state      completed" in output
    assert re.search(r"^ +1  approval +.*ok", output, re.M)
    assert re.search(r"^ +yes \(paid\), by ann (now|\d+ s ago) \(.*\)$", output, re.M)
    assert re.search(rf"^ +by air, by {re.escape(get_os_user())} (now|\d+ s ago)", output, re.M)
    assert "“How?”" in output
    assert "waits for an answer" not in output
    whole = office.here("show", "shipping-vase", "--json").json
    assert [one["answer"]["value"] for one in whole["approvals"]] == [None, "by air", {"weight": 2.5}]
    assert [one["kind"] for one in whole["journal"] if one["name"] == "approval"] == ["approval"] * 3
    closed = office.here("approvals", "shipping-vase", "--all").out
    assert re.search(r"^    answered   yes \(paid\), by ann (now|\d+ s ago) \(", closed, re.M)
    assert "holdfast approve" not in closed

    prospect = office.here("fork", "shipping-vase", "--at", "9")
    assert "no recorded step 9" in prospect.err
    fork = office.here("fork", "shipping-vase", "--at", "1", "--output", "false", "--id", "kept")
    assert fork.code == 0
    run_until_asked(office, "kept", 1)
    assert office.here("show", "kept", "--json").json["output"] == "kept"


def test_a_call_is_approved_with_its_arguments_or_with_others(office: Project):
    mail = find_approval_id(office, "mailing")
    for args, words in [
        (["--arguments", "{"], "--arguments is not JSON"),
        (["--arguments", "[1]"], "--arguments is a JSON object"),
        (["yes", "--value", "1"], "the answer is given once"),
    ]:
        done = office.here("approve", mail, *args)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
    refused = office.here("approve", mail, "--arguments", '{"to": 3}')
    assert "do not fit tool 'send_mail': $.to: 3 is not of type 'string'. The question is still open." in refused.err
    assert "approve of it without a value" in office.here("approve", mail, "yes").err
    done = office.here("approve", mail, "--arguments", '{"to": "me@example.org"}')
    assert 'with edited arguments: send_mail({"to": "me@example.org"})\n' in done.out
    run_until_asked(office, "mailing", 2)
    shown = office.here("show", "mailing").out
    assert 'send_mail({"to": "customer@example.org", "text": "first line\\nsecond line"})' in shown
    assert 'yes, with {"to": "me@example.org"}' in shown


def test_what_was_approved_is_printed_with_the_arguments_that_were_shown(office: Project):
    done = office.here("approve", find_approval_id(office, "mailing"), "--by", "ann")
    assert 'send_mail({"to": "customer@example.org", "text": "first line\\nsecond line"})\n' in done.out


def test_a_run_id_selects_the_only_open_approval_of_the_run(office: Project):
    approval = find_approval_id(office, "shipping-vase")
    done = office.here("approve", "shipping-vase", "--json")
    assert (done.code, done.json["id"], done.json["approval"]) == (0, "shipping-vase", approval)
    denied = office.here("deny", "mailing")
    assert denied.code == 0, denied.err
    again = office.here("approve", "mailing")
    assert again.code == 1
    assert "run 'mailing' has no open approval: it is " in again.err
    assert "there is no approval 'nothing'" in office.here("approve", "nothing").err


def test_the_id_of_a_run_with_several_open_approvals_names_them(office: Project):
    app = office.folder / "app.py"
    app.write_text(
        app.read_text()
        + """

@workflow(id="both")
async def both() -> None:
    import asyncio
    await asyncio.gather(ask("First?"), ask("Second?"))
"""
    )
    code = (
        "import asyncio, app\nfrom holdfast import Client\n"
        "async def main():\n"
        "    await app.both.start()\n"
        "    async with Client() as client:\n"
        "        while len(await client.approvals('both')) < 2: await asyncio.sleep(0.01)\n"
        "asyncio.run(main())"
    )
    assert office.python("-c", code).code == 0
    done = office.here("approve", "both")
    assert done.code == 1
    assert "run 'both' has more than one open approval: " in done.err
    for one in listed(office, "both"):
        assert one["id"] in done.err
    assert len(listed(office, "both")) == 2


def test_a_second_answer_is_an_error_unless_it_is_the_same(office: Project):
    ship = find_approval_id(office, "shipping-vase")
    assert office.here("deny", ship, "--by", "ann", "--reason", "not paid").out.startswith("denied as ann: ")
    again = office.here("deny", ship, "--by", "ann", "--reason", "not paid")
    assert again.code == 0
    assert "you had said so before: nothing changed\n" in again.out
    second = office.here("approve", ship, "--by", "bob")
    assert (second.code, second.out) == (1, "")
    assert "is closed: ann answered it at" in second.err
    assert ": no (not paid). That answer counts" in second.err


def test_answers_are_printed_as_json(office: Project):
    ship = find_approval_id(office, "shipping-vase")
    data = office.here("approve", ship, "--by", "ann", "--json").json
    assert (data["id"], data["workflow"], data["state"], data["changed"]) == (
        "shipping-vase", "shipping", "waiting", True
    )  # fmt: skip
    assert data["approval"] == ship
    assert datetime.fromisoformat(data["answer"].pop("answered_at")).tzinfo is UTC
    assert data["answer"] == {
        "approved": True, "value": None, "arguments": None, "reason": "", "answered_by": "ann"
    }  # fmt: skip
    assert "no live worker" in data["stall_reason"]
    closed = office.here("deny", ship, "--json").json
    assert (closed["id"], closed["changed"], closed["error"]["type"]) == ("shipping-vase", False, "ApprovalClosed")
    unknown = office.here("deny", "nope", "--json")
    assert unknown.code == 1
    assert (unknown.json["approval"], unknown.json["error"]["type"]) == ("nope", "UnknownApproval")


# Elsewhere


def test_a_run_that_waits_is_shown_with_its_question_and_how_to_answer(desk: Project):
    ship = find_approval_id(desk, "shipping-vase")
    out = desk.here("show", "shipping-vase").out
    assert f"waits for  approval {ship} or a timer (due in 1 d 23 h)" in out
    assert f"\nwaits for an answer\n  {ship}  Ship vase?\n" in out
    assert f"holdfast approve {ship}\n" in out
    assert desk.here("show", "shipping-vase", "--json").json["approvals"][0]["state"] == "open"


def test_a_list_of_runs_shows_open_questions(desk: Project):
    out = desk.here("runs").out
    assert (
        f"approval {find_approval_id(desk, 'shipping-vase')}: Ship vase? It is \\x1b[31mfragile.; no live worker" in out
    )
    assert "open approvals: see `holdfast approvals`\n" in out
    assert "see `holdfast approvals`" not in desk.here("runs", "--state", "failed").out


ASKING_PROGRAM = """
import asyncio, os
from holdfast import Client, ask, program

@program(id="painting")
async def paint() -> bool:
    return await ask("Which color?")

async def main():
    await paint.start()
    async with Client() as client:
        while not await client.approvals():
            await asyncio.sleep(0.02)
        os._exit(0)

asyncio.run(main())
"""


def test_a_list_of_runs_shows_the_question_of_a_running_program(tmp_path: Path):
    project = Project(tmp_path)
    seed(project, ASKING_PROGRAM)
    assert project.here("runs", "--json").json[0]["state"] == "running"
    assert f"approval {find_approval_id(project, 'painting')}: Which color?" in project.here("runs").out
    assert "It waits for an answer to “Which color?”." in project.here("show", "painting").out


def test_a_question_fits_a_narrow_terminal(desk: Project):
    output = desk.on_a_terminal("approvals", "mailing")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert f"holdfast approve {find_approval_id(desk, 'mailing')}" in plain
    assert all(len(line) <= 80 for line in plain.splitlines())


def test_a_retry_reports_that_an_answer_is_taken_back(office: Project):
    ship = find_approval_id(office, "shipping-vase")
    office.here("approve", ship, "--by", "ann")
    run_until_asked(office, "shipping-vase", 2)
    office.here("deny", find_approval_id(office, "shipping-vase"), "--by", "bob", "--reason", "neither")
    run_until_asked(office, "shipping-vase", 3)
    shown = office.here("show", "shipping-vase").out
    assert "ApprovalDenied: bob said no to 'How?'" in shown
    assert re.search(r"takes back .*the answer to question \d+", shown)
    assert office.here("retry", "shipping-vase").code == 0
    run_until_asked(office, "shipping-vase", 3)
    [again] = listed(office, "shipping-vase")
    assert (again["question"], again["state"]) == ("How?", "open")


def test_an_answer_to_a_paused_run_does_not_report_that_it_continues(office: Project):
    office.here("pause", "shipping-vase")
    done = office.here("approve", find_approval_id(office, "shipping-vase"), "--by", "ann")
    assert "run 'shipping-vase': the answer is kept until it continues\n" in done.out
    assert done.out.endswith("run 'shipping-vase' is paused: `holdfast resume shipping-vase` lets it go on\n")
