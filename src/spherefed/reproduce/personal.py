"""Table 8: personalised models."""

from collections.abc import Mapping

from spherefed.experiment import Experiment
from spherefed.recipes.methods import with_tuned
from spherefed.recipes.personal import HELD_OUT, personal_methods
from spherefed.reproduce.item import BEYOND, Cell, Claim, Item, better
from spherefed.reproduce.scales import HALF, TENTH, Scale, base_experiment

Printed = tuple[float, float] | tuple[None, None]
"""The paper's numbers at α = 0.5 and 0.1."""
COLUMNS = (HALF, TENTH)
TABLE_8: Mapping[str, tuple[str, Printed, Printed]] = {
    "fedavg+fine-tuning": ("FedAvg", (69.95, 80.16), (3.96, 3.77)),
    "lg-fedavg": ("LG-FedAvg", (71.67, 81.95), (4.33, 3.69)),
    "fedrep": ("FedRep", (62.39, 73.63), (3.91, 3.74)),
    "babu+fine-tuning": ("BABU", (72.34, 82.12), (3.84, 3.63)),
    "spherefed+ffc": ("Ours (FFC)", (75.63, 84.06), (3.13, 3.10)),
    "spherefed+sgd": ("Ours (SGD)", (75.71, 84.12), (3.32, 3.29)),
}
"""Method → row, accuracy, and its standard deviation over clients."""
OURS_OF_TABLE_8 = ("Ours (FFC)", "Ours (SGD)")
PLAIN_FFC, PLAIN_FFC_TUNED, OURS_TUNED = "FedAvg + local FFC", "FedAvg + local FFC, λ tuned", "Ours (FFC), λ tuned"
RIDGE = "+ridge"
"""Ends the names of methods whose λ is tuned; the paper's is 0."""
TUNED_RIDGES = {f"fedavg+local-ffc{RIDGE}": PLAIN_FFC_TUNED, f"spherefed+ffc{RIDGE}": OURS_TUNED}
OVER_CLIENTS = ", deviation over clients"
TUNED_FIELDS = {
    "fedavg+fine-tuning": "personalization.lr",
    "babu+fine-tuning": "personalization.lr",
    "spherefed+sgd": "personalization.lr",
} | dict.fromkeys(TUNED_RIDGES, "personalization.ridge")
"""What clients do after the training, tuned by the accuracy of their own models. Trainings have the rates of Table 2,
LG-FedAvg and FedRep that of FedAvg."""


def table8(scale: Scale) -> Item:
    """Clients' own models on pooled data, 15 % of each client's data held out."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    rows = _rows(scale)
    for at, column in enumerate(COLUMNS):
        built = personal_experiments(scale, column)
        for name, (row, accuracies, _) in rows.items():
            cells.append(
                Cell(
                    row=row, column=column, experiment=built[name], metric="personal", paper=accuracies[at],
                    base=None if row == "FedAvg" else ("FedAvg", column),
                )
            )  # fmt: skip
        for name, (row, _, deviations) in rows.items():
            cells.append(
                Cell(
                    row=row, column=f"{column}{OVER_CLIENTS}", experiment=built[name], metric="personal_std",
                    paper=deviations[at],
                )
            )  # fmt: skip
        claims += _claims_of_table_8(at, column) + _claims_beyond(column, is_tuned=bool(scale.personal))
    return Item(
        name="table8",
        title="Table 8: personalised models",
        claim="Fine-tuning or recomputing only the head of SphereFed gives the best personalised models.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=_deviations(scale),
    )


def personal_experiments(scale: Scale, column: str) -> dict[str, Experiment]:
    """All methods of Table 8 by name; those of `TUNED_FIELDS` with what was tuned at this scale."""
    start = base_experiment(scale, "fedavg", column)
    assert start is not None, "every scale has these columns"
    rates = {key: {"local.lr": scale.rate(key, column)} for key in ("fedavg", "fedavg+babu", "fedavg+spherefed")}
    built = personal_methods(start, rates)
    built |= {name: built[name.removesuffix(RIDGE)] for name in TUNED_RIDGES}
    return {name: with_tuned(experiment, scale.personal.get(name, {})) for name, experiment in built.items()}


def _rows(scale: Scale) -> dict[str, tuple[str, Printed, Printed]]:
    """Those of the paper; FedAvg with local FFC; and, where λ was tuned, both local FFCs with it."""
    ours = {"fedavg+local-ffc": PLAIN_FFC} | (TUNED_RIDGES if scale.personal else {})
    return {**TABLE_8, **{name: (row, (None, None), (None, None)) for name, row in ours.items()}}


def _deviations(scale: Scale) -> tuple[str, ...]:
    lines = [
        "Fine-tuning epochs, rates and parts are unstated in the paper; see `recipes/personal.py`.",
        "FedRep trains its head as long as its encoder, so twice the epochs of the others (unstated in the paper).",
        "The paper does not have FedAvg with local FFC, which tells the gain of FFC from that of SphereFed's training.",
    ]
    if scale.personal:
        lines.append(
            "Rates of fine-tuning, and λ where the row says so, were tuned at α = 0.1 on examples that clients of the "
            "tuning data hold out. Trainings have the rates of Table 2; LG-FedAvg and FedRep have that of FedAvg."
        )
    if (examples := scale.template.data.examples) is not None:
        lines.append(
            f"{examples:,} pooled examples, {examples // scale.template.partition.clients} per client on average, of "
            f"which {HELD_OUT:.0%} are held out; there is no other test set."
        )
    return tuple(lines)


def _claims_of_table_8(at: int, column: str) -> list[Claim]:
    """Both variants against every other method; SGD against FFC; how much clients differ."""
    accuracy = {row: numbers[at] or 0.0 for row, numbers, _ in TABLE_8.values()}
    deviation = {row: numbers[at] or 0.0 for row, _, numbers in TABLE_8.values()}
    pairs = [(ours, other) for ours in OURS_OF_TABLE_8 for other in accuracy if other not in OURS_OF_TABLE_8]
    pairs.append(("Ours (SGD)", "Ours (FFC)"))
    claims = [
        better(
            f"{column}: {one} is more accurate than {other}", (one, column), (other, column),
            accuracy[one] - accuracy[other],
        )
        for one, other in pairs
    ]  # fmt: skip
    for ours in OURS_OF_TABLE_8:
        text = f"{column}: accuracies of clients differ less with {ours} than with BABU"
        where = f"{column}{OVER_CLIENTS}"
        claims.append(better(text, ("BABU", where), (ours, where), deviation["BABU"] - deviation[ours]))
    return claims


def _claims_beyond(column: str, *, is_tuned: bool) -> list[Claim]:
    """What SphereFed's training adds to local FFC; with a tuned λ, against every other method."""
    pairs = [("Ours (FFC)", PLAIN_FFC)]
    if is_tuned:
        others = (row for row, _, _ in TABLE_8.values() if row != "Ours (FFC)")
        pairs += [(OURS_TUNED, other) for other in (*others, PLAIN_FFC_TUNED)]
    return [
        better(f"{BEYOND}, {column}: {one} is more accurate than {other}", (one, column), (other, column))
        for one, other in pairs
    ]
