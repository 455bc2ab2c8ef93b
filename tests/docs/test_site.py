"""The site: every page is found, no warning, every link leads somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from undrift.core.hyper import METHODS
from undrift.experiments.config import Experiment

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, file: Path):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Links between pages, and to scripts and pictures, that lead nowhere, or into a network at build time."""
    pages = {file: Page(file) for file in site.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme in ("http", "https", "data", "mailto"):
                continue
            found = target.exists() and (
                not parts.fragment or target not in pages or _has(pages[target], parts.fragment)
            )
            if not found:
                broken.append(f"{file.relative_to(site)}: {link}")
    return broken


def _has(page: Page, fragment: str) -> bool:
    return unquote(fragment) in page.anchors


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#not">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="there">')
    assert sorted(broken_links(tmp_path)) == ["a.html: b.html#not", "a.html: c.html"]


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """Cells are run by test_examples.py; without a kernel nothing says in which language they are."""
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    sphinx += ["-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"]
    site = tmp_path / "site"
    done = subprocess.run([*sphinx, "-d", tmp_path / "trees", "docs", site], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert broken_links(site) == []
    reference = site / "reference"
    assert {page.stem for page in (reference / "methods").glob("*.html")} == {*METHODS, "index"}
    keys = (reference / "experiment.html").read_text()
    assert all(f">{key}<" in keys or f"[{key}]" in keys for key in Experiment.model_fields)
    for page in site.rglob("*.html"):  # nothing is loaded from a network
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text()), page
