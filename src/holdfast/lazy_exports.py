"""Loads the public names of a package when they are first used, so that importing the package is cheap.

The names are listed in the package's stub, ``__init__.pyi``, which editors and type checkers read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
_NAME = re.compile(r"(\w+) as \w+")


def lazy_exports(
    package: str, init_file: str, namespace: dict[str, Any]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__``, and ``__dir__`` of a package; ``namespace`` is its ``globals()``."""
    stub = Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: home for home, *names in _IMPORT.findall(stub) for name in _NAME.findall("".join(names))}
    public = sorted(homes)

    def __getattr__(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*namespace, *public})

    return public, __getattr__, __dir__
