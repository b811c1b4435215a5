"""Table 8: personalised models."""

from collections.abc import Mapping

from spherefed.experiment import Experiment
from spherefed.recipes.personal import personal_methods
from spherefed.reproduce.item import Cell, Claim, Item, better
from spherefed.reproduce.scales import HALF, TENTH, Scale, base_experiment

TABLE_8 = {
    "fedavg+fine-tuning": ("FedAvg", 69.95, 80.16),
    "lg-fedavg": ("LG-FedAvg", 71.67, 81.95),
    "fedrep": ("FedRep", 62.39, 73.63),
    "babu+fine-tuning": ("BABU", 72.34, 82.12),
    "spherefed+ffc": ("Ours (FFC)", 75.63, 84.06),
    "spherefed+sgd": ("Ours (SGD)", 75.71, 84.12),
}


TABLE_8_DEVIATIONS = {
    "fedavg+fine-tuning": (3.96, 3.77),
    "lg-fedavg": (4.33, 3.69),
    "fedrep": (3.91, 3.74),
    "babu+fine-tuning": (3.84, 3.63),
    "spherefed+ffc": (3.13, 3.10),
    "spherefed+sgd": (3.32, 3.29),
}
"""Standard deviation over clients at α = 0.5 and 0.1."""
OURS_OF_TABLE_8 = ("Ours (FFC)", "Ours (SGD)")
OVER_CLIENTS = ", deviation over clients"


def table8(scale: Scale) -> Item:
    """Clients' own models on pooled data, 15 % of each client's data held out."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    for column in (HALF, TENTH):
        start = base_experiment(scale, "fedavg", column)
        assert start is not None
        rates = {key: {"local.lr": scale.rate(key, column)} for key in ("fedavg", "fedavg+babu", "fedavg+spherefed")}
        built = personal_methods(start, rates)
        for name, (row, half, tenth) in TABLE_8.items():
            base = None if row == "FedAvg" else ("FedAvg", column)
            paper = half if column == HALF else tenth
            cells.append(
                Cell(row=row, column=column, experiment=built[name], metric="personal", paper=paper, base=base)
            )
        cells += _deviations_of_clients(column, built)
        claims += _claims_of_table_8(column)
    return Item(
        name="table8",
        title="Table 8: personalised models",
        claim="Fine-tuning or recomputing only the head of SphereFed gives the best personalised models.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=(
            "Fine-tuning epochs, rates and parts are unstated in the paper; see `recipes/personal.py`.",
            "FedRep trains its head as long as its encoder, so twice the epochs of the others (unstated in the paper).",
        ),
    )


def _deviations_of_clients(column: str, built: Mapping[str, Experiment]) -> list[Cell]:
    """How much clients differ in accuracy."""
    return [
        Cell(
            row=row, column=f"{column}{OVER_CLIENTS}", experiment=built[name], metric="personal_std",
            paper=TABLE_8_DEVIATIONS[name][column == TENTH],
        )
        for name, (row, _, _) in TABLE_8.items()
    ]  # fmt: skip


def _claims_of_table_8(column: str) -> list[Claim]:
    """Both variants against every other method; SGD against FFC; how much clients differ."""
    rows = {row: tenth if column == TENTH else half for row, half, tenth in TABLE_8.values()}
    pairs = [(ours, other) for ours in OURS_OF_TABLE_8 for other in rows if other not in OURS_OF_TABLE_8]
    pairs.append(("Ours (SGD)", "Ours (FFC)"))
    claims = [
        better(
            f"{column}: {one} is more accurate than {other}", (one, column), (other, column), rows[one] - rows[other]
        )
        for one, other in pairs
    ]
    deviations = {TABLE_8[name][0]: numbers[column == TENTH] for name, numbers in TABLE_8_DEVIATIONS.items()}
    for ours in OURS_OF_TABLE_8:
        text = f"{column}: accuracies of clients differ less with {ours} than with BABU"
        where, size = f"{column}{OVER_CLIENTS}", deviations["BABU"] - deviations[ours]
        claims.append(better(text, ("BABU", where), (ours, where), size))
    return claims
