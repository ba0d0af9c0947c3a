"""Pages of the documentation site that do not lie in ``docs/``: the README is its front page, and so on.

A code host shows the same files where they are. So links between them are written for the repository, and are put
right here for the site. MkDocs calls these functions (``hooks:`` in ``mkdocs.yml``).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Where in the site these files of the repository are."""
LINK = re.compile(r'(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|[#/])([^)#"\s]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of ``docs/``."""
    for path in sorted([*(ROOT / name for name in PAGES), *(ROOT / "examples").rglob("*")]):
        place = path.relative_to(ROOT).as_posix()
        if path.is_file() and not re.search(r"(^|/)(\.|__pycache__/)", place):
            files.append(File.generated(config, _in_site(place), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their targets are in the site, and fences say only which language they are in."""
    here = posixpath.dirname(page.file.src_uri) or "."
    folder = posixpath.dirname(_in_repository(page.file.src_uri))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] + posixpath.relpath(_in_site(target), here)

    # ```python test``` tells the tests how to run a snippet.
    return LINK.sub(moved, markdown.replace("```python test\n", "```python\n"))


def _in_site(place: str) -> str:
    """Where a file of the repository is in the site. Texts that examples read are no pages."""
    if place.startswith("examples/") and place.endswith(".md") and not place.endswith("/README.md"):
        return f"{place}.txt"
    return PAGES.get(place, place.removeprefix("docs/"))


def _in_repository(uri: str) -> str:
    """Where a page of the site is in the repository."""
    places = {_in_site(place): place for place in PAGES}
    return places.get(uri) or (uri if uri.startswith("examples/") else f"docs/{uri}")
