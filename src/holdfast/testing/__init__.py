"""Prove in a unit test that a workflow survives crashes.

``Runner`` runs workflows in memory and in virtual time, and crashes their process where a test wants it, or everywhere
(``crash_everywhere``). ``ScriptedModel`` replaces a model. ``replay_journal`` replays a journal from production with
today's code. A pytest plugin provides the fixtures ``holdfast_runner`` and ``holdfast_clock``.

The modules, from the bottom up:

- ``traced_execution`` records the commands that workflow code issues. ``virtual_clock``, ``crashable``, ``mocks``, and
  ``scripted_model`` replace time, everything that dies with a process, steps, and models.
- ``simulated_process`` runs a real engine among them; ``crash_points`` names the points where it can die.
- ``runner`` runs a sequence of processes. A test sets them up (``runner_setup``) and reads results (``result_builder``,
  ``results``).
- ``crash_everywhere`` runs many runners, with shuffled addresses (``heap_shuffle``) and in other Python processes
  (``subprocess_replay``). ``crash_rules`` has the rules they must keep; ``violations`` reports what broke one, and
  ``nondeterminism_causes`` explains it from the state that code can reach (``reachable_state``) and from its source
  (``source_scan``).
- ``adapter_check`` runs an agent of another framework in runners, and checks what its adapter must do.
- ``journal_replay`` needs none of these. It reads the files that ``services.journal_files`` writes.
- ``plugin`` is the pytest plugin.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
