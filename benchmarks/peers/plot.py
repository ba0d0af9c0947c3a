"""The figures as a picture: steps a second and recovery after SIGKILL, one bar for each peer.

Seconds have a logarithmic scale, because they span three orders of magnitude. A peer without a figure has the reason
where its bar would be.
"""

from __future__ import annotations

import math
from html import escape

from benchmarks.peers.figures import STEPS_EACH, PeerFigures, PeerReport

_ROW_HEIGHT, _BAR_HEIGHT = 24, 14
_LABEL_WIDTH, _PANEL_WIDTH, _GAP, _MARGIN = 205, 270, 40, 16
_TOP = 62
"""Height of the panels' titles."""
_VALUE_WIDTH = 62
"""Room for the figure after the longest bar."""

_STYLE = """
    text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1b2a30 }
    .head { font-weight: 600; font-size: 13.5px } .dim { fill: #55656d } .end { text-anchor: end }
    .own { font-weight: 600 } .paper { fill: #fbfdfd; stroke: #d3dddf } .bar { fill: #a9b8be }
    .bar.own { fill: #00796b } .axis { stroke: #8a9aa1 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e3eaec } .dim { fill: #a3b1b7 } .paper { fill: #1d2528; stroke: #39464b }
      .bar { fill: #56666d } .bar.own { fill: #4db6ac } .axis { stroke: #75868d }
    }
  """


def render_plot(report: PeerReport) -> str:
    """An SVG document with two panels."""
    peers = [peer for peer in report.peers if "installed" not in peer.failures]
    width = 2 * _MARGIN + _LABEL_WIDTH + 2 * _PANEL_WIDTH + _GAP
    height = _TOP + _ROW_HEIGHT * len(peers) + _MARGIN
    left, right = _MARGIN + _LABEL_WIDTH, _MARGIN + _LABEL_WIDTH + _PANEL_WIDTH + _GAP
    rates = [peer.concurrent.steps_per_s if peer.concurrent else None for peer in peers]
    recoveries = [peer.takeover.recovery_s if peer.takeover else None for peer in peers]
    title = "Steps a second and seconds until another process takes over after SIGKILL, by peer"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-labelledby="title">',
        f'  <title id="title">{title}</title>',
        f"  <style>{_STYLE}</style>",
        f'  <rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *_render_panel_title(
            left, "Steps per second", f"{report.concurrent_run_count} runs × {STEPS_EACH} steps; more is better"
        ),
        *_render_panel_title(right, "Takeover after SIGKILL", "seconds, log scale; less is better"),
    ]
    for row, peer in enumerate(peers):
        y = _TOP + row * _ROW_HEIGHT
        rate, recovery = rates[row], recoveries[row]
        lines.append(f'  <text class="end{_own(peer)}" x="{left - 10}" y="{y + 15}">{escape(peer.title)}</text>')
        if rate is None:
            lines += _render_note(left, y, "failed")
        else:
            lines += _render_bar(peer, left, y, rate / max(filter(None, rates)), f"{rate:,.0f}")
        if recovery is None:
            lines += _render_note(right, y, _explain_no_takeover(peer))
        else:
            lines += _render_bar(
                peer, right, y, _scale_log(recovery, list(filter(None, recoveries))), _format_seconds(recovery)
            )
    bottom = _TOP + _ROW_HEIGHT * len(peers) - 4
    lines += [f'  <path class="axis" d="M{x} {_TOP - 6}V{bottom}"/>' for x in (left, right)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _render_panel_title(x: int, title: str, subtitle: str) -> list[str]:
    return [
        f'  <text class="head" x="{x}" y="26">{title}</text>',
        f'  <text class="dim" x="{x}" y="44">{subtitle}</text>',
    ]


def _render_note(x: int, y: int, text: str) -> list[str]:
    return [f'  <text class="dim" x="{x + 8}" y="{y + 15}">{text}</text>']


def _render_bar(peer: PeerFigures, x: int, y: int, fraction: float, label: str) -> list[str]:
    """A bar with this fraction of the full length."""
    width = max(1, round(fraction * (_PANEL_WIDTH - _VALUE_WIDTH)))
    return [
        f'  <rect class="bar{_own(peer)}" x="{x}" y="{y + 4}" width="{width}" height="{_BAR_HEIGHT}" rx="2"/>',
        f'  <text class="{_own(peer).strip() or "dim"}" x="{x + width + 6}" y="{y + 15}">{label}</text>',
    ]


def _scale_log(value: float, values: list[float]) -> float:
    """The value on a logarithmic scale from 0 to 1 that begins a fifth of a decade below the smallest one."""
    low, high = math.log10(min(values)) - 0.2, math.log10(max(values))
    return (math.log10(value) - low) / (high - low)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.0f} s"


def _explain_no_takeover(peer: PeerFigures) -> str:
    if peer.takeover is not None:
        return "never"
    if peer.needs_explicit_resume:
        return "none: a client must name the run"
    return "none: only when a process starts" if peer.no_takeover_reason else "failed"


def _own(peer: PeerFigures) -> str:
    return " own" if peer.key.startswith("holdfast") else ""
