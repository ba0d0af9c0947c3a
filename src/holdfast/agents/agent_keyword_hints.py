"""For keyword arguments that people bring to ``Agent(...)`` from other frameworks, what to write instead."""

from __future__ import annotations

_INSTRUCTIONS = "write instructions="
_OUTPUT_TYPE = "write output_type="
_OUTPUT_RETRIES = "write output_type=Output(..., retries=...)"
_MAX_TURNS = "write max_turns="
_FALLBACK = "write fallback=, one model or several"
_SUBAGENTS = "write subagents="
_SETTINGS = "write model_options=ModelOptions(settings={'temperature': ...})"
_MODEL_TIMEOUT = "write model_options=ModelOptions(timeout=...)"
_QUEUE = "write workflow_options=WorkflowOptions(queue=...), with the name of the queue"
_SESSION = "give it to run(..., session=...)"

AGENT_KEYWORD_HINTS = {
    "system_prompt": _INSTRUCTIONS,
    "system_message": _INSTRUCTIONS,
    "system": _INSTRUCTIONS,
    "prompt": "write instructions= here, and give the prompt to run(...)",
    "goal": _INSTRUCTIONS,
    "llm": "write model=, as in 'openai:gpt-4o'",
    "functions": "write tools=",
    "toolsets": "write tools=, which takes toolsets as well",
    "mcp_servers": "write tools=[mcp_stdio(...)] or tools=[mcp_http(...)]",
    "handoffs": _SUBAGENTS,
    "sub_agents": _SUBAGENTS,
    "agents": _SUBAGENTS,
    "result_type": _OUTPUT_TYPE,
    "response_format": _OUTPUT_TYPE,
    "response_model": _OUTPUT_TYPE,
    "output_schema": _OUTPUT_TYPE,
    "output_retries": _OUTPUT_RETRIES,
    "result_retries": _OUTPUT_RETRIES,
    "continue_truncated": "write output_type=Output(str, continue_truncated=True)",
    "max_steps": _MAX_TURNS,
    "max_iterations": _MAX_TURNS,
    "max_iter": _MAX_TURNS,
    "recursion_limit": _MAX_TURNS,
    "settings": _SETTINGS,
    "model_settings": _SETTINGS,
    "temperature": _SETTINGS,
    "max_tokens": "write model_options=ModelOptions(settings={'max_tokens': ...})",
    "model_timeout": _MODEL_TIMEOUT,
    "request_timeout": _MODEL_TIMEOUT,
    "retry": "write model_options=ModelOptions(retry=RetryPolicy(...)); a tool has its own, @tool(retry=...)",
    "retries": "write model_options=ModelOptions(retry=RetryPolicy(retries=...)); a tool has @tool(retries=...)",
    "stream": "write model_options=ModelOptions(stream=...)",
    "fallbacks": _FALLBACK,
    "fallback_models": _FALLBACK,
    "queue": _QUEUE,
    "task_queue": _QUEUE,
    "queue_name": _QUEUE,
    "timeout": "write workflow_options=WorkflowOptions(timeout=...), or model_options= for that of model calls",
    "tags": "write workflow_options=WorkflowOptions(tags=[...])",
    "max_deliveries": "write workflow_options=WorkflowOptions(max_deliveries=...)",
    "version": "write workflow_options=WorkflowOptions(version=...)",
    "serves": "write workflow_options=WorkflowOptions(serves=[...])",
    "deps": "give them to run(..., deps=...) or run_worker(deps=...)",
    "checkpointer": "leave it out: every run is recorded",
    "session": _SESSION,
    "session_id": _SESSION,
}
