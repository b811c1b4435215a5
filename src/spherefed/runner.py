"""Run an experiment on a fleet into a run directory: rounds, checkpoints, calibration, evaluation, result."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from spherefed.allocation import freed_memory_kept
from spherefed.assembly import Assembly, assemble, build_bench, on_device
from spherefed.checkpoints import Checkpoint
from spherefed.data import sources
from spherefed.engines.local import InProcess, Parallel
from spherefed.environment import environment
from spherefed.errors import ConfigError, DataError, RunError
from spherefed.evaluation import GLOBAL_TEST, Counts, count, local_accuracies, spread_over_clients
from spherefed.experiment import Experiment, read
from spherefed.federation import Fleet, Round, federate
from spherefed.gathering import Calibrated, LocalCounts, calibrate, evaluate_on_clients, reestimate
from spherefed.messages import LEARNED_HEAD, ModelState
from spherefed.nn.classifier import Classifier
from spherefed.nn.prototypes import coherence
from spherefed.personalization import BlendedFfc
from spherefed.runs import RunDirectory, read_json, read_lines
from spherefed.tensors import Tensors, digest, one_thread, under

if TYPE_CHECKING:
    from spherefed.engines.ray import RayFleet


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How to compute; results do not depend on it (a device other than the CPU may round differently)."""

    kind: Literal["local", "ray"] = "local"
    """Where clients live: on this machine, or on a Ray cluster."""
    workers: int = 0
    """Worker processes; 0: everything in this process. On Ray: actors; 0: as many as the cluster has CPUs."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto for the one of this machine; None: a Ray of this run's own."""
    device: str = "cpu"
    data_root: str | None = None
    """Where data sets lie; None: the environment's choice."""
    checkpoint_every: int = 1
    """Rounds between checkpoints; more, where rounds are so short that the disk is felt."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.checkpoint_every < 1:
            raise ConfigError(
                f"workers must not be negative and checkpoint_every at least 1, "
                f"got {self.workers} and {self.checkpoint_every}"
            )
        if self.kind not in ("local", "ray"):
            raise ConfigError(f"engine must be local or ray, got {self.kind!r}")
        if self.kind == "local" and self.address is not None:
            raise ConfigError("an address belongs to the ray engine: add --engine ray, or leave it out")


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
    finished run with the same training (`Experiment.training`): its rounds are taken over instead of run again.
    """
    engine = engine or Engine()
    begun = out if resume else trained
    if experiment.stack is None and begun is not None and (begun / "experiment.json").exists():
        experiment = replace(experiment, stack=read(begun).stack)  # whatever is suggested by now
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    surroundings = environment(assembly.experiment, engine=engine.kind, device=engine.device, workers=engine.workers)
    yield from run_assembled(
        assembly,
        lambda directory: _fleet(assembly, engine, directory),
        out,
        surroundings=surroundings,
        checkpoint_every=engine.checkpoint_every,
        resume=resume,
        trained=trained,
    )


class ClosingFleet(Fleet, Protocol):
    """A fleet that has something to end."""

    def close(self) -> None: ...


def run_assembled(
    assembly: Assembly,
    hire: Callable[[RunDirectory], ClosingFleet],
    out: Path,
    *,
    surroundings: Mapping[str, Any],
    checkpoint_every: int = 1,
    resume: bool = False,
    trained: Path | None = None,
) -> Iterator[Progress]:
    """`run` for parts that are assembled already, on the fleet that `hire` makes before anything is written."""
    experiment, directory, initial = assembly.experiment, RunDirectory(out), assembly.initial()
    if resume:
        directory.check_same(experiment, assembly.partition)
        if directory.finished:
            return
        directory.check_engine(str(surroundings["engine"]))
    else:
        directory.check_new()
    # Before anything is written: a cluster that cannot be reached leaves no half-begun run behind.
    with freed_memory_kept(), closing(hire(directory)) as fleet:
        if not resume:
            directory.begin(experiment, surroundings, assembly.dataset.facts(), assembly.partition)
        with directory.held():
            if trained is not None and not resume:
                directory.adopt_rounds(RunDirectory(trained), experiment)
            checkpoint = directory.load_checkpoint() or Checkpoint(0, initial, {})
            model = checkpoint.model
            # Closed here and not when it is collected: stopping leaves its checkpoint at once.
            with closing(_rounds(assembly, fleet, directory, checkpoint, checkpoint_every)) as rounds:
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


def load(run_directory: str | Path, client: int | None = None) -> Classifier:
    """The final (calibrated) module of a finished run, in eval mode; where a part is private, that of a client."""
    path = Path(run_directory)
    directory = RunDirectory(path)
    model, experiment = directory.model(), read(path)
    data = read_json(path / "dataset.json")
    bench = build_bench(experiment, tuple(data["input_shape"]), len(data["classes"]))
    if bench.private and client is None:
        raise RunError(f"{path}: a part of the model stays with each client; name the one whose model to load")
    if client is not None and not 0 <= client < experiment.partition.clients:
        raise RunError(f"{path} has clients 0 to {experiment.partition.clients - 1}, not {client}")
    memory = directory.memory().load(client, before=experiment.rounds) if client is not None else None
    bench.lay(model, under("private", memory) if memory else None)
    # Laid out as everybody expects it: files of tensors, among others, take no other layout.
    bench.classifier.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return bench.classifier.eval()


def evaluate_run(run_directory: Path, data: str, *, device: str = "cpu", data_root: str | None = None) -> Counts:
    """Right answers of a finished run's final model on the test part of a data set."""
    classifier = on_device(load(run_directory), device)
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
    try:
        for done, calibrated in _calibrated_rounds(assembly, fleet, start):
            last = done.index + 1 == experiment.rounds
            due = last or (done.index + 1) % experiment.evaluate_every == 0
            accuracy = assembly.global_accuracy(done.model) if due else None
            line = _line(done, accuracy)
            refused, model = [*done.refused], done.model
            if calibrated is not None:
                refused, model = [*refused, *calibrated.refused], calibrated.model
                line["calibrated"] = _calibrated_line(calibrated, assembly.global_accuracy(model))
            now = time.perf_counter()
            directory.append_round(line | {"seconds": now - began}, [asdict(r) for r in refused])
            began = now
            unsaved = Checkpoint(done.index + 1, model, done.memory)
            if last or (done.index + 1) % checkpoint_every == 0:
                directory.save_checkpoint(unsaved)
                unsaved = None
            yield _Finished(model, Progress(done.index, experiment.rounds, done.loss, accuracy))
    finally:
        if unsaved is not None:
            directory.save_checkpoint(unsaved)


def _calibrated_rounds(
    assembly: Assembly, fleet: Fleet, start: Checkpoint
) -> Iterator[tuple[Round, Calibrated | None]]:
    """The rounds, and after every m-th of them a calibration whose head the next one starts from (App. C.2)."""
    calibration, every = assembly.experiment.calibration, assembly.experiment.calibrate_every
    plan, going_on = assembly.plan(), start
    while going_on.next_round < plan.rounds:
        for done in federate(fleet, going_on.model, plan, start=going_on.next_round, memory=going_on.memory):
            going_on = Checkpoint(done.index + 1, done.model, done.memory)
            # The last round's calibration is that of the finished run.
            due = calibration is not None and every is not None and going_on.next_round % every == 0
            if calibration is None or not due or going_on.next_round == plan.rounds:
                yield done, None
                continue
            calibrated = calibrate(
                calibration, fleet, done.model, assembly.context(done.model, done.index), quorum=plan.quorum
            )
            yield done, calibrated
            going_on = replace(going_on, model=calibrated.model)
            break


def _finish(assembly: Assembly, fleet: Fleet, directory: RunDirectory, model: ModelState) -> None:
    """Re-estimate running statistics, calibrate, evaluate before and after that, write the result."""
    experiment = assembly.experiment
    lines = read_lines(directory.path / "rounds.jsonl")
    sums: Tensors = {}
    traffic = {"train": _per_client([(r["bytes_down"], r["bytes_up"]) for r in lines], fleet)}
    between = [(r["calibrated"]["bytes_down"], r["calibrated"]["bytes_up"]) for r in lines if "calibrated" in r]
    seconds = {"train": sum(r["seconds"] for r in lines)}
    facts = None
    if experiment.model.batch_statistics == "reestimate":
        began = time.perf_counter()
        reestimated = reestimate(fleet, model, experiment.rounds, quorum=experiment.quorum)
        seconds["reestimate"] = time.perf_counter() - began
        model = reestimated.model
        directory.append_ledger(asdict(r) for r in reestimated.refused)
        traffic["reestimate"] = _per_client([(reestimated.traffic.down, reestimated.traffic.up)], fleet)
    trained = model
    accuracy = {"trained": _accuracies(assembly, fleet, directory, model)}
    head = _head_facts(assembly, model)
    if experiment.calibration is not None:
        began = time.perf_counter()
        calibrated = calibrate(
            experiment.calibration,
            fleet,
            model,
            assembly.context(model, experiment.rounds),
            quorum=experiment.quorum,
        )
        seconds["calibrate"] = time.perf_counter() - began
        model, facts, sums = calibrated.model, calibrated.facts, calibrated.total
        directory.append_ledger(asdict(r) for r in calibrated.refused)
        traffic["calibrate"] = _per_client([*between, (calibrated.traffic.down, calibrated.traffic.up)], fleet)
        accuracy["calibrated"] = _accuracies(assembly, fleet, directory, model)
    personal = _personal(assembly, fleet, trained, sums)
    if personal is not None:
        accuracy["trained"] |= local_accuracies(personal.counts, personal=True)
        traffic["personalize"] = _per_client([(personal.traffic.down, personal.traffic.up)], fleet)
        directory.append_ledger(asdict(r) for r in personal.refused)
    directory.finish(
        model,
        {
            "rounds": experiment.rounds,
            "accuracy": accuracy,
            "calibration": facts,
            "head": head,
            "personal": None if personal is None else spread_over_clients(personal.clients, personal.counts),
            "traffic": traffic,
            "seconds": seconds,
            "weights_sha256": model.digest(),
            "statistics_sha256": digest(sums) if sums else None,
        },
    )


def _accuracies(assembly: Assembly, fleet: Fleet, directory: RunDirectory, model: ModelState) -> dict[str, float]:
    on_test = assembly.global_accuracy(model)
    accuracies = {} if on_test is None else {GLOBAL_TEST: on_test}
    if assembly.experiment.data.held_out and not assembly.bench.private:
        local = evaluate_on_clients(fleet, model, assembly.experiment.rounds, quorum=assembly.experiment.quorum)
        directory.append_ledger(asdict(r) for r in local.refused)
        accuracies |= local_accuracies(local.counts)
    return accuracies


def _head_facts(assembly: Assembly, model: ModelState) -> dict[str, Any]:
    """What kind of head was trained against, and its coherence where there is one head of several rows for all."""
    shared = LEARNED_HEAD not in assembly.bench.private and assembly.dataset.num_classes > 1
    return {
        "kind": assembly.experiment.model.head.kind,
        "coherence": coherence(assembly.bench.head_of(model)) if shared else None,
    }


def _personal(assembly: Assembly, fleet: Fleet, trained: ModelState, sums: Tensors) -> LocalCounts | None:
    """Every client's own model, made from the trained one or remembered, on that client's held-out examples."""
    experiment, personal = assembly.experiment, assembly.experiment.personalization
    if not experiment.data.held_out or (personal is None and not assembly.bench.private):
        return None
    extra = sums if isinstance(personal, BlendedFfc) else {}
    return evaluate_on_clients(
        fleet,
        trained,
        experiment.rounds,
        personalize=personal is not None,
        extra=extra,
        quorum=experiment.quorum,
    )


def _line(done: Round, accuracy: float | None) -> dict[str, Any]:
    return {
        "round": done.index,
        "lr": done.lr,
        "loss": done.loss,
        "num_examples": done.num_examples,
        "clients": list(done.clients),
        "bytes_down": done.traffic.down,
        "bytes_up": done.traffic.up,
        "accuracy": {} if accuracy is None else {GLOBAL_TEST: accuracy},
        **({} if done.consistency is None else {"consistency": done.consistency}),
    }


def _calibrated_line(calibrated: Calibrated, accuracy: float | None) -> dict[str, Any]:
    return {
        "accuracy": {} if accuracy is None else {GLOBAL_TEST: accuracy},
        "facts": calibrated.facts,
        "bytes_down": calibrated.traffic.down,
        "bytes_up": calibrated.traffic.up,
    }


def _per_client(pairs: list[tuple[dict[Any, int], dict[Any, int]]], fleet: Fleet) -> dict[str, float]:
    """Mean bytes per client over the whole run, clients that were never asked included."""
    num_clients = len(fleet.clients)
    return {
        "down": sum(sum(down.values()) for down, _ in pairs) / num_clients,
        "up": sum(sum(up.values()) for _, up in pairs) / num_clients,
    }


def _fleet(assembly: Assembly, engine: Engine, directory: RunDirectory) -> "InProcess | Parallel | RayFleet":
    memory = directory.memory() if assembly.experiment.keeps_memory else None
    if engine.kind == "ray":
        from spherefed.engines.ray import RayFleet

        return RayFleet(
            assembly,
            engine.workers,
            address=engine.address,
            device=engine.device,
            data_root=engine.data_root,
            memory=memory,
            deadline=assembly.experiment.deadline,
        )
    if engine.workers:
        path = None if memory is None else memory.path
        return Parallel(assembly, engine.workers, device=engine.device, data_root=engine.data_root, memory=path)
    return InProcess(assembly.client, len(assembly.partition.parts), memory, assembly.stack())
