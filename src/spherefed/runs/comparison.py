"""Several methods on identical partitions over several seeds: the runs behind a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.assembly import InMemory
from spherefed.errors import CalibrationError, FederationError, SpherefedError
from spherefed.experiment import Experiment
from spherefed.runs.jobs import Job, JobEnd, JobRound, Watch, run_jobs
from spherefed.runs.round_log import ROUNDS, read_lines
from spherefed.runs.runner import Engine, Progress


@dataclass(frozen=True, slots=True)
class Step:
    """Where a comparison is: this method and seed have got so far."""

    method: str
    seed: int
    out: Path
    """The directory of the run."""
    progress: Progress


def compare(
    methods: Mapping[str, Experiment],
    seeds: int,
    out: Path,
    *,
    engine: Engine,
    resume: bool = False,
    jobs: int = 1,
    in_memory: InMemory | None = None,
    watch: Watch | None = None,
) -> Iterator[Step]:
    """Run every method for seeds 0 … n−1, each into `out/METHOD/seed-S`, yielding after every round.

    A method whose training is that of an earlier one (they differ in calibration or personalization) goes on from the
    earlier one's trained model, and from the states of its clients. `jobs` runs go side by side. `watch` shows what
    happens within rounds.

    If a federation or a calibration fails, such as a training that diverges, the other runs go on; the error is raised
    at the end.
    """
    planned = comparison_jobs(methods, seeds, out, in_memory)
    failed: list[JobEnd] = []
    for event in run_jobs(planned, engine=engine, processes=jobs, resume=resume, watch=watch):
        if isinstance(event, JobRound):
            yield Step(event.job.name, event.job.experiment.seed, event.job.out, event.progress)
        elif isinstance(event.error, FederationError | CalibrationError):
            failed.append(event)
        elif event.error is not None:
            raise type(event.error)(f"{event.job.label}: {event.error}") from event.error
    if failed:
        raise _failure(failed, len(planned), out)


def _failure(failed: Sequence[JobEnd], num_runs: int, out: Path) -> SpherefedError:
    """One error for all runs that failed, which says that the others are finished; a cause that they share once."""
    runs: dict[str, list[str]] = {}
    for end in failed:
        runs.setdefault(str(end.error), []).append(end.job.label)
    causes = "; ".join(f"{' and '.join(labels)}: {cause}" for cause, labels in runs.items())
    finished = num_runs - len(failed)
    if finished:
        causes += f"; the other {finished} of {num_runs} runs are finished: spherefed report {out}"
    return (FederationError if any(isinstance(end.error, FederationError) for end in failed) else CalibrationError)(
        causes
    )


def comparison_jobs(
    methods: Mapping[str, Experiment], seeds: int, out: Path, in_memory: InMemory | None = None
) -> list[Job]:
    """One job per method and seed; of those with the same training, the first one trains."""
    jobs: list[Job] = []
    for seed in range(seeds):
        trained: list[tuple[Experiment, Path]] = []
        for name, method in methods.items():
            experiment, path = method.with_seed(seed), out / name / f"seed-{seed}"
            # By value and not by digest: own components of equal names and fields may be of different classes.
            training = experiment.training_part()
            before = next((earlier for part, earlier in trained if part == training), None)
            jobs.append(Job(name=name, experiment=experiment, out=path, trained=before, in_memory=in_memory))
            trained.append((training, path))
    return jobs


def rounds_before(directories: Iterable[Path]) -> dict[Path, int]:
    """Rounds in each of these run directories, as far as an interrupted command has left any behind."""
    return {out: len(read_lines(out / ROUNDS)) for out in directories if (out / ROUNDS).exists()}


def num_steps(methods: Mapping[str, Experiment], seeds: int) -> int:
    """How many rounds `compare` will yield when nothing was run before."""
    return seeds * sum(experiment.rounds for experiment in shared_training(methods))


def shared_training(methods: Mapping[str, Experiment]) -> list[Experiment]:
    """One experiment per training run: methods that differ only in what comes after it share it."""
    shared: list[Experiment] = []
    for experiment in methods.values():
        if all(experiment.training_part() != other.training_part() for other in shared):
            shared.append(experiment)
    return shared
