"""Tables 2, 5, 6 and 7: four methods on base algorithms, over heterogeneity, local epochs, clients and schedules."""

from collections.abc import Mapping
from dataclasses import replace

from spherefed.data.partition import Dirichlet
from spherefed.experiment import Experiment
from spherefed.reproduce.item import BEYOND, Cell, Claim, Item, better
from spherefed.reproduce.methods import (
    BABU,
    CCVR,
    CCVR_TUNED,
    FFC,
    LABELS,
    OURS,
    Change,
    block,
    block_claims,
    reference_cells,
)
from spherefed.reproduce.scales import COLUMNS, HALF, IID, TENTH, Scale
from spherefed.server.schedules import MultiStep

Printed = Mapping[str, float]
CLIENTS = "+clients"
"""Ends the names of methods that are tuned with the clients of Table 6."""


def printed(base: float, ccvr: float, babu: float, ours: float) -> Printed:
    """The four rows of a base algorithm in one column."""
    return {"": base, CCVR: ccvr, BABU: babu, OURS: ours}


TABLE_2: Mapping[str, tuple[Printed, ...]] = {
    "fedavg": (
        printed(71.86, 72.09, 71.84, 73.56),
        printed(68.78, 69.14, 69.35, 71.85),
        printed(63.90, 64.05, 64.91, 66.52),
        printed(29.95, 31.41, 28.38, 34.72),
    ),
    "fedprox": (
        printed(70.19, 71.31, 71.66, 73.41),
        printed(67.50, 67.89, 69.62, 72.20),
        printed(65.63, 66.09, 67.90, 69.19),
        printed(30.55, 32.56, 31.87, 35.21),
    ),
    "fednova": (
        printed(62.12, 62.53, 62.03, 65.50),
        printed(60.49, 61.61, 60.54, 65.12),
        printed(57.20, 58.13, 58.95, 62.54),
        printed(39.63, 40.12, 40.87, 45.21),
    ),
    "fedopt": (
        printed(61.89, 61.97, 62.27, 65.15),
        printed(59.60, 60.42, 59.69, 65.69),
        printed(57.46, 57.93, 56.75, 62.61),
        printed(24.29, 25.01, 25.34, 29.84),
    ),
}
"""Accuracy in the columns IID, α = 0.5, α = 0.1, TinyImageNet. Some printed differences do not fit them; for FedProx +
CCVR at IID (71.31, "↑0.12") it is not clear which number is the misprint."""


def table2(scale: Scale) -> Item:
    """The main table."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    for base, columns in TABLE_2.items():
        for column, paper in zip(COLUMNS, columns, strict=True):
            cells += block(scale, base, column, paper)
            claims += block_claims(base, column, paper)
        claims += _skew_claims(base, columns)
    claims += _gaps_of_fednova()
    claims.append(_largest_gain())
    for column in COLUMNS:
        cells += reference_cells(scale, column)
    return Item(
        name="table2",
        title="Table 2: accuracy with different degrees of heterogeneity",
        claim="SphereFed improves every base algorithm, more than CCVR and BABU do, and more where data differ more.",
        cells=tuple(cells),
        claims=tuple(claims),
        deviations=(
            "The text says that SphereFed tends to gain more where the non-i.i.d. degree is higher. From α = 0.5 to "
            "α = 0.1 the paper's own numbers say so for FedNova only; the other sizes are negative.",
            'The paper does not say which cell "up to 6 %" is about. The largest gain of Table 2 is that of FedOpt at '
            "α = 0.5, 6.09 points; on TinyImageNet it is 5.58 (FedNova), and in Table 6 it is 6.19 (FedNova). That a "
            "gain of 5.5 points is enough, because it rounds to 6, is our reading.",
            "These lines were added when results at other scales than the paper's were known.",
        ),
    )


def _skew_claims(base: str, columns: tuple[Printed, ...]) -> list[Claim]:
    """SphereFed gains more where data differ: its lead over the base minus that where data differ less."""
    name = LABELS[base]
    ours = f"{name} {OURS}"
    lead = {column: numbers[OURS] - numbers[""] for column, numbers in zip(COLUMNS, columns, strict=True)}
    texts = {
        (IID, HALF): f"SphereFed narrows {name}'s gap between IID and {HALF}",
        (IID, TENTH): f"SphereFed narrows {name}'s gap between IID and {TENTH}",
        (HALF, TENTH): f"SphereFed on {name} gains more at {TENTH} than at {HALF}",
    }
    return [
        Claim(
            text=text,
            plus=((ours, more), (name, less)),
            minus=((name, more), (ours, less)),
            paper=lead[more] - lead[less],
        )
        for (less, more), text in texts.items()
    ]


def _gaps_of_fednova() -> list[Claim]:
    """The two gaps that the text names: 4.92 points, and 2.96 with SphereFed."""
    return [
        better(f"{row} loses accuracy from IID to α = 0.1", (row, IID), (row, TENTH), size)
        for row, size in (("FedNova", 4.92), (f"FedNova {OURS}", 2.96))
    ]


def _largest_gain() -> Claim:
    """The abstract's "up to 6 %": the largest gain of Table 2, which is 6.09; a gain of 5.5 rounds to 6."""
    paper = TABLE_2["fedopt"][COLUMNS.index(HALF)]
    return better(
        f'"up to 6 %" (abstract, introduction): SphereFed gains at least 5.5 points on FedOpt at {HALF}',
        (f"FedOpt {OURS}", HALF),
        ("FedOpt", HALF),
        paper[OURS] - paper[""],
        least=5.5,
    )


def table5(scale: Scale) -> Item:
    """One and five local epochs; one epoch has five times the rounds, as in the paper (500 instead of 100)."""
    rounds = scale.template.rounds
    settings = {
        "E = 1": (lambda e: replace(e, rounds=5 * rounds, local=replace(e.local, epochs=1))),
        "E = 5": (lambda e: replace(e, local=replace(e.local, epochs=5))),
    }
    paper = {
        ("fedavg", "E = 1"): printed(70.51, 71.33, 71.46, 73.26),
        ("fedavg", "E = 5"): printed(68.40, 68.93, 69.10, 72.02),
        ("fednova", "E = 1"): printed(60.53, 61.31, 62.75, 64.75),
        ("fednova", "E = 5"): printed(57.46, 57.77, 58.50, 62.06),
    }
    return _varied(
        scale,
        Item(
            name="table5",
            title="Table 5: accuracy with different numbers of local epochs",
            claim="SphereFed improves the base algorithms with one and with five local epochs.",
        ),
        {"fedavg": HALF, "fednova": TENTH},
        settings,
        paper,
    )


def table6(scale: Scale) -> Item:
    """100 clients, of which ten take part in a round; where rates were tuned for them, FedAvg's rows at these too."""
    item = _varied(
        scale,
        Item(
            name="table6",
            title="Table 6: accuracy with 100 clients, of which 10 % take part in a round",
            claim="SphereFed improves the base algorithms with many clients and partial participation.",
        ),
        {"fedavg": HALF, "fednova": HALF},
        {"K = 100": hundred_clients},
        {
            ("fedavg", "K = 100"): printed(68.26, 69.20, 69.14, 71.38),
            ("fednova", "K = 100"): printed(49.04, 50.45, 51.27, 55.23),
        },
    )
    own = {name.removesuffix(CLIENTS): rate for name, rate in scale.rates.items() if name.endswith(CLIENTS)}
    if not own:
        return item
    label, tuned = "K = 100, own rates", replace(scale, rates={**scale.rates, **own})
    ours, text = (f"FedAvg {OURS}", label), f"{BEYOND}, {label}: SphereFed is more accurate than"
    others = ("FedAvg", *(f"FedAvg {row}" for row in (BABU, FFC, CCVR_TUNED)))
    return replace(
        item,
        cells=(*item.cells, *block(tuned, "fedavg", HALF, {}, label=label, change=hundred_clients)),
        claims=(*item.claims, *(better(f"{text} {row}", ours, (row, label)) for row in others)),
        deviations=(
            f'Run twice: first at the rates that were tuned with 10 clients; then ("{label}"), when results of the '
            "first were known, at rates that were tuned with 100 clients at α = 0.5 on the validation split. CCVR "
            "refits as it was tuned with 10 clients.",
        ),
    )


def hundred_clients(experiment: Experiment) -> Experiment:
    """100 clients at α = 0.5, of which ten take part in a round, for five times the rounds, as in the paper."""
    assert isinstance(experiment.partition, Dirichlet)
    partition = replace(experiment.partition, clients=100, alpha=0.5)
    return replace(experiment, partition=partition, cohort=10, rounds=5 * experiment.rounds)


def table7(scale: Scale) -> Item:
    """Cosine and multi-step schedule; steps after two fifths of the rounds, as in the paper (40 of 100)."""
    every = max(1, 2 * scale.template.rounds // 5)
    return _varied(
        scale,
        Item(
            name="table7",
            title="Table 7: accuracy with different schedules of the learning rate",
            claim="SphereFed improves FedAvg with a cosine and with a multi-step schedule.",
            deviations=('"Every 40 epochs" is read as every 40 rounds.',),
        ),
        {"fedavg": HALF},
        {"Cosine": lambda e: e, "Multi-step": lambda e: replace(e, schedule=MultiStep(every=every))},
        {
            ("fedavg", "Cosine"): printed(68.78, 69.14, 69.35, 71.85),
            ("fedavg", "Multi-step"): printed(68.60, 69.05, 69.43, 71.06),
        },
    )


def _varied(
    scale: Scale,
    item: Item,
    bases: Mapping[str, str],
    settings: Mapping[str, Change],
    paper: Mapping[tuple[str, str], Printed],
) -> Item:
    """The item with a block for every base algorithm (in its column of Table 2) and every setting."""
    cells: list[Cell] = []
    claims: list[Claim] = []
    for base, column in bases.items():
        for label, change in settings.items():
            cells += block(scale, base, column, paper[base, label], label=label, change=change)
            claims += block_claims(base, label, paper[base, label])
    return replace(item, cells=tuple(cells), claims=tuple(claims))
