"""The same commands on a terminal of 80 columns."""

from __future__ import annotations

import re
import shutil

from cli_project import Project

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def split_lines(text: str) -> list[str]:
    return [SEQUENCES.sub("", line) for line in text.splitlines()]


def test_runs_fit_into_80_columns_with_colours(history: Project):
    text = history.on_a_terminal("runs")
    assert "\x1b[31mfailed" in text
    lines = split_lines(text)
    assert max(len(line) for line in lines) <= 80
    assert "    no live worker serves it" in lines or any(line.endswith("no live worker serves it") for line in lines)


def test_the_journal_and_the_doctor_fit_into_80_columns(history: Project):
    text = history.on_a_terminal("show", "etl-acme")
    journal = split_lines(text[text.index("outcome") :])
    assert max(len(line) for line in journal) <= 80
    assert max(len(line) for line in split_lines(history.on_a_terminal("doctor"))) <= 80


def test_what_a_retry_would_do_is_wrapped_at_words(relatives: Project):
    text = relatives.on_a_terminal("show", "mailer")
    lines = split_lines(text[text.index("retry") :])
    assert max(len(line) for line in lines) <= 80
    output = " ".join(" ".join(lines).split())
    assert "If it may run again: `holdfast retry mailer --run-again`" in output


def test_the_demo_prints_a_line_for_each_call_in_the_color_of_its_worker(project: Project):
    text = project.on_a_terminal("demo", "--fast")
    found = re.search(r"(\S+)/effects.log", SEQUENCES.sub("", text))
    assert found is not None
    shutil.rmtree(found[1])
    lines = [line for line in text.splitlines() if re.match(r" +[\d.]+ s  ", SEQUENCES.sub("", line))]
    assert max(map(len, split_lines("\n".join(lines)))) <= 90
    assert sum(re.match(r"\x1b\[36m.* model call +\d+ tokens in", line) is not None for line in lines) == 8
    assert sum(re.match(r"\x1b\[35m.* model call +\d+ tokens in", line) is not None for line in lines) == 4
    assert any(re.match(r"\x1b\[1;31m.* SIGKILL for worker A", line) for line in lines)
    assert any(re.match(r"\x1b\[1;35m.* worker B takes the run over", line) for line in lines)
