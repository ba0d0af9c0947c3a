"""Memory and knowledge: what was found is found again, and what was saved is not saved twice."""

from __future__ import annotations

from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.knowledge.knowledge import Knowledge
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource
from crewai.knowledge.storage.base_knowledge_storage import BaseKnowledgeStorage
from crewai.memory.unified_memory import Memory

VALUES = {
    "ExtractedMemories": {"memories": ["The customer likes Oslo."]},
    "MemoryAnalysis": {"suggested_scope": "/travel", "importance": 0.9},
    "ConsolidationPlan": {"actions": [], "insert_new": True, "insert_reason": ""},
}


def test_memory_is_recalled_and_saved_once(provider, replay, tmp_path):
    analyses: list[str] = []
    embedded: list[str] = []

    class Analyst(BaseLLM):
        def call(self, messages: Any, *args: Any, response_model: Any = None, **kwargs: Any) -> Any:
            analyses.append(response_model.__name__)
            return response_model(**VALUES.get(response_model.__name__, {}))

        def supports_function_calling(self) -> bool:
            return True

    def embed(texts: list[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[1.0, 0.0, 0.5] for _ in texts]

    memory = Memory(llm=Analyst(model="analyst"), embedder=embed, storage=str(tmp_path / "memories"))
    memory.remember("The customer hates flying.", scope="/travel", categories=["x"], importance=0.9)
    embedded.clear()
    analyses.clear()
    counts: list[int] = []
    provider.scripts = {"scout": [{"text": "Take the train to Oslo."}]}

    def kickoff() -> str:
        scout = Agent(role="scout", goal="script:scout Find", backstory="", llm="gpt-4o")
        find = Task(description="Find a trip.", expected_output="A trip.", agent=scout)
        result = Crew(agents=[scout], tasks=[find], memory=memory).kickoff().raw
        counts.extend([len(embedded), len(analyses), len(memory.list_records())])
        return result

    found = replay(kickoff)
    assert found.first == found.second == "Take the train to Oslo."
    assert "The customer hates flying." in str(provider.bodies[-1])
    assert counts[0] > 0
    assert counts[1] > 0
    assert counts[2] == 2, "the result of the task is in memory, once"
    assert counts[:3] == counts[3:], "the second execution embeds, analyzes, and saves nothing"
    assert {"memory_recall", "memory_save"} <= set(found.steps)


class Library(BaseKnowledgeStorage):
    """A storage that finds something else each time."""

    searches: int = 0

    def search(self, query: list[str], *args: Any, **kwargs: Any) -> Any:
        self.searches += 1
        return [{"id": "1", "content": f"Fact {self.searches} about Oslo.", "metadata": {}, "score": 0.9}]

    async def asearch(self, query: list[str], *args: Any, **kwargs: Any) -> Any:
        return self.search(query)

    def save(self, documents: list[str]) -> None: ...

    async def asave(self, documents: list[str]) -> None: ...

    def reset(self) -> None: ...

    async def areset(self) -> None: ...


def test_knowledge_is_searched_once(provider, replay):
    storage = Library()
    provider.scripts = {"scout": [{"text": "Oslo."}], "gpt-4o": [{"text": "facts about Oslo"}]}

    def kickoff() -> str:
        source = StringKnowledgeSource(content="Oslo is a city.")
        knowledge = Knowledge("facts", [source], storage=storage)
        scout = Agent(role="scout", goal="script:scout Find", backstory="", llm="gpt-4o", knowledge=knowledge)
        find = Task(description="Find a trip.", expected_output="A trip.", agent=scout)
        return Crew(agents=[scout], tasks=[find]).kickoff().raw

    found = replay(kickoff)
    assert found.second == "Oslo."
    assert storage.searches == 1
    assert "Fact 1 about Oslo." in str(provider.bodies[-1])
    assert "knowledge_search" in found.steps
