"""Grid search on a validation split: the same grid size for every method; the test set is not used.

15 % of the training data replaces the test set. A grid whose best value lies on its edge is extended; the
other methods' grids then grow as well, so that no method gets more tries than another.
"""

import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from spherefed.assembly import InMemory
from spherefed.client.evaluation import GLOBAL_TEST, PERSONAL_TEST_BY_CLIENTS
from spherefed.engines.activity import Activity
from spherefed.errors import CalibrationError, ConfigError, FederationError
from spherefed.experiment import Experiment, with_settings
from spherefed.runs.directory import RunDirectory
from spherefed.runs.jobs import Job, Running, Watch
from spherefed.runs.runner import Engine, run

VALIDATION = 0.15
FIRST_SEED = 1000
"""Tuning uses seeds of its own, so that no reported partition was seen in tuning."""
MAX_POINTS = 16
"""A grid that still has its best on an edge after so many points is not extended further."""


@dataclass(slots=True)
class Search:
    """One method's grid as far as it has been tried: value → mean validation accuracy at each stage."""

    method: str
    experiment: Experiment
    path: str
    stage: str
    """What the method is judged by, of the names of its scores."""
    scores: dict[float, dict[str, float]] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return max(self.scores, key=lambda value: self.scores[value][self.stage])

    def next_value(self) -> float | None:
        """The value beyond the edge on which the best lies, or None if it lies inside."""
        values = sorted(self.scores)
        if self.best == values[-1]:
            return _rounded(values[-1] * values[-1] / values[-2])
        if self.best == values[0]:
            return _rounded(values[0] * values[0] / values[1])
        return None

    def neighbour(self) -> float:
        """The untried value nearest to the best one, for methods with fewer tries than the others."""
        values = sorted(self.scores)
        low, high = values[0] * values[0] / values[1], values[-1] * values[-1] / values[-2]
        nearest_is_low = self.best / low < high / self.best
        return _rounded(low if nearest_is_low else high)


def tune(
    methods: Mapping[str, Experiment],
    path: str,
    grids: Mapping[str, Sequence[float]],
    *,
    seeds: int,
    engine: Engine,
    in_memory: InMemory | None = None,
    watch: Watch | None = None,
) -> Iterator[Search]:
    """Try each method's grid, extend it, and make the grids equally large; yields after every value tried.

    All grids start with the same size, but in different ranges: MSE needs larger learning rates than cross-entropy.
    `watch` is kept up to date, for a display of progress.
    """
    score = partial(_score, engine=engine, in_memory=in_memory, watch={} if watch is None else watch)
    sizes = {len(set(grid)) for grid in grids.values()}
    if len(sizes) > 1:
        raise ConfigError(f"every method's grid must start with as many values as the others', got {sorted(sizes)}")
    if min(sizes) < 3 or min(min(grid) for grid in grids.values()) <= 0:
        few = min(grids.values(), key=lambda grid: (len(set(grid)), min(grid)))
        raise ConfigError(
            f"a grid needs at least three different positive values, got {', '.join(f'{value:g}' for value in few)}; "
            "for example 0.03, 0.1, 0.3"
        )
    searches = [Search(name, experiment, path, final_stage(experiment)) for name, experiment in methods.items()]
    for search in searches:
        for value in sorted(set(grids[search.method])):
            yield _tried(search, value, seeds, score)
        while (value_beyond := search.next_value()) is not None and len(search.scores) < MAX_POINTS:
            yield _tried(search, value_beyond, seeds, score)
    largest = max(len(search.scores) for search in searches)
    for search in searches:
        while len(search.scores) < largest:
            yield _tried(search, search.neighbour(), seeds, score)


def table(searches: Sequence[Search], seeds: int) -> dict[str, Any]:
    """What was tried, what it gave and what was chosen, for a file."""
    return {
        "validation": VALIDATION,
        "seeds": [FIRST_SEED + s for s in range(seeds)],
        "accuracy": GLOBAL_TEST + " on the validation split",
        "methods": {
            s.method: {
                "chosen": {s.path: s.best},
                "judged_by": s.stage,
                "on_edge": s.next_value() is not None,
                "tried": [{s.path: value, **s.scores[value]} for value in sorted(s.scores)],
            }
            for s in searches
        },
    }


def final_stage(experiment: Experiment) -> str:
    """The stage of the final model."""
    return "trained" if experiment.calibration is None else "calibrated"


def _tried(search: Search, value: float, seeds: int, score: Callable[[str, Experiment], dict[str, float]]) -> Search:
    experiment = with_settings(search.experiment, [f"{search.path}={value!r}"])
    experiment = replace(
        experiment, data=replace(experiment.data, validation=VALIDATION), evaluate_every=experiment.rounds
    )
    name = f"{search.method} {value:g}"
    results = [score(name, experiment.with_seed(FIRST_SEED + s)) for s in range(seeds)]
    stages = results[0].keys()
    search.scores[value] = {stage: statistics.fmean(r[stage] for r in results) for stage in stages}
    return search


def _score(
    name: str, experiment: Experiment, *, engine: Engine, in_memory: InMemory | None, watch: Watch
) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="spherefed-tune-"))
    out = folder / "run"
    running = watch[out] = Running(Job(name=name, experiment=experiment, out=out), Activity())
    try:
        for _ in run(experiment, out, engine=engine, in_memory=in_memory, activity=running.activity):
            pass
        result = RunDirectory(out).result()
        return {stage: _judged(accuracies) for stage, accuracies in result["accuracy"].items()}
    except (FederationError, CalibrationError):
        # Diverged (every update was rejected as not finite), or all features are zero: the value counts as 0.
        return dict.fromkeys(("trained", "calibrated") if experiment.calibration else ("trained",), 0.0)
    finally:
        del watch[out]
        shutil.rmtree(folder)


def _judged(accuracies: Mapping[str, float]) -> float:
    """The accuracy that decides: of the global model, or of the clients' own where there is no global one."""
    for name in (GLOBAL_TEST, PERSONAL_TEST_BY_CLIENTS):
        if name in accuracies:
            return accuracies[name]
    raise ConfigError(f"nothing to tune by: a run measured {', '.join(accuracies) or 'no accuracy'}")


def _rounded(value: float) -> float:
    """Two significant figures, so that extended grids stay readable."""
    return round(value, 1 - math.floor(math.log10(value)))
