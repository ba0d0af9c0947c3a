"""A research agent: it searches, reads what it finds, and returns a report of a declared type.

    python examples/research_agent.py --pace 2
    python examples/research_agent.py "How do bees know how far they have flown?" --model openai:gpt-4o-mini

Kill it midway (Ctrl-C, or kill -9 from another terminal) and run the same command again: it continues after the last
recorded call, and no answer is paid for twice. `holdfast runs` and `holdfast show RUN_ID` show what it did.
"""

from __future__ import annotations

from pathlib import Path

from offline import make_parser, model_for
from pydantic import BaseModel
from scripts import BEES

from holdfast import Agent, ModelRetry, tool

CORPUS = Path(__file__).parent / "corpus"


class Finding(BaseModel):
    claim: str
    source: str
    """The page that states it."""


class Report(BaseModel):
    title: str
    summary: str
    findings: list[Finding]


@tool(effect="read")
async def web_search(query: str) -> list[str]:
    """Search the web: returns the names of pages, best first.

    Args:
        query: a few words that the page should contain.
    """
    print(f"  searches for {query!r}", flush=True)
    words = {word.strip("?.,") for word in query.lower().split() if len(word) > 3}
    found = {page.stem: sum(word in page.read_text().lower() for word in words) for page in CORPUS.glob("*.md")}
    return sorted((page for page in found if found[page]), key=lambda page: (-found[page], page))[:3]


@tool(effect="read")
async def read_page(name: str) -> str:
    """Read a page that a search has found."""
    print(f"  reads {name}", flush=True)
    page = CORPUS / f"{Path(name).name}.md"
    if not page.exists():
        raise ModelRetry(f"There is no page {name!r}: read one that a search has found.")
    return page.read_text()


researcher = Agent(
    model_for(BEES),
    name="researcher",
    tools=[web_search, read_page],
    instructions=(
        "You are a research assistant. Search, read the pages that matter, and hand in a report. Claim nothing that is "
        "not on a page that you have read, and name the page."
    ),
    output_type=Report,
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("question", nargs="?", default="How do bees find their way?")
    question = parser.parse_args().question
    print(question)
    result = researcher.run_sync(question)
    report = result.output
    print(f"\n{report.title}\n\n{report.summary}\n")
    for finding in report.findings:
        print(f"- {finding.claim} [{finding.source}]")
    print(f"\n{result.usage}\nholdfast show {result.run_id}")


if __name__ == "__main__":
    main()
