"""The documentation site: it is built without a warning, needs no other host, and leaves nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import holdfast
import holdfast.testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "images").glob("*.svg"))
VOCABULARY = """
workflow agent run step journal record tool skill signal approval store engine worker queue lease effect fence attempt
replay parked takeover claim child compensation schedule memory event server address delivery listener client runtime
"""


class Page(HTMLParser):
    """The anchors of a page, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.fetched += [given.get(name) or "" for name in ("src", "srcset", "data", "poster")]
        if tag == "link":
            self.fetched.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning as an error: pages that nothing leads to, dead links, anchors, names.

    (Not with ``--quiet``: what is not logged is not counted as a warning.)
    """
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_a_page_for_every_file_of_the_docs_and_the_readme_is_its_front(site: Path):
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(DOCS).with_suffix("")
        assert (site / (place.parent if place.name == "index" else place) / "index.html").exists(), page
    front = (ROOT / "README.md").read_text().split("\n\n")[1].split("\n")[0]
    assert front in (site / "index.html").read_text()


def test_the_site_loads_nothing_from_other_hosts(site: Path):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        fetched = [url for url in Page(page).fetched if url]
        assert fetched or (ROOT / page.relative_to(site)).exists()  # the source of an example
        assert not [url for url in fetched if re.search(r"^(\w+:)?//", url)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""@import|url\(["']?(https?:)?//""", sheet.read_text()), sheet


def test_every_public_name_has_a_place_in_the_reference(site: Path):
    anchors = {anchor for page in (site / "reference").rglob("*.html") for anchor in Page(page).anchors}
    for module in (holdfast, holdfast.testing):
        for name in module.__all__:
            places = {f"{module.__name__}.{name}", f"{getattr(module, name).__module__}.{name}"}
            assert places & anchors, f"{module.__name__}.{name} is on no page of docs/reference"


def test_the_glossary_has_the_words_that_stand_for_one_thing():
    explained = re.findall(r"^- \*\*(.+?)\*\*: ", (DOCS / "glossary.md").read_text(), re.M)
    assert len(explained) == len(set(explained))
    assert set(VOCABULARY.split()) <= set(explained)
    (rule,) = re.findall(r"\*\*One word for one thing\.\*\* ([^:]+):", (ROOT / "CONTRIBUTING.md").read_text())
    assert {word.lower() for word in rule.split(", ")} <= set(explained)


def test_every_point_at_which_a_run_may_be_killed_is_drawn_described_and_proven():
    page = (DOCS / "crashes.md").read_text()
    drawn = re.findall(r'class="on-kill mid"[^>]*>(\d)<', (DOCS / "images/kill-points.svg").read_text())
    described = re.findall(r"^\| \*\*(\d)\*\* ", page, re.M)
    proven = re.findall(r"^\| (\d(?:, \d)*).*?\| `test_", page, re.M)
    assert drawn == described == [str(point) for point in range(10)]
    assert {point for points in proven for point in points.split(", ")} == set(described)


def test_the_tests_that_the_page_on_crashes_names_are_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (DOCS / "crashes.md").read_text())
    assert len(named) >= 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests/processes" / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small_readable_in_the_dark_and_needs_nothing_else(picture: Path):
    text = picture.read_text()
    assert len(text) < 12_000
    drawing = ElementTree.fromstring(text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|<image|<script", text)
    if picture.stem != "favicon":
        assert drawing.find("{*}title") is not None
        assert "prefers-color-scheme: dark" in text
