"""The figures as Markdown, for the documentation and for the terminal."""

from __future__ import annotations

from benchmarks.peers.figures import STEPS_EACH, CrashFigures, PeerFigures, PeerReport, Rate
from benchmarks.peers.programs.peer_protocol import HELD_STEP

EMPTY_CELL = "–"
BEGIN_MARK, END_MARK = "<!-- peers: python -m benchmarks.peers --render -->\n\n", "\n<!-- end -->"
"""The tables of a page are between these."""


def insert_tables(page: str, tables: str) -> str:
    """The page with its tables replaced by these."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _, end, after = rest.partition(END_MARK)
    if not end:
        raise ValueError(f"the page has no tables between {BEGIN_MARK.strip()} and {END_MARK.strip()}")
    return before + begin + tables + end + after


def render_report(report: PeerReport) -> str:
    """The machine and versions, the tables, and what could not be measured."""
    blocks = [_render_head(report), _render_rates(report), _render_crashes(report), _render_documented(report)]
    missing = _render_missing(report)
    return "\n\n".join([*blocks, missing] if missing else blocks) + "\n"


def render_summary(report: PeerReport) -> str:
    """What matters most, in one table."""
    head = [
        "",
        f"{report.sequential_step_count} steps in one run, steps/s",
        f"{report.concurrent_run_count} runs × {STEPS_EACH} steps, steps/s",
        "killed in step 9 of 12: steps that run again",
        "continues",
        "steps that a second live process repeats",
    ]
    rows = [
        [
            one.title,
            _format_missing(one, "rates") if one.sequential is None else f"{one.sequential.steps_per_s:,.0f}",
            _format_missing(one, "rates") if one.concurrent is None else f"{one.concurrent.steps_per_s:,.0f}",
            _format_repeated(one),
            _format_recovery(one),
            _format_missing(one, "beside") if one.overlap_repeats is None else _format_steps(one.overlap_repeats),
        ]
        for one in report.peers
        if "installed" not in one.failures
    ]
    return _render_table(head, rows) + "\n"


def _render_head(report: PeerReport) -> str:
    bares = {"SQLite": report.sqlite_baseline, "Postgres": report.postgres_baseline}
    rates = " and ".join(f"{rate:,.0f} commits/s on {name}" for name, rate in bares.items() if rate)
    versions = "; ".join(dict.fromkeys(one.versions for one in report.peers))
    return (
        f"{report.core_count} cores, Python {report.python}, medians of {report.round_count} rounds "
        f"({report.crash_round_count} of each "
        f"crash). Bare: {rates or 'not measured'}.\n"
        f"Versions: {versions}."
    )


def _render_rates(report: PeerReport) -> str:
    head = [
        "",
        f"{report.sequential_step_count} steps in one run, steps/s",
        f"{report.concurrent_run_count} runs × {STEPS_EACH} steps, steps/s",
        "bytes per step",
    ]
    rows = [
        [one.title, _format_rate(one, one.sequential), _format_rate(one, one.concurrent), _format_bytes(one)]
        for one in report.peers
        if "installed" not in one.failures
    ]
    return _render_table(head, rows)


def _render_crashes(report: PeerReport) -> str:
    head = [
        "",
        "steps that ran again",
        "continues by itself",
        "restart, s",
        "takeover, s",
        "steps that a second live process repeats",
    ]
    rows = [
        [
            one.title,
            _format_repeated(one),
            "no: a client must name the run" if one.needs_explicit_resume else _format_unattended(one),
            _format_seconds(one, "restart", one.restart),
            EMPTY_CELL if one.no_takeover_reason else _format_seconds(one, "takeover", one.takeover),
            _format_missing(one, "beside") if one.overlap_repeats is None else _format_steps(one.overlap_repeats),
        ]
        for one in report.peers
        if "installed" not in one.failures
    ]
    return _render_table(head, rows)


def _render_documented(report: PeerReport) -> str:
    rows = [
        [
            one.title,
            one.settings,
            f"no: {one.no_takeover_reason}" if one.no_takeover_reason else "yes",
            one.once_support,
        ]
        for one in report.peers
        if "installed" not in one.failures
    ]
    head = ["", "settings", "a running process takes over", "a step can be declared non-repeatable"]
    return _render_table(head, rows)


def _render_missing(report: PeerReport) -> str:
    lines = [
        f"- {one.title}, {'not installed' if job == 'installed' else job}: {' '.join(why.split())}"
        for one in report.peers
        for job, why in one.failures.items()
    ]
    return "\n".join(["Not measured:", "", *lines]) if lines else ""


def _format_rate(one: PeerFigures, rate: Rate | None) -> str:
    return (
        _format_missing(one, "rates")
        if rate is None
        else f"{rate.steps_per_s:,.0f} ({_format_ratio(rate.baseline_ratio)} of bare)"
    )


def _format_ratio(baseline_ratio: float) -> str:
    return f"{baseline_ratio:.2f}" if baseline_ratio >= 0.01 else "less than 0.01"


def _format_bytes(one: PeerFigures) -> str:
    return _format_missing(one, "rates") if one.bytes_per_step is None else f"{one.bytes_per_step:,.0f}"


def _format_repeated(one: PeerFigures) -> str:
    crashes = [crash for crash in (one.restart, one.takeover) if crash is not None]
    if not crashes:
        return _format_missing(one, "restart")
    return _format_steps(sorted({number for crash in crashes for number in crash.repeated_steps}))


def _format_steps(numbers: list[int]) -> str:
    """Step numbers in words. Only the step in flight may run again."""
    if not numbers:
        return "none"
    if numbers == [HELD_STEP]:
        return f"the one in flight ({HELD_STEP})"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _format_unattended(one: PeerFigures) -> str:
    if one.restart is None:
        return _format_missing(one, "restart")
    return "yes" if one.restart.recovery_s is not None else "no"


def _format_recovery(one: PeerFigures) -> str:
    """What makes the run continue, and how long that took."""
    if one.needs_explicit_resume:
        return "when a client names the run"
    if one.no_takeover_reason:
        return "when a process starts" if _format_unattended(one) == "yes" else _format_unattended(one)
    took = _format_seconds(one, "takeover", one.takeover)
    return took if one.takeover is None or one.takeover.recovery_s is None else f"by itself, {took} s"


def _format_seconds(one: PeerFigures, job: str, crash: CrashFigures | None) -> str:
    if crash is None:
        return _format_missing(one, job)
    if crash.recovery_s is None:
        return "never"
    return f"{crash.recovery_s:.2f}" if crash.recovery_s < 1 else f"{crash.recovery_s:.1f}"


def _format_missing(one: PeerFigures, job: str) -> str:
    return "failed" if job in one.failures else EMPTY_CELL


def _render_table(head: list[str], rows: list[list[str]]) -> str:
    ruler = "|---" * len(head) + "|"
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (head, *rows)]
    return "\n".join([lines[0], ruler, *lines[1:]])
