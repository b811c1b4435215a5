"""The rows that tables share: a base algorithm with each overlay, and the ablations of Table 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spherefed.calibration import Calibration, Ffc, FfcGcv
from spherefed.data.partition import Iid
from spherefed.experiment import Experiment
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.nn.heads import FixedRandom, Head, Learned, Orthonormal
from spherefed.recipes.methods import plain, with_babu, with_spherefed
from spherefed.reproduce.item import Cell, Claim, Key
from spherefed.reproduce.scales import Scale, algorithm, base_experiment

LABELS = {"fedavg": "FedAvg", "fedprox": "FedProx", "fednova": "FedNova", "fedopt": "FedOpt"}
CCVR, BABU, OURS = "+ CCVR", "+ BABU", "+ SphereFed"
CENTRALISED, LOCAL_ONLY = "centralised training", "local-only training"
CCVR_TUNED, FFC, GCV, SPHERE = "+ CCVR, tuned", "+ FFC", "+ FFC, λ by GCV", "+ SphereFed before FFC"

Change = Callable[[Experiment], Experiment]


def unchanged(experiment: Experiment) -> Experiment:
    return experiment


def base_of(scale: Scale, base: str, column: str, change: Change = unchanged) -> Experiment | None:
    """The base algorithm alone."""
    experiment = base_experiment(scale, base, column)
    return None if experiment is None else change(plain(experiment))


def babu_of(scale: Scale, base: str, column: str, change: Change = unchanged) -> Experiment | None:
    """The base algorithm with a fixed random head."""
    experiment = base_experiment(scale, base, column)
    return None if experiment is None else change(with_babu(experiment).with_lr(scale.rate(f"{base}+babu", column)))


def ours_of(scale: Scale, base: str, column: str, change: Change = unchanged) -> Experiment | None:
    """SphereFed with FFC on the base algorithm."""
    experiment = base_experiment(scale, base, column)
    if experiment is None:
        return None
    sphere = replace(with_spherefed(experiment), algorithm=algorithm(base, spherefed=True, column=column))
    return change(sphere.with_lr(scale.rate(f"{base}+spherefed", column)))


def ablation_of(
    scale: Scale, column: str, *, loss: Loss, head: Head, normalize: bool, key: str, calibrated: bool = True
) -> Experiment | None:
    """FedAvg with one combination of loss, head and normalization; FFC afterwards, for the cell after calibration."""
    experiment = base_experiment(scale, "fedavg", column)
    if experiment is None:
        return None
    model = replace(experiment.model, head=head, normalize=normalize)
    built = replace(experiment, model=model, loss=loss, calibration=Ffc() if calibrated else None)
    return built.with_lr(scale.rate(key, column))


LOSSES: Mapping[str, Loss] = {"CE": CrossEntropy(), "MSE": MeanSquaredError()}
SWITCHES: Mapping[str, tuple[Head, bool, str]] = {
    "FedAvg": (Learned(), False, ""),
    "+ Fix(R)": (FixedRandom(), False, "+fix-r"),
    "+ Fix(OU)": (Orthonormal(), False, "+fix-ou"),
    "+ Norm": (Learned(), True, "+norm"),
    "+ Fix(OU) + Norm": (Orthonormal(), True, "+fix-ou+norm"),
}
RATE_KEYS = {"+ce": "", "+ce+fix-r": "+babu", "+mse+fix-ou+norm": "+spherefed"}
"""Combinations that have a name as a method."""


def ablation(scale: Scale, column: str, loss: str, switch: str, *, calibrated: bool = True) -> Experiment | None:
    """One combination of Table 3."""
    head, normalize, suffix = SWITCHES[switch]
    key = f"+{loss.lower()}{suffix}"
    return ablation_of(
        scale,
        column,
        loss=LOSSES[loss],
        head=head,
        normalize=normalize,
        key="fedavg" + RATE_KEYS.get(key, key),
        calibrated=calibrated,
    )


def reference_cells(scale: Scale, column: str, label: str = "") -> list[Cell]:
    """One client that has all data, for as many epochs in all; and clients that train alone. Both as FedAvg does."""

    def one_client(experiment: Experiment) -> Experiment:
        return replace(experiment, partition=Iid(clients=1))

    shown = label or column
    central, alone = base_of(scale, "fedavg", column, one_client), base_of(scale, "fedavg", column)
    return [
        Cell(row=CENTRALISED, column=shown, experiment=central),
        Cell(row=LOCAL_ONLY, column=shown, experiment=alone, metric="local_only"),
    ]


def block(
    scale: Scale, base: str, column: str, paper: Mapping[str, float], *, label: str = "", change: Change = unchanged
) -> list[Cell]:
    """The rows of a base algorithm as in Table 2, and beside them the parts of SphereFed's gain.

    `label` names the column if it is not that of Table 2; `paper` gives the paper's numbers by row.
    """
    name, shown = LABELS[base], label or column
    first = base_of(scale, base, column, change)
    ours = ours_of(scale, base, column, change)
    calibrated: dict[str, Calibration] = {
        CCVR: scale.ccvr if column != "TinyImageNet" else replace(scale.ccvr, num_virtual=1000),
        CCVR_TUNED: scale.ccvr_tuned,
        FFC: Ffc(),
        GCV: FfcGcv(),
    }
    rows: list[tuple[str, Experiment | None, str]] = [("", first, "trained")]
    for row, calibration in calibrated.items():
        rows.append((row, first and replace(first, calibration=calibration), "calibrated"))
    rows.append((BABU, babu_of(scale, base, column, change), "trained"))
    rows.append((SPHERE, ours, "trained"))
    rows.append((OURS, ours, "calibrated"))
    return [
        Cell(
            row=_row(name, row),
            column=shown,
            experiment=experiment,
            metric="calibrated" if metric == "calibrated" else "trained",
            paper=paper.get(row),
            base=None if not row else (name, shown),
        )
        for row, experiment, metric in rows
    ]


def block_claims(base: str, column: str, paper: Mapping[str, float]) -> list[Claim]:
    """SphereFed against its base and the other two methods; beyond the paper, what the sphere and FFC each bring."""
    name = LABELS[base]
    ours: Key = (_row(name, OURS), column)
    claims = []
    for row in ("", CCVR, BABU):
        other = _row(name, row)
        size = paper[OURS] - paper[row] if paper else None
        claims.append(
            Claim(
                text=f"{column}: SphereFed on {name} is more accurate than {other}",
                plus=(ours,),
                minus=((other, column),),
                paper=size,
            )
        )
    for better, worse in ((SPHERE, ""), (OURS, FFC), (OURS, CCVR_TUNED)):
        claims.append(
            Claim(
                text=f"beyond the paper, {column}: {_row(name, better)} is more accurate than {_row(name, worse)}",
                plus=((_row(name, better), column),),
                minus=((_row(name, worse), column),),
            )
        )
    return claims


def _row(name: str, row: str) -> str:
    return f"{name} {row}".strip()
