"""Holdfast makes crash recovery the default for Python agents.

An agent run is a durable workflow: every step is recorded before the run continues, and another process takes over
where a dead one stopped. Public names are loaded when they are first used, so that ``import holdfast`` is cheap.
"""

from __future__ import annotations

from warnings import warn

from holdfast.installation import REINSTALL_HINT, describe_clash, find_foreign_distribution
from holdfast.installation import __version__ as __version__
from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]

if _foreign := find_foreign_distribution():
    warn(f"{describe_clash(_foreign)} {REINSTALL_HINT}", RuntimeWarning, stacklevel=2)
