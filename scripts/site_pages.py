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
SITE_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Where in the site these files of the repository are."""
LINK_PATTERN = re.compile(r'(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|[#/])([^)#"\s]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of ``docs/``."""
    for path in sorted(
        [*(ROOT / name for name in SITE_PAGES), *(ROOT / "examples").rglob("*"), *(ROOT / "deploy").iterdir()]
    ):
        place = path.relative_to(ROOT).as_posix()
        if path.is_file() and not re.search(r"(^|/)(\.|__pycache__/)", place):
            files.append(File.generated(config, _to_site_path(place), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their targets are in the site, and fences say only which language they are in."""
    here = posixpath.dirname(page.file.src_uri) or "."
    folder = posixpath.dirname(_to_repository_path(page.file.src_uri))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] + posixpath.relpath(_to_site_path(target), here)

    # ```python test``` tells the tests how to run a snippet.
    return LINK_PATTERN.sub(moved, markdown.replace("```python test\n", "```python\n"))


def _to_site_path(path: str) -> str:
    """Where a file of the repository is in the site. Texts that examples read are no pages."""
    if path.startswith("examples/") and path.endswith(".md") and not path.endswith("/README.md"):
        return f"{path}.txt"
    return SITE_PAGES.get(path, path.removeprefix("docs/"))


def _to_repository_path(uri: str) -> str:
    """Where a page of the site is in the repository."""
    places = {_to_site_path(place): place for place in SITE_PAGES}
    return places.get(uri) or (uri if uri.startswith("examples/") else f"docs/{uri}")
