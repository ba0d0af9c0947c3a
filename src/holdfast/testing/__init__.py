"""Prove in a unit test that a workflow survives crashes.

``Runner`` runs workflows in memory and in virtual time, and lets their process die where a test says, or everywhere
(``crash_everywhere``); ``ScriptedModel`` answers in place of a model. ``replay_journal`` holds a journal from
production against the code of today. A pytest plugin brings the fixtures ``holdfast_runner`` and ``holdfast_clock``.

From the bottom up: ``tracing`` keeps what workflow code asks for; ``clock``, ``mortal``, ``mocks`` and ``models`` stand
in for time, for whatever dies with a process, for steps and for models; ``process`` is one real engine among them, and
``crashes`` tells where it dies. ``runner`` is a row of processes: a test arranges what happens to them (``arranging``),
changes runs from outside (``controlling``), and is told how they stand (``reading``, ``results``). ``everywhere`` is a
row of runners, with addresses shaken (``memory``) and other Python processes (``elsewhere``). What these must not do is
in ``rules``; their findings are told by ``violations`` and explained by ``suspects``, who look at what code can reach
(``reach``) and at what is written there (``sources``). ``replaying`` needs none of these; the journals that it reads
are written by ``client.journals``. ``plugin`` is for pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.journals import Journal, export_run
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.everywhere import Report
    from holdfast.testing.mocks import Mock
    from holdfast.testing.models import ScriptedModel, answer, call
    from holdfast.testing.replaying import JournalMismatch, Replayed, replay, replay_journal
    from holdfast.testing.results import Children, RunResult, StepResult, Steps
    from holdfast.testing.runner import Runner
    from holdfast.testing.violations import CrashSafetyError, CrashSafetyWarning

_HOME_OF = {
    "Children": "results",
    "CrashSafetyError": "violations",
    "CrashSafetyWarning": "violations",
    "Journal": "holdfast.client.journals",
    "JournalMismatch": "replaying",
    "Mock": "mocks",
    "Replayed": "replaying",
    "Report": "everywhere",
    "RunResult": "results",
    "Runner": "runner",
    "ScriptedModel": "models",
    "StepResult": "results",
    "Steps": "results",
    "VirtualClock": "clock",
    "answer": "models",
    "call": "models",
    "export_run": "holdfast.client.journals",
    "replay": "replaying",
    "replay_journal": "replaying",
}

__all__ = [
    "Children",
    "CrashSafetyError",
    "CrashSafetyWarning",
    "Journal",
    "JournalMismatch",
    "Mock",
    "Replayed",
    "Report",
    "RunResult",
    "Runner",
    "ScriptedModel",
    "StepResult",
    "Steps",
    "VirtualClock",
    "answer",
    "call",
    "export_run",
    "replay",
    "replay_journal",
]


def __getattr__(name: str) -> Any:
    # Lazily: the pytest plugin lies in this package, and is imported by every pytest in the environment.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    home = _HOME_OF[name]
    value = getattr(import_module(home if "." in home else f"holdfast.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
