"""The four agents."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from offline import model_for
from pydantic import BaseModel

from holdfast import Agent

from .script import ARCHAEOLOGIST, DOCUMENTER, FOREMAN, MODERNIZER
from .tools import read_file, write_file


class Problem(BaseModel):
    line: int
    description: str
    severity: Literal["style", "risk", "bug"]


class Survey(BaseModel):
    purpose: str
    problems: list[Problem]


archaeologist = Agent(
    model_for(ARCHAEOLOGIST),
    name="archaeologist",
    description="Reads a legacy Python file, and reports what it is for and what is wrong with it.",
    instructions="You read legacy Python. Report what the file is for, and each problem with its line. Change nothing.",
    tools=[read_file],
    deps_type=Path,
    output_type=Survey,
)

modernizer = Agent(
    model_for(MODERNIZER),
    name="modernizer",
    description="Rewrites a legacy Python file on disk as modern Python. Tell it the file and the problems.",
    instructions=(
        "You rewrite legacy Python for Python 3.11: type hints, pathlib, f-strings, dataclasses. What the program "
        "prints must stay the same, byte for byte. Read the file, write the new one over it, and say what you changed."
    ),
    tools=[read_file, write_file],
    deps_type=Path,
)

documenter = Agent(
    model_for(DOCUMENTER),
    name="documenter",
    description="Reads a Python file, and writes a page of Markdown about it. Tell it the names of both files.",
    instructions="You write short documentation: what a program is for, how it is called, what it prints.",
    tools=[read_file, write_file],
    deps_type=Path,
)

foreman = Agent(
    model_for(FOREMAN),
    name="foreman",
    instructions=(
        "You lead the renewal of a legacy Python file. Have it surveyed first; then have it rewritten, handing over "
        "the whole survey; then have it documented. Those who work for you see nothing of what the others said: tell "
        "each of them all that it needs. Answer with a summary of two sentences."
    ),
    subagents=[archaeologist, modernizer, documenter],
    deps_type=Path,
)
