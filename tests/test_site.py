"""The documentation site: it builds without a warning, every page is reachable, nothing is fetched, search works."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

import spherefed
from spherefed.cli import commands
from spherefed.cli.fields import experiment_fields

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(folder)]
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return folder


class Parsed(HTMLParser):
    """Links, fetched files and anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(found.get("href", ""))
        elif "src" in found:
            self.fetched.append(found["src"])


def pages(site: Path) -> Iterator[Path]:
    yield from (path for path in sorted(site.rglob("*.html")) if path.name != "404.html")


def test_every_page_is_reachable_from_the_first_one_and_no_link_is_dead(site: Path) -> None:
    parsed = {path: Parsed(path) for path in pages(site)}
    reached, waiting, dead = set[Path](), [site / "index.html"], []
    while waiting:
        path = waiting.pop()
        reached.add(path)
        for link in {*parsed[path].links}:
            address, anchor = urldefrag(link)
            if urlparse(link).scheme:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            if not target.is_file():
                dead.append(f"{path.relative_to(site)} → {link}")
            elif target in parsed:
                if target not in reached:
                    waiting.append(target)
                if anchor and unquote(anchor) not in parsed[target].anchors:
                    dead.append(f"{path.relative_to(site)} → {link}: no such place")
    assert dead == []
    assert set(parsed) - reached == set()
    assert len(parsed) > 40


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for path in [*pages(site), site / "404.html"]:
        fetched = [address for address in Parsed(path).fetched if urlparse(address).scheme not in ("", "data")]
        assert fetched == [], path
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\((?!['\"]?data:)['\"]?(?:https?:)?//", styles) == []


def test_search_works_from_files(site: Path) -> None:
    script = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("var __index = "))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "Cholesky" in entry["text"]}
    assert any(name.startswith("decisions/0002") for name in found)
    assert "iframe-worker" in (site / "index.html").read_text(encoding="utf-8")


def test_equations_are_shown_without_a_script(site: Path) -> None:
    method = (site / "explanation" / "method.html").read_text(encoding="utf-8")
    assert method.count('display="block"') >= 5
    assert "arithmatex" not in method


def test_the_reference_has_every_field_command_and_name(site: Path) -> None:
    fields, listed, names = (
        (site / "reference" / f"{page}.html").read_text(encoding="utf-8") for page in ("fields", "commands", "python")
    )
    assert [
        row.path for row in experiment_fields() if f"<code>{row.path.rpartition('.')[2]}</code>" not in fields
    ] == []
    assert [name for name in commands.commands if f">spherefed {name}" not in listed] == []
    assert "--checkpoint-every" in listed
    places = set(re.findall(r'id="spherefed[\w.]*?\.(\w+)"', names))
    assert set(spherefed.__all__) - places == {"__version__"}


def test_the_files_of_a_run_are_shown_with_their_content(site: Path) -> None:
    page = (site / "reference" / "run-files.html").read_text(encoding="utf-8")
    for name in ("rounds.jsonl", "result.json", "model.safetensors", "partition.safetensors"):
        assert f'id="{name.replace(".", "")}"' in page, name
    assert "bytes_up" in page
