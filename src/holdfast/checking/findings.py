"""What was found in a file, how it is told, and the comment that silences it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from holdfast.checking.modules import SourceModule
from holdfast.checking.rules import VIOLATION_KINDS

_IGNORE_PATTERN = re.compile(r"#\s*holdfast:\s*ignore(?:\[([\w\s,-]*)\])?(?![\w\[])")


@dataclass(frozen=True)
class Violation:
    """Something that is wrong in a piece of workflow code."""

    kind: str
    code_text: str
    node: ast.stmt | ast.expr | ast.ExceptHandler
    remedy: str = ""
    """Instead of the kind's own."""
    reason: str = ""
    """Instead of the kind's own."""


@dataclass(frozen=True, order=True)
class Finding:
    """A fault, with its place."""

    file: str
    line: int
    column: int
    kind: str
    code_text: str
    reason: str
    remedy: str
    workflow: str
    """The workflow in whose code it is."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.code_text}: {self.reason} → {self.remedy}"


class FindingBuilder:
    """Where the findings of one file belong, and which of them are silenced."""

    def __init__(self, display_path: str, module: SourceModule) -> None:
        self._display_path = display_path
        self._module = module
        self._ignored_kinds = _find_ignored_lines(module.source)

    def build(self, violation: Violation, workflow: str) -> Finding | None:
        """A fault as a finding; ``None`` if a comment silences it."""
        node = violation.node
        # Of an expression any line may carry the comment; of a block only the one that it begins with.
        last = (node.end_lineno or node.lineno) if isinstance(node, ast.expr) else node.lineno
        for line in range(node.lineno, last + 1):
            kinds = self._ignored_kinds.get(line)
            if kinds is not None and (not kinds or violation.kind in kinds):
                return None
        # Python counts bytes, people count characters; and they begin with 1.
        before = self._module.lines[node.lineno - 1].encode()[: node.col_offset]
        column = len(before.decode(errors="replace")) + 1
        kind = VIOLATION_KINDS[violation.kind]
        return Finding(
            self._display_path,
            node.lineno,
            column,
            violation.kind,
            violation.code_text,
            violation.reason or kind.reason,
            violation.remedy or kind.remedy,
            workflow,
        )


def _find_ignored_lines(source: str) -> dict[int, frozenset[str]]:
    """The lines with a ``# holdfast: ignore`` comment, and the kinds that it names; none means all."""
    found: dict[int, frozenset[str]] = {}
    if "holdfast:" not in source:
        return found
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (match := _IGNORE_PATTERN.search(token.string)) is not None:
            named = match.group(1)
            kinds = frozenset(one.strip() for one in (named or "").split(",") if one.strip())
            found[token.start[0]] = kinds
    return found
