"""The eigenvalues of V = Σ z zᵀ, with λ and the directions that the solve left out."""

from collections.abc import Sequence

import numpy as np

from spherefed.report.drawing import (
    WIDTH,
    Drawing,
    Spot,
    line_style,
    logarithmic,
    new_figure,
    place_legend,
    series,
    short,
    styled,
    thinned,
)
from spherefed.report.groups import Group
from spherefed.report.run_files import CALIBRATED, Run
from spherefed.report.tables import Cells

DECADES = 14
"""Orders of magnitude below the largest eigenvalue that are drawn: smaller ones are rounding errors."""


def spectra(groups: Sequence[Group]) -> list[tuple[int, Run]]:
    """The groups whose first finished run recorded the spectrum, by position."""
    found = []
    for position, group in enumerate(groups):
        run = next((run for run in group.runs if run.diagnostics.spectrum is not None), None)
        if run is not None:
            found.append((position, run))
    return found


@styled
def spectrum_figure(groups: Sequence[Group], found: Sequence[tuple[int, Run]]) -> Drawing:
    """Eigenvalues, largest first, on a logarithmic scale; a horizontal line is λ, crosses are dropped directions."""
    figure, axes = new_figure(WIDTH, 3.1)
    handles, spots = [], []
    for position, run in found:
        values = np.sort(np.asarray(run.diagnostics.spectrum, dtype=float))[::-1]
        values = np.maximum(values, values[0] * 10.0**-DECADES)
        calibration, label, hue = run.calibration or {}, groups[position].labels[CALIBRATED], series(position)
        xs = np.arange(1, len(values) + 1)
        handles += axes.plot(xs, values, line_style(position), color=hue, lw=1.8, label=short(label))
        dropped = int(calibration.get("dropped", 0))
        if dropped:
            axes.plot(xs[-dropped:], values[-dropped:], "x", color=hue, ms=4)
        ridge = float(calibration.get("ridge", 0.0))
        if ridge > 0:
            axes.axhline(ridge, color=hue, lw=1, ls=(0, (4, 3)))
            axes.annotate(
                f"λ = {ridge:.3g}", (1, ridge), xycoords=axes.get_yaxis_transform(), xytext=(-2, 3),
                textcoords="offset points", ha="right", fontsize=7.5, color=hue,
            )  # fmt: skip
        for i in thinned(len(values)):
            fate = ", dropped" if i >= len(values) - dropped else ""
            text = f"{label}: eigenvalue {i + 1} of {len(values)} is {values[i]:.3g}{fate}"
            spots.append(Spot(axes, float(xs[i]), float(values[i]), text))
    logarithmic(axes)
    axes.set_xlabel("eigenvalue, largest first")
    axes.set_ylabel("eigenvalue of V")
    axes.set_xlim(left=0)
    axes.grid(axis="y")
    place_legend(axes, handles)
    description = "; ".join(spot.text for spot in spots[:1])
    return Drawing("spectrum", "Spectrum of V", description, figure, spots)


def solve_table(groups: Sequence[Group]) -> Cells:
    """How every calibrated head was computed, by the first finished run of each group."""
    columns = (
        "method",
        "solved by",
        "λ",
        "rank",
        "dropped",
        "rcond",
        "examples",
        "zero vectors",
        "clients",
        "left out",
    )
    lines = []
    for group in groups:
        run = next((run for run in group.runs if run.calibration), None)
        if run is None or run.calibration is None:
            continue
        plain, summed = run.calibration, run.calibration.get("summed") or {}
        values = [plain.get(name) for name in ("path", "ridge", "rank", "dropped", "rcond")]
        values += [summed.get(name) for name in ("examples", "zero_vectors", "clients")]
        left_out = summed.get("left_out")
        values.append(None if left_out is None else len(left_out))
        lines.append((group.labels[CALIBRATED], *map(_value_text, values)))
    known = [i for i in range(len(columns)) if i == 0 or any(line[i] != "–" for line in lines)]
    if len(known) == 1:
        return Cells(columns=columns, lines=())
    shown = tuple(tuple(line[i] for i in known) for line in lines)
    return Cells(columns=tuple(columns[i] for i in known), lines=shown)


def _value_text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
