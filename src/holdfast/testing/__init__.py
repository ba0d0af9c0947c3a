"""Prove in a unit test that a workflow survives crashes.

``Runner`` runs workflows in memory and in virtual time, and lets their process die where a test says, or everywhere
(``crash_everywhere``); ``ScriptedModel`` answers in place of a model. ``replay_journal`` holds a journal from
production against the code of today. A pytest plugin brings the fixtures ``holdfast_runner`` and ``holdfast_clock``.

From the bottom up: ``traced_execution`` keeps what workflow code asks for; ``virtual_clock``, ``crashable``, ``mocks``
and ``scripted_model`` stand in for time, for whatever dies with a process, for steps and for models;
``simulated_process`` is one real engine among them, and ``crash_points`` tells where it dies. ``runner`` is a row of
processes: a test arranges what happens to them (``runner_setup``), changes runs from outside (``store_provider``), and
is told how they stand (``result_builder``, ``results``). ``crash_everywhere`` is a row of runners, with addresses
shaken (``heap_shuffle``) and other Python processes (``subprocess_replay``). What these must not do is in
``crash_rules``; their findings are told by ``violations`` and explained by ``nondeterminism_causes``, who look at what
code can reach (``reachable_state``) and at what is written there (``source_scan``). ``journal_replay`` needs none of
these; the journals that it reads are written by ``services.journal_files``. ``plugin`` is for pytest.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
