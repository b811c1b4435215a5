"""Figures 2 and 4: consistency of clients, and learning rates."""

from dataclasses import replace

from spherefed.experiment import Experiment
from spherefed.nn.encoders import ResNet18
from spherefed.reproduce.item import Cell, Claim, Item, Key, Metric
from spherefed.reproduce.methods import BEFORE_FFC, OURS, base_of, ours_of, unchanged
from spherefed.reproduce.scales import HALF, IID, TENTH, Scale


def fig2(scale: Scale) -> Item:
    """Consistency of client classifiers (Eq. 2, 3) over rounds of FedAvg."""
    cells, columns = [], (IID, HALF, TENTH)
    for column in columns:
        experiment = base_of(scale, "fedavg", column, _as_in_figure_2 if scale.to_the_letter else unchanged)
        cells.append(Cell(row="cosine (Eq. 2)", column=column, experiment=experiment, metric="cosine"))
        cells.append(
            Cell(row="norm difference (Eq. 3)", column=column, experiment=experiment, metric="norm_difference")
        )
    cosine, norm = "cosine (Eq. 2)", "norm difference (Eq. 3)"
    claims = []
    for near, far in ((IID, HALF), (HALF, TENTH)):
        claims.append(
            Claim(
                text=f"cosine: directions agree more at {near} than at {far}",
                plus=((cosine, near),),
                minus=((cosine, far),),
            )
        )
        claims.append(
            Claim(
                text=f"norm difference: norms differ more at {far} than at {near}",
                plus=((norm, far),),
                minus=((norm, near),),
            )
        )
    return Item(
        name="fig2",
        title="Figure 2: consistency of client classifiers",
        claim="The more client data differ, the less do the classifiers of clients agree in direction and norm.",
        cells=tuple(cells),
        claims=tuple(claims),
        unit="",
        deviations=("Values after the last round are judged; the figure shows all rounds.",),
    )


FACTORS = (0.25, 1.0, 4.0)


def fig4(scale: Scale) -> Item:
    """Three learning rates for FedNova with and without SphereFed: the tuned one, a quarter of it, four times it."""
    cells: list[Cell] = []
    keys: dict[str, list[Key]] = {}
    base, ours = base_of(scale, "fednova", TENTH), ours_of(scale, "fednova", TENTH)
    rows: dict[str, tuple[Experiment | None, Metric]] = {
        "FedNova": (base, "trained"),
        f"FedNova {BEFORE_FFC}": (ours, "trained"),
        f"FedNova {OURS}": (ours, "calibrated"),
    }
    for name, (start, metric) in rows.items():
        for factor in FACTORS:
            experiment = None if start is None else start.with_lr(start.local_training.lr * factor)
            cell = Cell(row=name, column=f"lr × {factor:g}", experiment=experiment, metric=metric)
            cells.append(cell)
            keys.setdefault(name, []).append(cell.key)
    return Item(
        name="fig4",
        title="Figure 4: robustness to the learning rate (α = 0.1)",
        claim="With SphereFed, FedNova's accuracy depends less on the learning rate.",
        cells=tuple(cells),
        claims=tuple(
            Claim(
                text=f"the spread over three learning rates is smaller with SphereFed{when}",
                plus=tuple(keys["FedNova"]),
                minus=tuple(keys[f"FedNova {row}"]),
                measure="spread",
            )
            for row, when in ((OURS, ""), (BEFORE_FFC, ", before FFC"))
        ),
        deviations=("The paper does not state its three rates; here they are ¼, 1 and 4 times the tuned one.",),
    )


def _as_in_figure_2(experiment: Experiment) -> Experiment:
    """ResNet18 and 50 rounds."""
    return replace(experiment, rounds=50, model=replace(experiment.model, encoder=ResNet18()))
