"""The same commands on a terminal of 80 columns."""

from __future__ import annotations

import re
import shutil

from cli_project import Project

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def lines_of(text: str) -> list[str]:
    return [SEQUENCES.sub("", line) for line in text.splitlines()]


def test_runs_fit_into_80_columns_with_colours(history: Project):
    text = history.on_a_terminal("runs")
    assert "\x1b[31mfailed" in text
    lines = lines_of(text)
    assert max(len(line) for line in lines) <= 80
    assert "    no live worker serves it" in lines or any(line.endswith("no live worker serves it") for line in lines)


def test_the_journal_and_the_doctor_fit_into_80_columns(history: Project):
    text = history.on_a_terminal("show", "etl-acme")
    journal = lines_of(text[text.index("outcome") :])
    assert max(len(line) for line in journal) <= 80
    assert max(len(line) for line in lines_of(history.on_a_terminal("doctor"))) <= 80


def test_what_a_retry_would_do_is_wrapped_at_words(relatives: Project):
    text = relatives.on_a_terminal("show", "mailer")
    lines = lines_of(text[text.index("retry") :])
    assert max(len(line) for line in lines) <= 80
    told = " ".join(" ".join(lines).split())
    assert "If it may run again: `holdfast retry mailer --run-again`" in told


def test_the_demo_draws_a_table_in_place_whose_last_state_tells_the_story(project: Project):
    text = project.on_a_terminal("demo", "--fast")
    assert "● thinking" in text
    last = lines_of(text[text.rindex("web_search ×3") - 20 :])
    try:
        rows = [line.rstrip() for line in last]
        assert max(len(row) for row in rows if "Counted" not in row and "show demo" not in row) <= 80
        assert sum(row.endswith("✓ replayed by B") for row in rows) == 8
        assert sum("✗ SIGKILL mid-call" in row for row in rows) == 1
        assert any(re.search(r"write_report +B \d+ .* ✓ took over in \d.* m?s$", row) for row in rows)
        assert any(re.search(r"12  the answer +B \d+ +[\d,]+ in +\d+ out  \$0\.\d{4}  ✓$", row) for row in rows)
    finally:
        found = re.search(r"(\S+)/effects.log", "".join(last))
        if found is not None:
            shutil.rmtree(found[1])
