"""The figures as Markdown, for the documentation and for whoever ran the command."""

from __future__ import annotations

from benchmarks.peers.figures import EACH, Crash, Figures, Rate, Report
from benchmarks.peers.programs.peer_protocol import HELD

NOTHING = "–"
BEGIN, END = "<!-- peers: python -m benchmarks.peers --render -->\n\n", "\n<!-- end -->"
"""Between these, a page holds the tables."""


def into(page: str, tables: str) -> str:
    """The page, with these tables in the place of those that it holds."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no place for the tables, between {BEGIN.strip()} and {END.strip()}")
    return before + begin + tables + end + after


def render(report: Report) -> str:
    """Where it was measured, the tables, and what could not be measured."""
    blocks = [_head(report), _rates(report), _crashes(report), _documented(report)]
    missing = _missing(report)
    return "\n\n".join([*blocks, missing] if missing else blocks) + "\n"


def brief(report: Report) -> str:
    """What matters most, in one table."""
    head = [
        "",
        f"{report.steps} steps of one run, a second",
        f"{report.runs} runs × {EACH} steps, steps a second",
        "killed in step 9 of 12: runs again",
        "goes on",
        "a second process beside a living one repeats",
    ]
    rows = [
        [
            one.title,
            _failed(one, "rates") if one.sequential is None else f"{one.sequential.value:,.0f}",
            _failed(one, "rates") if one.together is None else f"{one.together.value:,.0f}",
            _again(one),
            _goes_on(one),
            _failed(one, "beside") if one.beside is None else _steps(one.beside),
        ]
        for one in report.peers
        if "installed" not in one.failed
    ]
    return _table(head, rows) + "\n"


def _head(report: Report) -> str:
    bares = {"SQLite": report.bare_sqlite, "Postgres": report.bare_postgres}
    told = " and ".join(f"{rate:,.0f} commits/s on {name}" for name, rate in bares.items() if rate)
    versions = "; ".join(dict.fromkeys(one.versions for one in report.peers))
    return (
        f"{report.cores} cores, Python {report.python}, medians of {report.rounds} rounds ({report.crashes} of each "
        f"crash). Bare: {told or 'not measured'}.\n"
        f"Versions: {versions}."
    )


def _rates(report: Report) -> str:
    head = [
        "",
        f"{report.steps} steps of one run, steps/s",
        f"{report.runs} runs × {EACH} steps, steps/s",
        "bytes a step",
    ]
    rows = [
        [one.title, _rate(one, one.sequential), _rate(one, one.together), _bytes(one)]
        for one in report.peers
        if "installed" not in one.failed
    ]
    return _table(head, rows)


def _crashes(report: Report) -> str:
    head = [
        "",
        "ran again",
        "goes on by itself",
        "restarted, s",
        "taken over, s",
        "ran beside the living process",
    ]
    rows = [
        [
            one.title,
            _again(one),
            "no: the run is named" if one.is_named else _by_itself(one),
            _seconds(one, "restart", one.restart),
            NOTHING if one.no_takeover else _seconds(one, "takeover", one.takeover),
            _failed(one, "beside") if one.beside is None else _steps(one.beside),
        ]
        for one in report.peers
        if "installed" not in one.failed
    ]
    return _table(head, rows)


def _documented(report: Report) -> str:
    rows = [
        [one.title, one.settings, f"no: {one.no_takeover}" if one.no_takeover else "yes", one.once]
        for one in report.peers
        if "installed" not in one.failed
    ]
    head = ["", "settings", "a running process takes over", "a step can be told not to be repeated"]
    return _table(head, rows)


def _missing(report: Report) -> str:
    lines = [
        f"- {one.title}, {'not installed' if job == 'installed' else job}: {' '.join(why.split())}"
        for one in report.peers
        for job, why in one.failed.items()
    ]
    return "\n".join(["Not measured:", "", *lines]) if lines else ""


def _rate(one: Figures, rate: Rate | None) -> str:
    return _failed(one, "rates") if rate is None else f"{rate.value:,.0f} ({_share(rate.of_bare)} of bare)"


def _share(of_bare: float) -> str:
    return f"{of_bare:.2f}" if of_bare >= 0.01 else "less than 0.01"


def _bytes(one: Figures) -> str:
    return _failed(one, "rates") if one.bytes is None else f"{one.bytes:,.0f}"


def _again(one: Figures) -> str:
    crashes = [crash for crash in (one.restart, one.takeover) if crash is not None]
    if not crashes:
        return _failed(one, "restart")
    return _steps(sorted({number for crash in crashes for number in crash.again}))


def _steps(numbers: list[int]) -> str:
    """Numbers as a sentence has them; the one in flight is no surprise."""
    if not numbers:
        return "none"
    if numbers == [HELD]:
        return f"the one in flight ({HELD})"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _by_itself(one: Figures) -> str:
    if one.restart is None:
        return _failed(one, "restart")
    return "yes" if one.restart.seconds is not None else "no"


def _goes_on(one: Figures) -> str:
    """What has to happen for it, and how long that took."""
    if one.is_named:
        return "when somebody names the run"
    if one.no_takeover:
        return "when a process starts" if _by_itself(one) == "yes" else _by_itself(one)
    took = _seconds(one, "takeover", one.takeover)
    return took if one.takeover is None or one.takeover.seconds is None else f"by itself, {took} s"


def _seconds(one: Figures, job: str, crash: Crash | None) -> str:
    if crash is None:
        return _failed(one, job)
    if crash.seconds is None:
        return "never"
    return f"{crash.seconds:.2f}" if crash.seconds < 1 else f"{crash.seconds:.1f}"


def _failed(one: Figures, job: str) -> str:
    return "failed" if job in one.failed else NOTHING


def _table(head: list[str], rows: list[list[str]]) -> str:
    ruler = "|---" * len(head) + "|"
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (head, *rows)]
    return "\n".join([lines[0], ruler, *lines[1:]])
