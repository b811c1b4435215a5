"""The rows that tables share: a base algorithm with each overlay, and the ablations of Table 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spherefed.calibration import Calibration, Ccvr, Ffc, FfcGcv
from spherefed.data.partition import Iid
from spherefed.experiment import Experiment
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.nn.heads import FixedRandom, Head, Learned, Orthonormal
from spherefed.recipes.methods import plain, with_babu, with_spherefed
from spherefed.reproduce.item import BEYOND, Cell, Claim, Key, Metric, better
from spherefed.reproduce.scales import TINY_IMAGENET, Scale, algorithm, base_experiment

LABELS = {"fedavg": "FedAvg", "fedprox": "FedProx", "fednova": "FedNova", "fedopt": "FedOpt"}
CCVR, BABU, OURS = "+ CCVR", "+ BABU", "+ SphereFed"
CENTRALISED, LOCAL_ONLY = "centralised training", "local-only training"
CCVR_TUNED, FFC, GCV, BEFORE_FFC = "+ CCVR, tuned", "+ FFC", "+ FFC, λ by GCV", "+ SphereFed before FFC"

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
        loss=CrossEntropy(scale=scale.temperature) if loss == "CE" and normalize else LOSSES[loss],
        head=head,
        normalize=normalize,
        key="fedavg" + RATE_KEYS.get(key, key),
        calibrated=calibrated,
    )


def one_client(experiment: Experiment) -> Experiment:
    """One client that has all data."""
    return replace(experiment, partition=Iid(clients=1))


def reference_cells(scale: Scale, column: str, label: str = "") -> list[Cell]:
    """One client that has all data, for as many epochs in all; and clients that train alone. Both as FedAvg does."""
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
        CCVR: scale.ccvr,
        CCVR_TUNED: scale.ccvr_tuned,
        FFC: Ffc(),
        GCV: FfcGcv(),
    }
    if column == TINY_IMAGENET:
        calibrated |= {CCVR: _thousand_virtual(scale.ccvr), CCVR_TUNED: _thousand_virtual(scale.ccvr_tuned)}
    rows: list[tuple[str, Experiment | None, Metric]] = [("", first, "trained")]
    for row, calibration in calibrated.items():
        rows.append((row, first and replace(first, calibration=calibration), "calibrated"))
    rows.append((BABU, babu_of(scale, base, column, change), "trained"))
    rows.append((BEFORE_FFC, ours, "trained"))
    rows.append((OURS, ours, "calibrated"))
    return [
        Cell(
            row=_row(name, row),
            column=shown,
            experiment=experiment,
            metric=metric,
            paper=paper.get(row),
            base=None if not row else (name, shown),
        )
        for row, experiment, metric in rows
    ]


def _thousand_virtual(calibration: Ccvr) -> Ccvr:
    """CCVR as the paper uses it on TinyImageNet."""
    return replace(calibration, num_virtual=1000)


def block_claims(base: str, column: str, paper: Mapping[str, float]) -> list[Claim]:
    """All methods against each other; beyond the paper, what the sphere and FFC each bring."""
    name = LABELS[base]
    ours: Key = (_row(name, OURS), column)
    claims = []
    for row in ("", CCVR, BABU):
        other = _row(name, row)
        size = paper[OURS] - paper[row]
        claims.append(
            better(f"{column}: SphereFed on {name} is more accurate than {other}", ours, (other, column), size)
        )
    first = (name, column)
    for row in (CCVR, BABU):
        other, gain = _row(name, row), paper[row] - paper[""]
        if gain >= 0:
            claims.append(better(f"{column}: {other} is more accurate than {name}", (other, column), first, gain))
        else:
            claims.append(better(f"{column}: {other} is less accurate than {name}", first, (other, column), -gain))
    for more, less in ((BEFORE_FFC, ""), (OURS, FFC), (OURS, CCVR_TUNED)):
        one, other = _row(name, more), _row(name, less)
        text = f"{BEYOND}, {column}: {one} is more accurate than {other}"
        claims.append(better(text, (one, column), (other, column)))
    return claims


def _row(name: str, row: str) -> str:
    return f"{name} {row}".strip()
