"""Run, compare and tune experiments from Python."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from spherefed.api.comparison import Comparison
from spherefed.api.inputs import (
    Inputs,
    check_call,
    check_methods,
    exchanged,
    tuned_for,
    untuned,
    untuned_run,
    with_inputs,
    with_values,
)
from spherefed.api.progress import show_progress
from spherefed.api.result import OutputFolder, Result
from spherefed.api.tables import data_frame
from spherefed.assembly import InMemory
from spherefed.errors import CalibrationError, ConfigError, FederationError
from spherefed.experiment import Experiment
from spherefed.recipes import read_tuned
from spherefed.recipes.methods import Settings, with_method
from spherefed.runs import comparison, runner, tuning
from spherefed.runs.directory import RunDirectory, write_json
from spherefed.runs.runner import Engine, Progress
from spherefed.schema import shown

DEFAULT_METHODS = ("fedavg", "fedavg+ffc", "fedavg+spherefed")


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    progress: bool = True,
    track: str | None = None,
    **inputs: Unpack[Inputs],
) -> Result:
    """Run an experiment to its end.

    `inputs` are data=, test=, clients=, encoder=, image_key= and label_key= (see `Inputs`). Without `out` the run
    directory is temporary and lives as long as the result. `progress` shows bars in a terminal or a notebook, and
    writes a line to standard error every 10 seconds elsewhere. `track` is "tensorboard" (event files in the run
    directory) or "mlflow" (mlflow.db in the current folder, or MLFLOW_TRACKING_URI).

    >>> import spherefed as sf
    >>> result = sf.run(sf.recipe("digits", rounds=1), progress=False)
    >>> result.rounds, result.accuracy > 0.1
    (1, True)
    """
    check_call(engine, inputs)
    named, in_memory = with_inputs(experiment, **inputs)
    if sentence := untuned_run(experiment, named):
        warnings.warn(sentence, stacklevel=2)
    folder = OutputFolder(out)
    label = f"{named.name}, seed {named.seed}"
    with (
        _tracking(track, folder.path, out) as follow,
        show_progress(label, named.rounds, bars=progress, lines=progress) as view,
    ):
        activity = view.watch_run(named, folder.path)
        for step in runner.run(
            named, folder.path, engine=engine, resume=resume, in_memory=in_memory, activity=activity
        ):
            view.advance(folder.path, step)
            follow(folder.path)
    if sentence := RunDirectory(folder.path).divergence():
        warnings.warn(sentence, stacklevel=2)
    return Result(folder.path, encoder=in_memory.encoder, folder=folder)


def iter_rounds(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    **inputs: Unpack[Inputs],
) -> Iterator[Progress]:
    """`run`, one round after the other: yields the loss and the accuracy of every round.

    With `out`, stopping the iteration leaves a checkpoint from which `run(…, out=out, resume=True)` continues.
    """
    check_call(engine, inputs)
    named, in_memory = with_inputs(experiment, **inputs)
    if sentence := untuned_run(experiment, named):
        warnings.warn(sentence, stacklevel=2)
    folder = OutputFolder(out)
    yield from runner.run(named, folder.path, engine=engine, resume=resume, in_memory=in_memory)


def compare(
    experiment: Experiment,
    methods: Sequence[str] | Mapping[str, Experiment] = DEFAULT_METHODS,
    *,
    seeds: int = 3,
    tuned: "Settings | Tuned | str | Path | None" = None,
    out: str | Path | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    progress: bool = True,
    track: str | None = None,
    **inputs: Unpack[Inputs],
) -> Comparison:
    """Run several methods for seeds 0 … n−1 on the same partitions.

    `methods` are names, `BASE` or `BASE+OVERLAY`, or experiments by name. `tuned` are hyper-parameters per method, from
    `tune` or from a file of `spherefed tune`; by default those of the recipe, and for experiments their own. A warning
    names methods without any, and all methods if you pass other data or another encoder than those that the recipe was
    tuned for. Another warning names runs that failed, such as trainings that diverged: the result is without them.
    """
    check_call(engine, inputs)
    named, in_memory = with_inputs(experiment, **inputs)
    if not isinstance(seeds, int):
        raise ConfigError(f"seeds must be the number of seeds, a whole number, got {seeds!r}; for example seeds=3")
    values = _settings(tuned, experiment)
    if isinstance(methods, Mapping):
        check_methods(list(methods))
        built = {name: with_inputs(each, **inputs)[0] for name, each in methods.items()}
        if tuned is not None:
            built = with_values(built, values)
            if sentence := untuned({name: each for name, each in built.items() if name not in values}, {}):
                warnings.warn(sentence, stacklevel=2)
    else:
        check_methods(methods)
        built = {name: with_method(named, name, values) for name in methods}
        other = experiment.name if tuned is None and values and exchanged(experiment, named) else None
        if (len(built) > 1 or other) and (sentence := untuned(built, values, other)):
            warnings.warn(sentence, stacklevel=2)
    if not built or seeds < 1:
        raise ConfigError(
            f"compare needs at least one method and one seed, got {len(built)} and {seeds}; for example "
            "methods=['fedavg', 'fedavg+spherefed'], seeds=3"
        )
    use = engine or Engine()
    folder = OutputFolder(out)
    steps = comparison.num_steps(built, seeds)
    with (
        _tracking(track, folder.path, out) as follow,
        show_progress(named.name, steps, bars=progress, lines=progress) as view,
    ):
        try:
            for step in comparison.compare(
                built, seeds, folder.path, engine=use, resume=resume, in_memory=in_memory, watch=view.watch
            ):
                view.advance(step.out, step.progress)
                follow(step.out)
        except (FederationError, CalibrationError) as failure:  # of some runs; the others have gone on
            if not _results(folder, built, seeds, in_memory):
                raise
            warnings.warn(str(failure), stacklevel=2)
    results = _results(folder, built, seeds, in_memory)
    for name, result in ((name, result) for name, found in results.items() for result in found):
        if sentence := RunDirectory(result.path).divergence():
            warnings.warn(f"{name}, seed {result.experiment.seed}: {sentence}", stacklevel=2)
    return Comparison(folder.path, results)


def _results(folder: OutputFolder, methods: Iterable[str], seeds: int, in_memory: InMemory) -> dict[str, list[Result]]:
    """The finished runs of each method; a method without any is left out."""
    paths = {name: [folder.path / name / f"seed-{seed}" for seed in range(seeds)] for name in methods}
    finished = {name: [path for path in each if RunDirectory(path).finished] for name, each in paths.items()}
    return {
        name: [Result(path, encoder=in_memory.encoder, folder=folder) for path in each]
        for name, each in finished.items()
        if each
    }


@dataclass(frozen=True, eq=False, slots=True)
class Tuned:
    """What `tune` chose, and everything that it tried."""

    chosen: Mapping[str, Mapping[str, float]]
    """Method → path → value, for `compare(…, tuned=…)`."""
    table: Mapping[str, Any]
    """The content of a file of `spherefed tune`."""

    def records(self) -> list[dict[str, Any]]:
        """One dict per method and value tried, with the validation accuracy of each stage."""
        return [{"method": name, **tried} for name, entry in self.table["methods"].items() for tried in entry["tried"]]

    def frame(self) -> Any:
        """`records` as a pandas DataFrame."""
        return data_frame(self.records())

    def __repr__(self) -> str:
        tried = {name: len(entry["tried"]) for name, entry in self.table["methods"].items()}
        parts = (
            f"{name}: {path} = {value:g}, best of {tried[name]}"
            for name, values in self.chosen.items()
            for path, value in values.items()
        )
        return f"Tuned({'; '.join(parts)})"

    def save(self, path: str | Path) -> None:
        """Write the file that `spherefed compare --tuned` reads."""
        write_json(Path(path), self.table)


def tune(
    experiment: Experiment,
    methods: Sequence[str] = ("fedavg", "fedavg+spherefed"),
    grid: Mapping[str, Sequence[float]] | None = None,
    *,
    seeds: int = 3,
    engine: Engine | None = None,
    progress: bool = True,
    **inputs: Unpack[Inputs],
) -> Tuned:
    """Choose one hyper-parameter per method on a validation split; the test set is not used.

    `grid` is one path with at least three values, by default local.lr from 0.01 to 1. A grid whose best value lies on
    its edge is extended, and all methods try equally many values.
    """
    grid = grid or {"local.lr": (0.01, 0.03, 0.1, 0.3, 1.0)}
    check_methods(methods)
    if not isinstance(grid, Mapping) or not all(_is_numbers(values) for values in grid.values()):
        raise ConfigError(
            f"grid must be a path with a list of numbers, got {shown(grid)}; for example "
            "{'local.lr': [0.03, 0.1, 0.3]}"
        )
    if len(grid) != 1:
        raise ConfigError(
            f"grid must name one path, got {', '.join(grid) or 'none'}; for example {{'local.lr': [0.03, 0.1, 0.3]}}"
        )
    ((path, values),) = grid.items()
    check_call(engine, inputs)
    named, in_memory = with_inputs(experiment, **inputs)
    built = {name: with_method(named, name, {}) for name in methods}
    searches: dict[str, tuning.Search] = {}
    grids = dict.fromkeys(built, values)
    use, rounds = engine or Engine(), seeds * named.rounds
    steps = len(built) * len(set(values)) * rounds
    with show_progress(f"tune {path}", steps, bars=progress, lines=progress) as view:
        for search in tuning.tune(built, path, grids, seeds=seeds, engine=use, in_memory=in_memory, watch=view.watch):
            searches[search.method] = search
            if len(search.scores) >= len(set(values)) and search.next_value() is not None:
                view.total += rounds  # the grid grows
    table = tuning.table(list(searches.values()), seeds)
    return Tuned({name: entry["chosen"] for name, entry in table["methods"].items()}, table)


def _is_numbers(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values)


def _tracking(track: str | None, path: Path, out: str | Path | None) -> AbstractContextManager[Callable[[Path], None]]:
    if track is None:
        return nullcontext(lambda run: None)
    if track == "tensorboard" and out is None:
        raise ConfigError(
            "track='tensorboard' writes into the run directory, which is temporary without out=; give out="
        )
    from spherefed.tracking.following import tracked

    return tracked(track, path)


def _settings(tuned: "Settings | Tuned | str | Path | None", experiment: Experiment) -> Settings:
    if tuned is None:
        return tuned_for(experiment)
    if isinstance(tuned, Tuned):
        return tuned.chosen
    if isinstance(tuned, str | Path):
        return read_tuned(Path(tuned))
    if not isinstance(tuned, Mapping) or not all(isinstance(values, Mapping) for values in tuned.values()):
        raise ConfigError(
            f"tuned must be a result of sf.tune, a file of `spherefed tune`, or values by method and path, got "
            f"{shown(tuned)}; for example {{'fedavg': {{'local.lr': 0.1}}}}"
        )
    return tuned
