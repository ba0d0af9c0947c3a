"""Hints for keyword arguments of ``Agent(...)`` that other frameworks use: what to write instead."""

from __future__ import annotations

AGENT_KEYWORD_HINTS: dict[str, str] = {
    **dict.fromkeys(("system_prompt", "system_message", "system", "goal"), "write instructions="),
    "prompt": "write instructions= here, and give the prompt to run(...)",
    "llm": "write model=, as in 'openai:gpt-4o'",
    **dict.fromkeys(("fallbacks", "fallback_models"), "write fallback=, one model or several"),
    "functions": "write tools=",
    "toolsets": "write tools=, which takes toolsets as well",
    "mcp_servers": "write tools=[mcp_stdio(...)] or tools=[mcp_http(...)]",
    **dict.fromkeys(("handoffs", "sub_agents", "agents"), "write subagents="),
    **dict.fromkeys(("result_type", "response_format", "response_model", "output_schema"), "write output_type="),
    **dict.fromkeys(("output_retries", "result_retries"), "write output_type=Output(..., retries=...)"),
    "continue_truncated": "write output_type=Output(str, continue_truncated=True)",
    **dict.fromkeys(("max_steps", "max_iterations", "max_iter", "recursion_limit"), "write max_turns="),
    **dict.fromkeys(
        ("settings", "model_settings", "temperature"),
        "write model_options=ModelOptions(settings={'temperature': ...})",
    ),
    "max_tokens": "write model_options=ModelOptions(settings={'max_tokens': ...})",
    **dict.fromkeys(("model_timeout", "request_timeout"), "write model_options=ModelOptions(timeout=...)"),
    "retry": "write model_options=ModelOptions(retry=RetryPolicy(...)); a tool has its own, @tool(retry=...)",
    "retries": "write model_options=ModelOptions(retry=RetryPolicy(retries=...)); a tool has @tool(retries=...)",
    "stream": "write model_options=ModelOptions(stream=...)",
    **dict.fromkeys(
        ("queue", "task_queue", "queue_name"),
        "write workflow_options=WorkflowOptions(queue=...), with the name of the queue",
    ),
    "timeout": "write workflow_options=WorkflowOptions(timeout=...), or model_options= for that of model calls",
    "tags": "write workflow_options=WorkflowOptions(tags=[...])",
    "max_deliveries": "write workflow_options=WorkflowOptions(max_deliveries=...)",
    "version": "write workflow_options=WorkflowOptions(version=...)",
    "serves": "write workflow_options=WorkflowOptions(serves=[...])",
    "deps": "give them to run(..., deps=...) or run_worker(deps=...)",
    "checkpointer": "leave it out: every run is recorded",
    **dict.fromkeys(("session", "session_id"), "give it to run(..., session=...)"),
}
