"""A class workflow: three numbered steps, two of which call a model, one of them with a fallback.

    python examples/class_workflow.py --pace 2
    python examples/class_workflow.py --run-id tuesday --prompt "Is it warm enough for a swim in Oslo?"

Offline, the first model rejects the request (401, like a provider with a wrong key), so that its fallback answers. The
journal shows which model answered, and why the other one did not: `holdfast show agent-monday`.

Kill it midway (Ctrl-C, or kill -9 from another terminal) and run the same command again: recorded steps, including the
models' answers, do not run again. Run it once more: no model is called, and the recorded answer is printed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from offline import make_parser, model_for
from scripts import REASON, REJECTED, SYNTHESIZE

from holdfast import llm_step, step, workflow

PRIMARY = model_for(REJECTED, "anthropic:claude-sonnet-5")
FALLBACK = model_for(REASON, "openai:gpt-4o")
WRITER = model_for(SYNTHESIZE, "anthropic:claude-sonnet-5")

TEMPERATURES = {"oslo": 14, "lima": 19, "kyoto": 27}


@workflow(id="agent-{run_id}")
class AgentWorkflow:
    """Finds the place in the question, looks up its temperature, and answers."""

    @step(1)
    @llm_step(model=PRIMARY, fallback=FALLBACK, instructions="Answer with the name of the place, and nothing else.")
    async def reason(self, prompt: str) -> str:
        return f"Which place is this about?\n\n{prompt}"  # the prompt; the recorded output is the model's answer

    @step(2, depends_on=1)
    async def call_tool(self, result: str) -> dict[str, Any]:
        return {"place": result, "celsius": TEMPERATURES.get(result.strip(" .").lower())}

    @step(3, depends_on=2)
    @llm_step(model=WRITER)
    async def synthesize(self, tool_output: dict[str, Any], prompt: str) -> str:
        return f"{prompt}\n\nMeasured just now: {tool_output}. Answer in one sentence."


async def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--run-id", default="monday", help="another one is another run (%(default)s)")
    parser.add_argument("--prompt", default="Do I need a coat in Oslo today?")
    given = parser.parse_args()
    handle = await AgentWorkflow.start(run_id=given.run_id, prompt=given.prompt)
    outputs = await handle.result()
    print(outputs)
    print(f"\n{await handle.usage()}\nholdfast show {handle.run_id}")


if __name__ == "__main__":
    asyncio.run(main())
