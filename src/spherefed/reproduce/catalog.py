"""All items by name, in the order of the paper."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spherefed.errors import ConfigError
from spherefed.reproduce import ablations, accuracy_tables, figures, formulas, regimes
from spherefed.reproduce.item import Item
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
    "table8": figures.table8,
    "table9": ablations.table9,
    "table10": ablations.table10,
    "fig2": figures.fig2,
    "fig3": figures.fig3,
    "fig4": figures.fig4,
    "fig5": formulas.fig5,
    "appc1": ablations.appc1,
    "appc2": ablations.appc2,
    "regimes": regimes.regimes,
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


def with_cells(item: Item, rows: str | None, columns: str | None) -> Item:
    """The item with only the cells whose row begins with `rows` and whose column is one of `columns`."""
    wanted = None if columns is None else [column.strip() for column in columns.split(",")]
    cells = [cell for cell in item.cells if rows is None or cell.row == rows or cell.row.startswith(f"{rows} ")]
    return replace(item, cells=tuple(cell for cell in cells if wanted is None or cell.column in wanted))


def find_items(names: str, scale: Scale) -> list[Item]:
    """Items by name, separated by commas, or `all`."""
    wanted = list(ITEMS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in ITEMS:
            raise ConfigError(f"unknown item {name!r}; {suggest(name, [*ITEMS, 'all'])}")
    return [ITEMS[name](scale) for name in wanted]
