"""Hooks of the documentation site: pages that code writes, the rest of the navigation, and equations as MathML.

MkDocs calls the functions whose names begin with `on_`. Pages are written from the package itself while the site is
built, so they cannot be out of date.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import notebooks
import site_reference

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {"CONTRIBUTING.md": "Contributing", "CHANGELOG.md": "Changelog", "SECURITY.md": "Security"}
"""Pages that stand beside docs/."""
WORKER = "iframe-worker-1.0.4.js"


def generated_pages() -> dict[str, str]:
    """Path below docs/ → Markdown."""
    pages = site_reference.pages()
    for name in PROJECT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](../", text)
        pages[f"project/{name.lower()}"] = text
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebooks.as_markdown(path)
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of docs/ into the navigation: decisions, results, and whatever no section names."""
    assert config.nav is not None
    folder = Path(config.docs_dir)
    named = set(re.findall(r"'([\w./-]+\.md)'", str(config.nav)))
    rest = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    rest = [page for page in rest if page not in named]
    sections = {section: entries for each in config.nav for section, entries in each.items()}
    explanation = sections["Explanation"]
    results = [page for page in rest if page.startswith("results/")]
    decisions = [page for page in rest if page.startswith("decisions/")]
    if results:
        explanation.append({"Results": results})
    explanation.append({"Decisions": [*decisions]})
    if others := [page for page in rest if page not in (*results, *decisions)]:
        explanation.extend(others)
    config.nav.append({"Project": [{title: f"project/{name.lower()}"} for name, title in PROJECT_PAGES.items()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that code writes."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the project beside docs/ lead to their page, or are shown as their path."""
    depth = page.file.src_uri.count("/")
    up = "../" * depth
    for name in PROJECT_PAGES:
        markdown = markdown.replace(f"]({up}../{name})", f"]({up}project/{name.lower()})")
    return re.sub(rf"\[([^\]]+)\]\({re.escape(up)}\.\./([^)]+)\)", _as_path, markdown)


def _as_path(found: re.Match[str]) -> str:
    text, path = found[1], found[2]
    return text if path in text else f"{text} (`{path}`)"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations become MathML, which browsers show without a script."""
    content = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: _math(m[1], "inline"), content, flags=re.S
    )
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', lambda m: _math(m[1], "block"), content, flags=re.S
    )


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The script that lets search work from files is part of the site, not fetched."""
    return _with_local_worker(output, "../" * page.file.dest_uri.count("/"))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of errors."""
    return _with_local_worker(output_content, "")


def _with_local_worker(output: str, up: str) -> str:
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/{WORKER}")


def _math(source: str, display: Any) -> str:
    return str(convert(html.unescape(source).strip(), display=display))
