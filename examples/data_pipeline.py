"""A data pipeline of 50 steps: it reads 45 untidy orders, tidies them one by one, calls a model, and publishes.

    python examples/data_pipeline.py --die-at 47    # the process kills itself with SIGKILL in the middle of step 47
    python examples/data_pipeline.py                # the next one continues there: 4 steps, not 50

Each step writes a line to `steps.log`, outside the database: after both commands, it has 49 steps once, and the one
that was in flight twice. A third time, the recorded result is printed and nothing runs.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from offline import make_parser, model_for
from pydantic import BaseModel
from scripts import ORDERS, make_untidy_orders

from holdfast import current_step, llm_step, step, workflow

LOG = Path("steps.log")
die_at = 0
executed_steps: list[int] = []
"""The steps that ran in this process."""


def start_step(number: int) -> None:
    """Every step calls this first: it writes a line to the log, and dies here if `--die-at` says so."""
    with LOG.open("a") as log:
        log.write(f"{number} {current_step().name} {os.getpid()}\n")
    executed_steps.append(number)
    print(f"step {number:>2} of 50: {current_step().name}\n", end="", flush=True)  # one write: steps run in threads
    if number == die_at:
        print(f"SIGKILL for process {os.getpid()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


class Order(BaseModel):
    number: int
    city: str
    cents: int


class Remarks(BaseModel):
    headline: str
    best_city: str


@step(effect="read")
def extract() -> list[str]:
    """Step 1: the orders as they come."""
    start_step(1)
    return make_untidy_orders(45)


@step
def tidy(number: int, line: str) -> Order:
    """Steps 2 to 46: one order each."""
    start_step(1 + number)
    order, city, amount = (part.strip() for part in line.split("|"))
    return Order(number=int(order.lstrip("#")), city=city.title(), cents=round(float(amount.strip("€ ")) * 100))


@llm_step(model=model_for(ORDERS), output_type=Remarks, instructions="You write for a manager who has ten seconds.")
async def remark(totals: dict[str, int]) -> str:
    """Step 47: it returns the prompt; the recorded output is the model's answer, of the ``output_type``."""
    start_step(47)
    lines = "\n".join(f"{city}: {cents / 100:.2f} EUR" for city, cents in totals.items())
    return f"Sales by city:\n{lines}\n\nWrite a headline, and name the best city."


@step
def check(remarks: Remarks, totals: dict[str, int]) -> Remarks:
    """Step 48: a model's word is checked."""
    start_step(48)
    best = max(totals, key=totals.__getitem__)
    return remarks if remarks.best_city == best else remarks.model_copy(update={"best_city": best})


@step
def write(remarks: Remarks, totals: dict[str, int]) -> str:
    """Step 49: the report, all or nothing."""
    start_step(49)
    lines = [f"# {remarks.headline}", "", *(f"- {city}: {cents / 100:.2f} EUR" for city, cents in totals.items())]
    draft = Path("report.md.draft")
    draft.write_text("\n".join(lines) + "\n")
    os.replace(draft, "report.md")
    return "report.md"


@step
def publish(report: str) -> str:
    """Step 50: an email. If the process dies here, the step runs again with the same key, so that a mail service that
    checks the key sends only one.
    """
    start_step(50)
    return f"sent {report} (key {current_step().idempotency_key[:8]})"


@workflow(id="pipeline-{day}")
async def pipeline(day: str) -> str:
    orders = [await tidy(number, line) for number, line in enumerate(await extract(), 1)]
    totals: dict[str, int] = {}
    for order in orders:
        totals[order.city] = totals.get(order.city, 0) + order.cents
    remarks = await check(await remark(totals), totals)
    sent = await publish(await write(remarks, totals))
    return f"{sent}: {remarks.headline} ({remarks.best_city} is best)"


def main() -> None:
    global die_at
    parser = make_parser(__doc__)
    parser.add_argument("--die-at", type=int, default=0, metavar="N", help="SIGKILL in the middle of step N")
    parser.add_argument("--day", default="monday", help="another day is another run")
    given = parser.parse_args()
    die_at = given.die_at
    result = pipeline.run_sync(day=given.day)
    print(f"\n{result}\n{len(executed_steps)} of 50 steps ran in this process")


if __name__ == "__main__":
    main()
