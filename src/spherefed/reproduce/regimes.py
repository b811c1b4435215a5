"""Not in the paper: settings in which SphereFed's gain is small or absent, beside the one in which it shows."""

from collections.abc import Mapping
from dataclasses import replace

from spherefed.calibration import Ffc
from spherefed.experiment import Experiment
from spherefed.nn.encoders import Mlp
from spherefed.reproduce.item import Cell, Claim, Item
from spherefed.reproduce.methods import FFC, OURS, SPHERE, Change, base_of, ours_of, unchanged
from spherefed.reproduce.scales import TENTH, Scale


def regimes(scale: Scale) -> Item:
    """FedAvg and SphereFed, each before and after FFC, with many and few local epochs and with a shallow network."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    for label, change in _settings(scale).items():
        first, ours = base_of(scale, "fedavg", TENTH, change), ours_of(scale, "fedavg", TENTH, change)
        after = first and replace(first, calibration=Ffc())
        base = ("FedAvg", label)
        cells += [
            Cell(row="FedAvg", column=label, experiment=first),
            Cell(row=f"FedAvg {FFC}", column=label, experiment=after, metric="calibrated", base=base),
            Cell(row=f"FedAvg {SPHERE}", column=label, experiment=ours, base=base),
            Cell(row=f"FedAvg {OURS}", column=label, experiment=ours, metric="calibrated", base=base),
        ]
        claims += [
            Claim(
                text=f"{label}: before FFC, SphereFed is more accurate than FedAvg",
                plus=((f"FedAvg {SPHERE}", label),),
                minus=(base,),
            ),
            Claim(
                text=f"{label}: after FFC, SphereFed is more accurate than FedAvg with FFC",
                plus=((f"FedAvg {OURS}", label),),
                minus=((f"FedAvg {FFC}", label),),
            ),
        ]
    return Item(
        name="regimes",
        title="Beyond the paper: where SphereFed's gain is absent (α = 0.1)",
        claim="SphereFed removes drift of the last layer; where clients drift little, FFC alone may do as well.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=(
            "Not in the paper.",
            "Learning rates are those of the first column; they were not tuned for the others.",
            "Frozen pretrained features are not run here: their weights are not part of the package.",
        ),
    )


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
