"""Tables for the README, from JSON alone: the FedAvg rows of Table 2 at laptop scale, and more rounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spherefed.reproduce.chart import long_columns
from spherefed.reproduce.methods import BABU, BEFORE_FFC, CCVR, CCVR_TUNED, CENTRALISED, FFC, LOCAL_ONLY, OURS
from spherefed.reproduce.page import mean_text, signed_text, table
from spherefed.runs.directory import read_json

SOURCE, LONGER = "laptop/table2.json", "laptop/rounds.json"
ROWS = ("", CCVR, CCVR_TUNED, BABU, FFC, BEFORE_FFC, OURS)
Plain = Mapping[str, Any]


def write_headline(results: Path) -> Path | None:
    """`headline.md` beside the scales' folders; None if Table 2 has no numbers yet."""
    if not (results / SOURCE).exists():
        return None
    found = read_json(results / SOURCE)
    if not headline_columns(found):
        return None
    path = results / "headline.md"
    longer = read_json(results / LONGER) if (results / LONGER).exists() else None
    parts = [headline_page(found), *([] if longer is None else rounds_table(longer))]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def rounds_table(found: Plain) -> list[str]:
    """Methods × degrees of skew with the larger number of rounds, as far as they were run; empty if not."""
    columns = long_columns(found)
    if not columns:
        return []
    cells = {(cell["row"], cell["column"]): cell for cell in found["cells"] if cell["column"] in columns}
    rows = list(dict.fromkeys(row for row, _ in cells))
    lines = [[row, *(mean_text(cells[row, column]["ours"]) for column in columns)] for row in rows]
    lines.append(
        ["SphereFed − FedAvg", *(signed_text(cells[f"FedAvg {OURS}", column]["difference"]) for column in columns)]
    )
    return [f"{found['title']}:\n", table(["test accuracy, %", *columns], lines) + "\n"]


def headline_columns(found: Plain) -> dict[str, list[Plain]]:
    """Column → the FedAvg rows in the order of `ROWS`, then the references, as far as they have all seeds."""
    names = [f"FedAvg {row}".strip() for row in ROWS] + [LOCAL_ONLY, CENTRALISED]
    columns: dict[str, list[Plain]] = {}
    for name in names:
        for cell in found["cells"]:
            if cell["row"] == name and cell["ours"] is not None:
                columns.setdefault(cell["column"], []).append(cell)
    seeds = {column: _seeds_of_ours(cells) for column, cells in columns.items()}
    return {
        column: [cell for cell in cells if cell["ours"]["seeds"] == seeds[column]]
        for column, cells in columns.items()
        if seeds[column]
    }


def _seeds_of_ours(cells: list[Plain]) -> int:
    """Number of seeds of SphereFed in a column; 0 if it was not run."""
    return max((cell["ours"]["seeds"] for cell in cells if cell["row"] == f"FedAvg {OURS}"), default=0)


def headline_page(found: Plain) -> str:
    """A Markdown fragment without a heading."""
    parts = [f"{found['protocol']}. Learning rates tuned on a validation split: {', '.join(found['tuning'])}."]
    for column, cells in headline_columns(found).items():
        seeds = max(cell["ours"]["seeds"] for cell in cells)
        rows = [
            [
                cell["row"],
                mean_text(cell["ours"]),
                "–" if cell["difference"] is None else signed_text(cell["difference"]),
            ]
            for cell in cells
        ]
        what = "one seed" if seeds == 1 else f"{seeds} seeds, mean ± 95 % interval"
        parts.append(f"{column}, {what}:")
        parts.append(table(["method", "test accuracy, %", "difference to FedAvg"], rows))
    return "\n\n".join(parts) + "\n"
