"""Parses a tool's docstring into the description of the tool and those of its parameters.

``griffe``, a dependency of the model library, parses docstrings in the styles of Google, numpy, and Sphinx. It is
imported only when needed: the import takes a while, and many docstrings are one sentence.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from griffe import DocstringSection

_Style = Literal["google", "numpy", "sphinx"]

_SECTION_NAMES = (
    r"(?:other |keyword )?(?:args|arguments|params|parameters)|returns?|yields|receives|raises|exceptions|warns|"
    r"warnings?|notes?|examples?|attributes|see also|references"
)
_STYLE_PATTERNS: tuple[tuple[_Style, re.Pattern[str]], ...] = (
    (
        "sphinx",
        re.compile(r"^[ \t]*:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b[^:\n]*:", re.M),
    ),
    ("numpy", re.compile(rf"^[ \t]*(?:{_SECTION_NAMES})[ \t]*\n[ \t]*-{{3,}}[ \t]*$", re.M | re.I)),
    ("google", re.compile(rf"^[ \t]*(?:{_SECTION_NAMES}):[ \t]*\n[ \t]+\S", re.M | re.I)),
)


class ParsedDocstring(NamedTuple):
    """The parts of a docstring."""

    text: str
    """Everything that is not about single parameters or exceptions."""
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parse a docstring. Without a known style, all of it is text."""
    cleaned = cleandoc(docstring or "").strip()
    style: _Style | None = next((name for name, pattern in _STYLE_PATTERNS if pattern.search(cleaned)), None)
    if style is None:
        return ParsedDocstring(cleaned, {})
    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in _parse_sections(docstring or "", style):
        if section.kind.value in ("parameters", "other parameters"):
            for parameter in section.value:
                parameters.setdefault(parameter.name.lstrip("*"), " ".join(parameter.description.split()))
        else:
            texts.append(_format_section(section))
    return ParsedDocstring("\n\n".join(filter(None, texts)), {name: text for name, text in parameters.items() if text})


def _parse_sections(docstring: str, style: _Style) -> list[DocstringSection]:
    from griffe import Docstring, GoogleOptions, NumpyOptions, SphinxOptions

    options: Any = {
        "google": GoogleOptions(returns_named_value=False, returns_multiple_items=False, warnings=False),
        "numpy": NumpyOptions(warnings=False),
        "sphinx": SphinxOptions(warnings=False),
    }[style]
    return Docstring(docstring, lineno=1, parser=style, parser_options=options).parse()


def _format_section(section: DocstringSection) -> str:
    """A section as text for the model. Exceptions are left out: the model learns of one when it happens."""
    value: Any = section.value
    match section.kind.value:
        case "text":
            return value.strip()
        case "admonition":
            return f"{section.title or value.kind.capitalize()}: {value.contents.strip()}"
        case "returns":
            return "\n".join(f"Returns: {item.description.strip()}" for item in value if item.description)
        case "examples":
            return "Examples:\n" + "\n\n".join(text.strip() for _, text in value)
        case _:
            return ""
