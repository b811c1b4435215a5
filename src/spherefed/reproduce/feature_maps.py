"""Figure 3: do the local models of two clients map a class to the same area?"""

from collections.abc import Mapping
from dataclasses import replace

from spherefed.experiment import Experiment
from spherefed.reproduce.item import BEYOND, Cell, Claim, Item, Metric, better
from spherefed.reproduce.methods import CENTRALISED, one_client, unchanged
from spherefed.reproduce.regimes import MORE_ROUNDS, ROUNDS, base_and_ours, more_rounds
from spherefed.reproduce.scales import TENTH, Scale

BASE, SPHERE = "FedAvg", "SphereFed"


def fig3(scale: Scale) -> Item:
    """Agreement of the features of two clients' local models: t-SNE maps, and two numbers."""
    base, ours = base_and_ours(scale, TENTH, unchanged)
    rows = {BASE: base, CENTRALISED: base and _centralised(base, scale), SPHERE: ours and ours.training_part()}
    cells = _cells(rows, "")
    claims = _claims("", "")
    longer: tuple[str, ...] = ()
    if not scale.to_the_letter:
        many = f", {MORE_ROUNDS * scale.template.rounds} rounds"
        base, ours = base_and_ours(scale, TENTH, more_rounds, ROUNDS)
        cells += _cells({BASE: base, SPHERE: ours and ours.training_part()}, many)
        claims += _claims(many, f"{BEYOND}{many}: ")
        longer = (
            f"The rows with {many[2:]} are those of the item `rounds`. They were added when the numbers without them "
            "were known, and mixing after trainings at other rates.",
            "Centralised training takes as many epochs as the shorter federation.",
        )
    return Item(
        name="fig3",
        title="Figure 3: features of the same class from two clients' local models (α = 0.1)",
        claim="With SphereFed, the local models of different clients map a class to the same area.",
        cells=tuple(cells),
        claims=tuple(claims),
        unit="",
        deviations=(
            "A map has no number. Alignment is the mean cosine of two clients' centred class means on test images. "
            "Mixing is twice the share of the other client's features among the ten nearest neighbours of the same "
            "class: about 1 if the clients' features lie in the same area, 0 if they form separate clusters.",
            "Features are normalised to unit length for mixing and maps, so that methods are compared alike.",
            "Mixing and its claims were added when alignment was known; at laptop scale, before mixing was measured.",
            "Maps are those of seed 0. Classes are the paper's, 5 and 7; clients are the two with most examples, "
            "where the paper draws them at random.",
            "Centralised training has one model, which is compared with itself, so that both numbers are 1 by "
            "construction. Its row is only a reference, and no claim is judged by it.",
            *longer,
            "Local models start from the final model, with the learning rate of round 0.9 · T.",
        ),
    )


def _cells(rows: Mapping[str, Experiment | None], rounds: str) -> list[Cell]:
    """Both numbers of every row; `rounds` ends the names of the rows."""
    metrics: tuple[Metric, ...] = ("alignment", "mixing")
    return [
        Cell(
            row=row + rounds, column=metric, experiment=experiment, metric=metric,
            base=None if row == BASE else (BASE + rounds, metric),
        )
        for metric in metrics
        for row, experiment in rows.items()
    ]  # fmt: skip


def _claims(rounds: str, before: str) -> list[Claim]:
    """That features agree more with SphereFed; `rounds` ends the names of the rows."""
    words = {
        "alignment": "cosine: features of two clients agree more with SphereFed than with FedAvg",
        "mixing": "share: features of two clients mix more with SphereFed than with FedAvg",
    }
    return [better(before + text, (SPHERE + rounds, metric), (BASE + rounds, metric)) for metric, text in words.items()]


def _centralised(experiment: Experiment, scale: Scale) -> Experiment:
    """One client with all data: 120 epochs in the paper, as many as the federation at smaller scales."""
    rounds = 120 // experiment.local_training.epochs if scale.to_the_letter else experiment.rounds
    return replace(one_client(experiment), rounds=rounds)
