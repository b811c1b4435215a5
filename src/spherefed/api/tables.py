"""Records as a pandas frame, and curves as a matplotlib figure."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

from spherefed.errors import ConfigError, install_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[int, float]
"""Round → accuracy."""


def data_frame(records: Sequence[Mapping[str, Any]]) -> Any:
    """The records as a pandas DataFrame, if pandas is installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigError(f"frame() needs pandas: {install_extra('pandas')}; records() needs nothing") from None
    return pandas.DataFrame.from_records(list(records))


def curve_figure(curves: Mapping[str, Sequence[Curve]], calibrated: Mapping[str, float | None]) -> "Figure":
    """Mean accuracy per round of each method, with the range over seeds; a dashed line is the calibrated model."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, seeds in curves.items():
        rounds = sorted(set.intersection(*(set(curve) for curve in seeds))) if seeds else []
        values = [[curve[index] for curve in seeds] for index in rounds]
        means = [statistics.fmean(each) for each in values]
        (line,) = axes.plot(rounds, means, marker="o" if len(rounds) < 2 else None, label=name)
        if len(seeds) > 1:
            low, high = [min(each) for each in values], [max(each) for each in values]
            axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        if (final := calibrated.get(name)) is not None:
            axes.axhline(final, color=line.get_color(), linestyle="--", linewidth=1, label=f"{name}, calibrated")
    axes.set(xlabel="round", ylabel="accuracy on the test set")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(frameon=False, fontsize="small")
    # Notebooks ask an object for its picture. IPython's own way needs pyplot, and misses the first figure of a session.
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: "Figure") -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
