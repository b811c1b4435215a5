"""Write an item's JSON, page and figure, and the page of all claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spherefed.reproduce.chart import item_figure
from spherefed.reproduce.compact_json import write_compact_json
from spherefed.reproduce.page import claims_page, index_page, item_page
from spherefed.runs.directory import read_json

EXPERIMENTS = "experiments"
"""The folder of records below that of a scale."""
ORDER = ("paper", "desktop", "laptop", "tiny")


def write_item(found: Mapping[str, Any], folder: Path) -> Path:
    """The JSON of an item and what is made of it; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_compact_json(folder / f"{found['item']}.json", found)
    return write_page(folder / f"{found['item']}.json")


def write_page(file: Path) -> Path:
    """Page and figure of an item from its JSON file."""
    found = read_json(file)
    for format_ in ("svg", "png"):
        if (drawn := item_figure(found, format_)) is not None:
            file.with_suffix(f".{format_}").write_bytes(drawn)
    page = file.with_suffix(".md")
    page.write_text(item_page(found), encoding="utf-8")
    return page


def write_claims(results: Path, path: Path, order: Mapping[str, Any]) -> None:
    """The page of all claims and that of all results, from the JSON of all items; `order` has the items' names."""
    items = _all_items(results, order)
    path.write_text(claims_page(items), encoding="utf-8")
    (results / "README.md").write_text(index_page(items), encoding="utf-8")


def _all_items(results: Path, order: Mapping[str, Any]) -> list[Any]:
    items: list[Any] = []
    for scale in ORDER:
        for name in order:
            file = results / scale / f"{name}.json"
            if file.exists():
                found = read_json(file)
                # What is computed by formula is the same at every scale.
                if "computed" not in found or all(each["item"] != name for each in items):
                    items.append(found)
    return items
