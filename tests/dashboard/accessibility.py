"""Whether people with a screen reader, a keyboard or weak eyes can use a page, as far as a program can tell (axe)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

_AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
_RUN = """async () => {
  const result = await axe.run(document, { resultTypes: ["violations"] });
  const places = (one) => one.nodes.slice(0, 4).map((node) => node.html.slice(0, 160)).join(" | ");
  return result.violations.map((one) => `${one.id}: ${one.help} (${places(one)})`);
}"""


async def violations(page: Any) -> list[str]:
    """What is wrong with the page as it is now. By the protocol: the page's own policy would run no foreign script."""
    session = await page.context.new_cdp_session(page)
    await session.send("Runtime.evaluate", {"expression": _AXE})
    return await page.evaluate(_RUN)
