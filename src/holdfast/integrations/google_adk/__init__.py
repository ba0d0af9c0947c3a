"""Agents of Google ADK whose runs survive the process: ``runner = durable(InMemoryRunner(agent=...))``.

A durable runner executes the framework's own code in a *program* (see ``authoring.program``): after a crash it runs
again from its beginning, and what has an outcome in the journal is not repeated.

- **In a program**, ``runner.run_async(...)`` records its calls in that program's run.
- **Anywhere else**, it becomes a run of its own: see ``runner``.

What is recorded: model calls (``recorded_model``), tools and executed code (``recorded_tool``), and the session at the
beginning of an invocation (``working_session``). ``plugin`` puts these in their places. ``reproducible_values`` makes
the framework's ids and times those that they were before.
"""

try:
    from holdfast.integrations.google_adk.runner import DurableRunner, durable
    from holdfast.integrations.google_adk.session_service import HoldfastSessionService
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[google-adk]' installs what this integration needs.")
    raise

__all__ = ["DurableRunner", "HoldfastSessionService", "durable"]
