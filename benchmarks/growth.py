"""How the cost of a round grows with the clients that sit idle and with the cohort, and FFC's with the features."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from spherefed.assembly import build_parts
from spherefed.calibration.ffc import Accumulator
from spherefed.client.training import LocalTraining
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.partition import Iid, Partition
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, Model
from spherefed.nn.encoders import Mlp
from spherefed.server.federation import federate

NUM_ROUNDS = 20
EXAMPLES_EACH = 20

Costs = dict[int, float]
"""CPU seconds, by what grows."""


def by_clients(cohort: int = 100) -> Costs:
    """Per round, 10² to 10⁵ clients with overlapping data."""
    return _interleaved({number: _rounds(number, cohort) for number in (10**2, 10**3, 10**4, 10**5)})


def by_cohort() -> Costs:
    """Per round, 10 to 100 of 1,000 clients."""
    return _interleaved({cohort: _rounds(1000, cohort) for cohort in (10, 20, 50, 100)})


def by_features(num_rows: int = 2000) -> Costs:
    """Per measurement of V and U of so many examples, 64 to 2,048 features."""
    return {
        dim: median(_timed(lambda dim=dim: _measure(num_rows, dim)) for _ in range(5)) for dim in (64, 256, 1024, 2048)
    }


def exponent(costs: Costs) -> float:
    """The slope of log cost over log size, by least squares."""
    sizes, seconds = zip(*costs.items(), strict=True)
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def ffc_ratios(num_rows: int = 50_000, dim: int = 1280, num_classes: int = 100) -> tuple[list[float], float]:
    """CPU time of exact statistics over that of a bare float64 ZᵀZ, turn by turn; and seconds of the solve."""
    features = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(0)).relu_()
    labels = torch.arange(num_rows) % num_classes
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    ratios = []
    for _ in range(5):
        bare = _timed(lambda: unit.T @ unit)
        ratios.append(_timed(lambda: _accumulated(features, labels, num_classes)) / bare)
    total = _accumulated(features, labels, num_classes).total()
    return sorted(ratios), _timed(lambda: total.solve(1e-3))


def _rounds(num_clients: int, cohort: int) -> Iterator[object]:
    rng = np.random.default_rng(0)
    inputs, labels = torch.from_numpy(rng.normal(size=(5000, 1, 8, 8))).float(), torch.arange(5000) % 10
    examples = Examples(inputs, labels)
    data = Dataset(name="generated", train=examples, test=examples, classes=tuple(map(str, range(10))))
    experiment = Experiment(
        name="growth",
        rounds=NUM_ROUNDS + 2,
        cohort=cohort,
        partition=Iid(clients=num_clients),
        model=Model(encoder=Mlp(widths=(64,))),
        local=LocalTraining(lr=0.05, epochs=1, batch_size=32),
    )
    starts = rng.integers(5000 - EXAMPLES_EACH, size=num_clients)
    parts = tuple(np.arange(start, start + EXAMPLES_EACH) for start in starts)
    partition = Partition(parts, np.zeros((num_clients, 10), dtype=np.int64))
    assembly = build_parts(replace(experiment, stack=0), data, partition)
    return federate(InProcess(assembly.clients), assembly.initial(), assembly.plan())


def _interleaved(contestants: dict[int, Iterator[object]]) -> Costs:
    seconds: dict[int, list[float]] = {size: [] for size in contestants}
    for turn in range(NUM_ROUNDS + 2):
        for size, rounds in contestants.items():
            spent = _timed(lambda rounds=rounds: next(rounds))
            if turn >= 2:
                seconds[size].append(spent)
    return {size: median(spent) for size, spent in seconds.items()}


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _measure(num_rows: int, dim: int) -> None:
    features = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(0))
    _accumulated(features, torch.zeros(num_rows, dtype=torch.int64), 10).total()


def _accumulated(features: torch.Tensor, labels: torch.Tensor, num_classes: int) -> Accumulator:
    accumulator = Accumulator(features.shape[1], num_classes, torch.device("cpu"))
    for rows, targets in zip(features.split(500), labels.split(500), strict=True):
        accumulator.add(rows, targets)
    return accumulator


def table(title: str, unit: str, costs: Costs) -> str:
    """One line of sizes, one of milliseconds, and the fitted exponent."""
    sizes = " | ".join(f"{size:,}" for size in costs)
    times = " | ".join(f"{1e3 * seconds:.1f}" for seconds in costs.values())
    rule = "|---" * (len(costs) + 2) + "|"
    grown = f"{exponent(costs):.2f}" if all(map(math.isfinite, costs.values())) else "–"
    return f"| {title} | {sizes} | exponent |\n{rule}\n| CPU ms per {unit} | {times} | {grown} |"
