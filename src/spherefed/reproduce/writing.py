"""Write an item's JSON, page and figure, and the page of all claims."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from spherefed.errors import RunError
from spherefed.reproduce.chart import item_figure
from spherefed.reproduce.compact_json import write_compact_json
from spherefed.reproduce.page import claims_page, index_page, item_page
from spherefed.runs.directory import read_json, read_object

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


def write_claims(results: Path, path: Path, order: Collection[str]) -> None:
    """The page of all claims and that of all results, from the JSON of all items; `order` has the names of items."""
    items = _all_items(results, order)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(claims_page(items), encoding="utf-8")
    (results / "README.md").write_text(index_page(items), encoding="utf-8")


def _all_items(results: Path, order: Collection[str]) -> list[Any]:
    items: list[Any] = []
    for scale in ORDER:
        for name in order:
            file = results / scale / f"{name}.json"
            if file.exists():
                found = _read_item(file)
                # What is computed by formula is the same at every scale.
                if "computed" not in found or all(each["item"] != name for each in items):
                    items.append(found)
    return items


_PARTS = {"item": str, "title": str, "scale": str}
_COMPUTED_PARTS = {"computed": dict}
_MEASURED_PARTS = {"protocol": str, "tuning": dict, "seeds": list, "cells": list, "claims": list}
_CELL_PARTS = {"row", "column", "digest", "ours", "difference", "failed"}
_CLAIM_PARTS = {"text", "verdict", "paper", "ours", "diverged"}


def _read_item(file: Path) -> dict[str, Any]:
    """The JSON of an item; RunError if it has not the parts that overviews need."""
    again = f"spherefed reproduce {file.stem} --scale {file.parent.name} --no-training --out {file.parent.parent}"
    try:
        found = read_object(file)
    except RunError as damaged:
        raise RunError(f"{damaged}; write it again: {again}") from damaged
    parts = _PARTS | (_COMPUTED_PARTS if "computed" in found else _MEASURED_PARTS)
    wrong = [name for name, type_ in parts.items() if not isinstance(found.get(name), type_)]
    if not wrong and "computed" in found:
        wrong = _lists_without_parts(found["computed"], {"verdicts": {"text", "verdict"}})
    elif not wrong:
        wrong = _lists_without_parts(found, {"cells": _CELL_PARTS, "claims": _CLAIM_PARTS})
    if wrong:
        raise RunError(f"{file} is damaged: wrong or missing parts ({', '.join(wrong)}); write it again: {again}")
    return found


def _lists_without_parts(found: Mapping[str, Any], parts: Mapping[str, set[str]]) -> list[str]:
    """The names of lists that are missing or have an element without these parts."""
    return [
        name
        for name, needed in parts.items()
        if not isinstance(found.get(name), list)
        or not all(isinstance(each, dict) and needed <= set(each) for each in found[name])
    ]
