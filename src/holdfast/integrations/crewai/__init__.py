"""Crews and flows of CrewAI that survive the process: ``crew = durable(Crew(...))``.

When this package is imported, it replaces the methods with which CrewAI calls models and tools (see
``method_wrappers``). In a ``@program``, each such call is then a recorded step, in crews, flows, and agents, whether
they are durable or not. Everywhere else, CrewAI is unchanged.
"""

from holdfast.integrations.crewai import crew_runs, model_calls, tool_calls
from holdfast.integrations.crewai.durable import durable

__all__ = ["durable"]

for _module in (model_calls, tool_calls, crew_runs):
    _module.replace_methods()
