"""Findings in a file, and the comment that silences them."""

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
    """Workflow code that breaks a rule."""

    kind: str
    code_text: str
    node: ast.stmt | ast.expr | ast.ExceptHandler
    remedy: str = ""
    """Replaces that of the kind, like the next one."""
    reason: str = ""


@dataclass(frozen=True, order=True)
class Finding:
    """A violation with its location."""

    file: str
    line: int
    column: int
    kind: str
    code_text: str
    reason: str
    remedy: str
    workflow: str
    """The workflow that the code belongs to."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.code_text}: {self.reason} → {self.remedy}"


class FindingBuilder:
    """Locates the violations of one file, and leaves out silenced ones."""

    def __init__(self, display_path: str, module: SourceModule) -> None:
        self._display_path = display_path
        self._module = module
        self._ignored_kinds = _find_ignored_lines(module.source)

    def build(self, violation: Violation, workflow: str) -> Finding | None:
        """The finding of a violation; ``None`` if a comment silences it."""
        node = violation.node
        # Any line of an expression may have the comment, but only the first line of a block.
        last = (node.end_lineno or node.lineno) if isinstance(node, ast.expr) else node.lineno
        for line in range(node.lineno, last + 1):
            kinds = self._ignored_kinds.get(line)
            if kinds is not None and (not kinds or violation.kind in kinds):
                return None
        # Python counts bytes from 0; people count characters from 1.
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
    kinds_by_line: dict[int, frozenset[str]] = {}
    if "holdfast:" not in source:
        return kinds_by_line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (match := _IGNORE_PATTERN.search(token.string)) is not None:
            kinds = (kind.strip() for kind in (match.group(1) or "").split(","))
            kinds_by_line[token.start[0]] = frozenset(filter(None, kinds))
    return kinds_by_line
