"""Run an experiment on a fleet into a run directory: rounds, checkpoints, calibration, evaluation, result."""

import platform
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from spherefed.assembly import Assembly, assemble, build_classifier
from spherefed.data import sources
from spherefed.engines.local import InProcess, Parallel
from spherefed.errors import ConfigError, DataError
from spherefed.evaluation import GLOBAL_TEST, Counts, count, local_accuracies
from spherefed.experiment import Experiment, read
from spherefed.federation import Fleet, Round, calibrate, evaluate_on_clients, federate
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier
from spherefed.runs import Checkpoint, RunDirectory, read_json, read_lines
from spherefed.tensors import one_thread
from spherefed.workbench import Workbench


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How to compute; results do not depend on it (a device other than the CPU may round differently)."""

    workers: int = 0
    """Worker processes; 0: everything in this process."""
    device: str = "cpu"
    data_root: str | None = None
    """Where data sets lie; None: the environment's choice."""
    checkpoint_every: int = 1
    """Rounds between checkpoints."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.checkpoint_every < 1:
            raise ConfigError(
                f"workers must not be negative and checkpoint_every at least 1, "
                f"got {self.workers} and {self.checkpoint_every}"
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """What the runner says after each round."""

    index: int
    rounds: int
    loss: float
    accuracy: float | None
    """On the global test set; None in rounds that are not evaluated."""


def run(
    experiment: Experiment,
    out: Path,
    *,
    engine: Engine | None = None,
    resume: bool = False,
    trained: Path | None = None,
) -> Iterator[Progress]:
    """Run to the end, yielding after each round; the outcome is in the run directory.

    Stopping the iteration (or Ctrl-C) leaves a checkpoint of the last whole round to resume from. `trained` is a
    finished run that differs at most in its calibration: its rounds are taken over instead of run again.
    """
    engine = engine or Engine()
    directory = RunDirectory(out)
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    initial = assembly.initial()
    if resume:
        directory.check_same(experiment, assembly.partition)
        if directory.finished:
            return
    else:
        directory.begin(experiment, environment(experiment, engine), assembly.dataset.facts(), assembly.partition)
        if trained is not None:
            directory.adopt_rounds(RunDirectory(trained), experiment)
    checkpoint = directory.load_checkpoint() or Checkpoint(0, initial, {})
    with closing(_fleet(assembly, engine)) as fleet:
        model = checkpoint.model
        # Closed here and not when it is collected: stopping leaves its checkpoint at once.
        with closing(_rounds(assembly, fleet, directory, checkpoint, engine.checkpoint_every)) as rounds:
            for finished in rounds:
                model = finished.model
                yield finished.progress
        _finish(assembly, fleet, directory, model)


def run_to_end(
    experiment: Experiment, out: Path, *, engine: Engine | None = None, resume: bool = False
) -> dict[str, Any]:
    """Run without watching; the result."""
    for _ in run(experiment, out, engine=engine, resume=resume):
        pass
    return RunDirectory(out).result()


def load(run_directory: str | Path) -> Classifier:
    """The final (calibrated) module of a finished run, in eval mode."""
    path = Path(run_directory)
    model = RunDirectory(path).model()
    data = read_json(path / "dataset.json")
    bench = Workbench(build_classifier(read(path), tuple(data["input_shape"]), len(data["classes"])))
    bench.lay(model)
    return bench.classifier.eval()


def evaluate_run(run_directory: Path, data: str, *, device: str = "cpu", data_root: str | None = None) -> Counts:
    """Right answers of a finished run's final model on the test part of a data set."""
    classifier = load(run_directory).to(device)
    test = sources.load(data, data_root)
    if test.num_classes > classifier.num_classes:
        raise DataError(f"{data} has {test.num_classes} classes, the model of {run_directory} {classifier.num_classes}")
    try:
        with one_thread():
            return count(classifier, test.test, torch.device(device))
    except RuntimeError as error:
        raise DataError(
            f"the model of {run_directory} cannot read {data}, inputs {test.input_shape}: {error}"
        ) from error


def environment(experiment: Experiment, engine: Engine) -> dict[str, Any]:
    """What the result was computed with."""
    packages = ("spherefed", "torch", "numpy", "scipy", "scikit-learn", "safetensors")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": _commit(),
        "seed": experiment.seed,
        "device": engine.device,
        "workers": engine.workers,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "experiment_digest": experiment.digest(),
    }


@dataclass(frozen=True, slots=True)
class _Finished:
    model: ModelState
    progress: Progress


def _rounds(
    assembly: Assembly, fleet: Fleet, directory: RunDirectory, start: Checkpoint, checkpoint_every: int
) -> Generator[_Finished]:
    experiment = assembly.experiment
    unsaved: Checkpoint | None = None
    began = time.perf_counter()
    rounds = federate(fleet, start.model, assembly.plan(), start=start.next_round, memory=start.memory)
    try:
        for done in rounds:
            last = done.index + 1 == experiment.rounds
            due = last or (done.index + 1) % experiment.evaluate_every == 0
            accuracy = assembly.evaluate(done.model).accuracy if due else None
            now = time.perf_counter()
            directory.append_round(_line(done, accuracy, now - began), [asdict(r) for r in done.refused])
            began = now
            unsaved = Checkpoint(done.index + 1, done.model, done.memory)
            if last or (done.index + 1) % checkpoint_every == 0:
                directory.save_checkpoint(unsaved)
                unsaved = None
            yield _Finished(done.model, Progress(done.index, experiment.rounds, done.loss, accuracy))
    finally:
        if unsaved is not None:
            directory.save_checkpoint(unsaved)


def _finish(assembly: Assembly, fleet: Fleet, directory: RunDirectory, model: ModelState) -> None:
    """Calibrate, evaluate before and after, write the result."""
    experiment = assembly.experiment
    lines = read_lines(directory.path / "rounds.jsonl")
    accuracy = {"trained": _accuracies(assembly, fleet, directory, model)}
    traffic = {"train": _per_client([(r["bytes_down"], r["bytes_up"]) for r in lines], fleet)}
    seconds = {"train": sum(r["seconds"] for r in lines)}
    facts = None
    if experiment.calibration is not None:
        began = time.perf_counter()
        calibrated = calibrate(experiment.calibration, fleet, model, experiment.rounds)
        seconds["calibrate"] = time.perf_counter() - began
        model, facts = calibrated.model, calibrated.facts
        directory.append_ledger(asdict(r) for r in calibrated.refused)
        traffic["calibrate"] = _per_client([(calibrated.traffic.down, calibrated.traffic.up)], fleet)
        accuracy["calibrated"] = _accuracies(assembly, fleet, directory, model)
    directory.finish(
        model,
        {
            "rounds": experiment.rounds,
            "accuracy": accuracy,
            "calibration": facts,
            "traffic": traffic,
            "seconds": seconds,
            "weights_sha256": model.digest(),
        },
    )


def _accuracies(assembly: Assembly, fleet: Fleet, directory: RunDirectory, model: ModelState) -> dict[str, float]:
    accuracies = {GLOBAL_TEST: assembly.evaluate(model).accuracy}
    if assembly.experiment.data.held_out:
        local = evaluate_on_clients(fleet, model, assembly.experiment.rounds)
        directory.append_ledger(asdict(r) for r in local.refused)
        accuracies |= local_accuracies(local.counts)
    return accuracies


def _line(done: Round, accuracy: float | None, seconds: float) -> dict[str, Any]:
    return {
        "round": done.index,
        "lr": done.lr,
        "loss": done.loss,
        "num_examples": done.num_examples,
        "clients": list(done.clients),
        "seconds": seconds,
        "bytes_down": done.traffic.down,
        "bytes_up": done.traffic.up,
        "accuracy": {} if accuracy is None else {GLOBAL_TEST: accuracy},
    }


def _per_client(pairs: list[tuple[dict[Any, int], dict[Any, int]]], fleet: Fleet) -> dict[str, float]:
    """Mean bytes per client over the whole run, clients that were never asked included."""
    num_clients = len(fleet.clients)
    return {
        "down": sum(sum(down.values()) for down, _ in pairs) / num_clients,
        "up": sum(sum(up.values()) for _, up in pairs) / num_clients,
    }


def _fleet(assembly: Assembly, engine: Engine) -> InProcess | Parallel:
    if engine.workers:
        return Parallel(assembly, engine.workers, device=engine.device, data_root=engine.data_root)
    return InProcess(assembly.client, len(assembly.partition.parts))


def _commit() -> str | None:
    """The commit of the source tree this package is run from, if it is one."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
