"""Several methods on identical partitions over several seeds: the runs behind a table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spherefed.experiment import Experiment
from spherefed.runner import Engine, Progress, run


@dataclass(frozen=True, slots=True)
class Step:
    """Where a comparison is: this method and seed have got so far."""

    method: str
    seed: int
    progress: Progress


def compare(
    methods: Mapping[str, Experiment], seeds: int, out: Path, *, engine: Engine, resume: bool = False
) -> Iterator[Step]:
    """Run every method for seeds 0 … n−1, each into `out/METHOD/seed-S`, yielding after every round.

    A method whose training is that of an earlier one (they differ in calibration or personalization) goes on from the
    earlier one's trained model, and from what its clients remember.
    """
    for seed in range(seeds):
        trained: dict[str, Path] = {}
        for name, method in methods.items():
            experiment = method.with_seed(seed)
            path = out / name / f"seed-{seed}"
            key = experiment.training().digest()
            going_on = resume and (path / "experiment.json").exists()
            for progress in run(experiment, path, engine=engine, resume=going_on, trained=trained.get(key)):
                yield Step(name, seed, progress)
            trained.setdefault(key, path)


def num_steps(methods: Mapping[str, Experiment], seeds: int) -> int:
    """How many rounds `compare` will yield when nothing was run before."""
    return seeds * sum(experiment.rounds for experiment in shared_training(methods))


def shared_training(methods: Mapping[str, Experiment]) -> list[Experiment]:
    """One experiment per training run: methods that differ only in what comes after it share it."""
    return list({e.training().digest(): e for e in methods.values()}.values())
