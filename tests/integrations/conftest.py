from __future__ import annotations

from runtime_fixtures import runtime, url

__all__ = ["runtime", "url"]
