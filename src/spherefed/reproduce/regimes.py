"""Not in the paper: settings in which SphereFed's gain is small or absent, and what more rounds change."""

from collections.abc import Mapping
from dataclasses import replace

from spherefed.calibration import Ffc
from spherefed.experiment import Experiment
from spherefed.nn.encoders import EfficientNetLite0, Mlp
from spherefed.reproduce.item import BEYOND, Cell, Claim, Item, better
from spherefed.reproduce.methods import BEFORE_FFC, CCVR_TUNED, FFC, OURS, Change, base_of, ours_of, unchanged
from spherefed.reproduce.scales import HALF, IID, TENTH, Scale

BASE, TUNED, AFTER_FFC = "FedAvg", f"FedAvg {CCVR_TUNED}", f"FedAvg {FFC}"
BEFORE, SPHEREFED = f"FedAvg {BEFORE_FFC}", f"FedAvg {OURS}"
FROZEN = "frozen features"
ROUNDS = "+rounds"
"""Ends the names of methods that are tuned with more rounds."""
MORE_ROUNDS = 3
"""How many times as many rounds the item `rounds` has."""


def regimes(scale: Scale) -> Item:
    """FedAvg and SphereFed, each before and after FFC: few local epochs, a shallow network, a frozen encoder."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    for label, change in _settings(scale).items():
        cells += _four_rows(scale, TENTH, label, change)
        claims += _gains(label)
    deviations = ["Not in the paper.", "Learning rates are those of the first column; they were not tuned for others."]
    if scale.template.data.name != "digits":
        cells += _four_rows(scale, TENTH, FROZEN, frozen_features, rates="+frozen")
        claims += _gains(FROZEN)
        deviations[1] = "Learning rates are those of the first column, except for frozen features."
        deviations.append(
            "Frozen features: EfficientNet-Lite0 with ImageNet weights (extra `pretrained`) on images of 32×32 pixels, "
            "enlarged to 96×96; clients train one hidden layer of 256 on its features. No augmentation."
        )
    return Item(
        name="regimes",
        title="Beyond the paper: where SphereFed's gain is absent (α = 0.1)",
        claim="SphereFed removes drift of the last layer; where clients drift little, FFC alone may do as well.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=tuple(deviations),
    )


def rounds(scale: Scale) -> Item:
    """The same rows and tuned CCVR at every degree of skew, with as many rounds as the scale has and thrice as many."""
    few, many = scale.template.rounds, MORE_ROUNDS * scale.template.rounds
    is_tuned = f"fedavg{ROUNDS}" in scale.rates
    cells: list[Cell] = []
    claims: list[Claim] = []
    for column in (IID, HALF, TENTH):
        short, long = f"{column} ({few} rounds)", f"{column} ({many} rounds)"
        cells += _five_rows(scale, column, short, unchanged)
        cells += _five_rows(scale, column, long, more_rounds, rates=ROUNDS)
        claims += _gains(long)
        if is_tuned:
            first_tried = f"{long[:-1]}, rates of {few})"
            cells += _five_rows(scale, column, first_tried, more_rounds)
            text = f"{BEYOND}, {first_tried}: SphereFed is more accurate than FedAvg"
            claims.append(better(text, (SPHEREFED, first_tried), (BASE, first_tried)))
            # Judged after FFC, FedAvg's best rate is the one of fewer rounds (`tuning-ffc`).
            text = f"{BEYOND}, {long}: SphereFed is more accurate than {AFTER_FFC} at the rate of {few} rounds"
            claims.append(better(text, (SPHEREFED, long), (AFTER_FFC, first_tried)))
        for other in (BASE, TUNED):
            text = f"{BEYOND}, {long}: SphereFed is more accurate than {other}"
            claims.append(better(text, (SPHEREFED, long), (other, long)))
        claims.append(
            Claim(
                text=f"{BEYOND}, {column}: SphereFed's lead over FedAvg grows from {few} to {many} rounds",
                plus=((SPHEREFED, long), (BASE, short)),
                minus=((BASE, long), (SPHEREFED, short)),
            )
        )
    return Item(
        name="rounds",
        title=f"Beyond the paper: {many} rounds instead of {few}",
        claim="Squared error towards a fixed head begins slowly; given more rounds, SphereFed leads at every skew.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=(
            "Not in the paper, and added after the results with the smaller number of rounds were known.",
            f"Run twice: first at the rates of {few} rounds; then, when these results on the test set were known, at "
            f"rates that were tuned for {many} rounds on the validation split. Both are shown; the claims about the "
            f"rates of {few} rounds were added when both were known."
            if is_tuned
            else "Learning rates are those of the smaller number of rounds.",
        ),
    )


def more_rounds(experiment: Experiment) -> Experiment:
    """The same with three times as many rounds."""
    return replace(experiment, rounds=MORE_ROUNDS * experiment.rounds)


def _five_rows(scale: Scale, column: str, label: str, change: Change, rates: str = "") -> list[Cell]:
    """FedAvg and SphereFed, each before and after FFC, and FedAvg with tuned CCVR."""
    first, *others = _four_rows(scale, column, label, change, rates)
    tuned = scale.ccvr_more_rounds if rates == ROUNDS and scale.ccvr_more_rounds else scale.ccvr_tuned
    ccvr = first.experiment and replace(first.experiment, calibration=tuned)
    return [first, Cell(row=TUNED, column=label, experiment=ccvr, metric="calibrated", base=first.key), *others]


def frozen_features(experiment: Experiment) -> Experiment:
    """A pretrained encoder that is not trained, and one hidden layer that is."""
    model = replace(experiment.model, encoder=EfficientNetLite0(), frozen=True, adapter=Mlp(widths=(256,)))
    return replace(experiment, data=replace(experiment.data, resize=None), model=model)


def _four_rows(scale: Scale, column: str, label: str, change: Change, rates: str = "") -> list[Cell]:
    """FedAvg and SphereFed, each before and after FFC, in a column with this label; `rates`: of methods that end so."""
    first, ours = base_and_ours(scale, column, change, rates)
    after = first and replace(first, calibration=Ffc())
    base = (BASE, label)
    return [
        Cell(row=BASE, column=label, experiment=first),
        Cell(row=AFTER_FFC, column=label, experiment=after, metric="calibrated", base=base),
        Cell(row=BEFORE, column=label, experiment=ours, base=base),
        Cell(row=SPHEREFED, column=label, experiment=ours, metric="calibrated", base=base),
    ]


def base_and_ours(
    scale: Scale, column: str, change: Change, rates: str = ""
) -> tuple[Experiment | None, Experiment | None]:
    """FedAvg and SphereFed in a changed setting, at the rates of methods that end so."""
    first, ours = base_of(scale, "fedavg", column, change), ours_of(scale, "fedavg", column, change)
    return (
        first and first.with_lr(_rate(scale, "fedavg", rates, column)),
        ours and ours.with_lr(_rate(scale, "fedavg+spherefed", rates, column)),
    )


def _rate(scale: Scale, method: str, suffix: str, column: str) -> float:
    """The rate that was tuned for this setting; else that of the method."""
    return scale.rates.get(method + suffix, scale.rate(method, column))


def _gains(label: str) -> list[Claim]:
    """What the changed training brings, before and after FFC."""
    return [
        better(
            f"{BEYOND}, {label}: before FFC, SphereFed is more accurate than FedAvg", (BEFORE, label), (BASE, label)
        ),
        better(
            f"{BEYOND}, {label}: after FFC, SphereFed is more accurate than FedAvg with FFC",
            (SPHEREFED, label),
            (AFTER_FFC, label),
        ),
    ]


def _settings(scale: Scale) -> Mapping[str, Change]:
    epochs, rounds = scale.template.local_training.epochs, scale.template.rounds
    factor = epochs // 2

    def few_epochs(experiment: Experiment) -> Experiment:
        """Two local epochs and as many epochs in all."""
        return replace(experiment, rounds=factor * rounds, local=replace(experiment.local_training, epochs=2))

    def shallow(experiment: Experiment) -> Experiment:
        """One hidden layer."""
        return replace(experiment, model=replace(experiment.model, encoder=Mlp(widths=(256,))))

    return {f"E = {epochs}": unchanged, "E = 2": few_epochs, "shallow network": shallow}
