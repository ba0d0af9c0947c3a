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
are written by ``services.journal_files``. ``plugin`` is for pytest.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
