"""Crews and flows of CrewAI that survive the process: ``crew = durable(Crew(...))``.

When this package is imported, it replaces the methods with which CrewAI calls models and tools (see
``method_wrappers``). In a ``@program``, each such call is then a recorded step, in crews, flows, and agents, whether
they are durable or not. Everywhere else, CrewAI is unchanged.
"""

try:
    from holdfast.integrations.crewai import (
        crew_runs,
        executor_threads,
        flows,
        generated_values,
        memory_calls,
        model_calls,
        tool_calls,
    )
    from holdfast.integrations.crewai.durable import durable
    from holdfast.integrations.crewai.flow_persistence import HoldfastFlowPersistence
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[crewai]' installs what this integration needs.")
    raise

__all__ = ["HoldfastFlowPersistence", "durable"]

for _module in (model_calls, executor_threads, tool_calls, crew_runs, flows, generated_values, memory_calls):
    _module.replace_methods()
