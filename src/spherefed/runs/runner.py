"""Run an experiment on a fleet into a run directory: rounds with their evaluation and checkpoints, then the finish."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spherefed.acceleration.memory_reuse import freed_memory_kept
from spherefed.assembly import Assembly, InMemory, assemble
from spherefed.client.evaluation import GLOBAL_TEST, global_measures
from spherefed.engines.activity import Activity, published
from spherefed.engines.local import InProcess
from spherefed.engines.workers import Parallel
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, read_experiment
from spherefed.field_types import check_types
from spherefed.messages import ModelState
from spherefed.runs.directory import RunDirectory
from spherefed.runs.environment import describe_environment
from spherefed.runs.finish import finish_run
from spherefed.runs.head import check_additive
from spherefed.runs.head_start import ridge_start
from spherefed.runs.round_log import Checkpoint, RoundLog, calibrated_line, round_line
from spherefed.server.collection import Calibrated, calibrate
from spherefed.server.federation import Fleet, Plan, Round, federate

if TYPE_CHECKING:
    from spherefed.engines.ray import RayFleet

    EngineFleet = InProcess | Parallel | RayFleet


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How to compute; results do not depend on it (a device other than the CPU may round differently)."""

    kind: Literal["local", "ray"] = "local"
    """Where clients run: on this machine, or on a Ray cluster."""
    workers: int = 0
    """Number of worker processes; 0: everything in this process. With Ray: number of actors; 0: one per CPU."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto for the one on this machine; None: start Ray for this run."""
    device: str = "cpu"
    data_root: str | None = None
    """Folder of the data sets; None: as the environment says."""
    checkpoint_every: int = 1
    """Rounds between checkpoints; raise it if rounds are so short that writing them takes time."""
    keep_client_statistics: bool = False
    """Store the statistics of every client in the run, so that `spherefed head forget` needs no client."""

    def __post_init__(self) -> None:
        if self.kind not in ("local", "ray"):
            raise ConfigError(f"engine must be local or ray, got {self.kind!r}")
        check_types(self, "engine")
        if self.workers < 0 or self.checkpoint_every < 1:
            raise ConfigError(
                f"workers must not be negative and checkpoint_every at least 1, "
                f"got {self.workers} and {self.checkpoint_every}"
            )
        if self.kind == "local" and self.address is not None:
            raise ConfigError("an address belongs to the ray engine: add --engine ray, or leave it out")


@dataclass(frozen=True, slots=True)
class Progress:
    """What the runner reports after each round."""

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
    in_memory: InMemory | None = None,
    activity: Activity | None = None,
) -> Iterator[Progress]:
    """Assemble now and run while the result is iterated over, one item per round; the outcome is in the run directory.

    Stopping the iteration (or Ctrl-C) leaves a checkpoint of the last whole round to resume from. `trained` is a
    finished run with the same training (`Experiment.training_part`): its rounds are copied instead of run again.
    `activity` is kept up to date while clients work, for a display of progress within rounds.
    """
    engine, begun, given = engine or Engine(), out if resume else trained, in_memory or InMemory()
    if experiment.stack is None and begun is not None and (begun / "experiment.json").exists():
        # Keep the earlier run's stack, even if the default has changed.
        experiment = replace(experiment, stack=read_experiment(begun).stack)
    if resume:
        RunDirectory(out).check_parts(experiment, given.encoder)
    if engine.keep_client_statistics:
        check_additive(experiment.calibration)
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root, in_memory=in_memory)
    environment = describe_environment(
        assembly.experiment, engine=engine.kind, device=engine.device, workers=engine.workers, encoder=given.encoder
    )
    return run_assembled(
        assembly,
        lambda directory: make_fleet(assembly, engine, directory, in_memory, activity),
        out,
        environment=environment,
        checkpoint_every=engine.checkpoint_every,
        resume=resume,
        trained=trained,
        keep_client_statistics=engine.keep_client_statistics,
    )


class ClosableFleet(Fleet, Protocol):
    """A fleet that has to be closed."""

    def close(self) -> None: ...


def run_assembled(
    assembly: Assembly,
    fleet_for: Callable[[RunDirectory], ClosableFleet],
    out: Path,
    *,
    environment: Mapping[str, Any],
    checkpoint_every: int = 1,
    resume: bool = False,
    trained: Path | None = None,
    keep_client_statistics: bool = False,
) -> Iterator[Progress]:
    """`run` for parts that are assembled already, on the fleet that `fleet_for` makes before anything is written."""
    experiment, directory, initial = assembly.experiment, RunDirectory(out), assembly.initial()
    if not resume:
        directory.check_new()
    else:
        _check_resumable(directory, assembly, str(environment["engine"]))
        if directory.finished:
            return
    reuse = freed_memory_kept() if experiment.rounds else nullcontext()  # without steps, large statistics need it
    with reuse, closing(fleet_for(directory)) as fleet, directory.locked():
        if not resume:
            begun = {**environment, "frozen_sha256": assembly.local_model.frozen_digest()}
            directory.begin(experiment, begun, assembly.dataset.description(), assembly.partition)
        elif directory.finished:  # by another process, while this one waited
            return
        if trained is not None and not resume:
            directory.copy_rounds(RunDirectory(trained), experiment)
        log = directory.round_log(experiment)
        checkpoint = log.roll_back() or Checkpoint(0, initial, {})
        with log.keeping_rejections(), published(fleet, out):
            if checkpoint.next_round == 0 and assembly.config.start is not None:
                checkpoint = ridge_start(assembly, fleet, directory, log, initial)
            model = checkpoint.model
            # Closed here and not by the garbage collector, so that stopping writes a checkpoint at once.
            before = log.before or (Checkpoint(0, initial, {}) if checkpoint.next_round == 1 else None)
            with closing(_rounds(assembly, fleet, log, checkpoint, before, checkpoint_every)) as rounds:
                for model, progress in rounds:  # noqa: B007 - the last model is finished below
                    yield progress
            finish_run(assembly, fleet, directory, log, model, keep_client_statistics)


def _check_resumable(directory: RunDirectory, assembly: Assembly, engine: str) -> None:
    """Refuse a run that is not of this experiment, has been changed, or cannot be continued here."""
    directory.check_experiment(assembly.experiment)
    directory.check_inputs(assembly.dataset.description(), assembly.partition, assembly.local_model.frozen_digest())
    if directory.finished:
        directory.check_whole()
    else:
        directory.check_numerics()
        directory.check_engine(engine)


def run_to_end(
    experiment: Experiment,
    out: Path,
    *,
    engine: Engine | None = None,
    resume: bool = False,
    in_memory: InMemory | None = None,
) -> dict[str, Any]:
    """Run without watching; the result."""
    for _ in run(experiment, out, engine=engine, resume=resume, in_memory=in_memory):
        pass
    return RunDirectory(out).result()


def make_fleet(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory,
    in_memory: InMemory | None = None,
    activity: Activity | None = None,
) -> "EngineFleet":
    """The fleet of an engine, which writes what it does into `activity`.

    Client state is kept in the run directory if clients keep any.
    """
    encoder = None if in_memory is None else in_memory.encoder
    if engine.kind == "ray" and encoder is not None:
        raise ConfigError(
            "a module passed as encoder= cannot be sent to a Ray cluster: name its class, "
            "model.encoder.kind = 'package.module:Name', or use the local engine"
        )
    client_states = directory.client_states() if assembly.experiment.keeps_client_state else None
    where: dict[str, Any] = {"device": engine.device, "data_root": engine.data_root, "client_states": client_states}
    fleet: EngineFleet
    if engine.kind == "ray":
        from spherefed.engines.ray import RayFleet

        deadline = assembly.experiment.deadline
        fleet = RayFleet(assembly, engine.workers, address=engine.address, deadline=deadline, **where)
    elif engine.workers:
        fleet = Parallel(assembly, engine.workers, encoder=encoder, **where)
    else:
        fleet = InProcess(assembly.clients, client_states)
    if activity is not None:
        fleet.activity = activity
    return fleet


def _rounds(
    assembly: Assembly,
    fleet: Fleet,
    log: RoundLog,
    start: Checkpoint,
    before: Checkpoint | None,
    checkpoint_every: int,
) -> Generator[tuple[ModelState, Progress]]:
    """The rounds, evaluated and written when due; `before` is an earlier state than `start` (see `federate`)."""
    experiment, local_model, test = assembly.experiment, assembly.local_model, assembly.test
    rounds: Iterator[tuple[Round, Calibrated | None]]
    if experiment.calibrate_every is not None:
        rounds = _calibrated_rounds(assembly, fleet, start, before, log.claims())
    else:
        rounds = ((done, None) for done in _federate_from(start, before, fleet, assembly.plan()))
    unsaved: Checkpoint | None = None
    began = time.perf_counter()
    try:
        for done, calibrated in rounds:
            last = done.index + 1 == experiment.rounds
            due = last or (done.index + 1) % experiment.evaluate_every == 0
            measured = global_measures(local_model, done.model, test) if due else {"accuracy": {}}
            line = round_line(done, measured)
            rejected, model = [*done.rejected], done.model
            if calibrated is not None:
                rejected, model = [*rejected, *calibrated.rejected], calibrated.model
                line["calibrated"] = calibrated_line(calibrated, global_measures(local_model, model, test))
            now = time.perf_counter()
            log.append_round(line | {"seconds": now - began}, rejected)
            began = now
            unsaved = Checkpoint(done.index + 1, model, done.server_state)
            if last or (done.index + 1) % checkpoint_every == 0:
                log.save_checkpoint(unsaved)
                unsaved = None
            yield model, Progress(done.index, experiment.rounds, done.loss, measured["accuracy"].get(GLOBAL_TEST))
    finally:
        if unsaved is not None:
            log.save_checkpoint(unsaved)


def _calibrated_rounds(
    assembly: Assembly, fleet: Fleet, start: Checkpoint, before: Checkpoint | None, claims: dict[int, int]
) -> Iterator[tuple[Round, Calibrated | None]]:
    """The rounds, and after every m-th of them a calibration whose head the next round starts from (App. C.2).

    `claims` are the examples that clients claimed in rounds before `start`.
    """
    calibration, every = assembly.experiment.calibration, assembly.experiment.calibrate_every
    assert calibration is not None, "calibrate_every needs a calibration"
    assert every is not None
    plan, current = assembly.plan(), start
    while current.next_round < plan.rounds:
        for done in _federate_from(current, before, fleet, plan):
            before, current = current, Checkpoint(done.index + 1, done.model, done.server_state)
            claims.update(zip(done.clients, done.examples, strict=True))
            # The last round's calibration is that of the finished run.
            if current.next_round % every or current.next_round == plan.rounds:
                yield done, None
                continue
            context = assembly.context(done.model, done.index)
            limits = plan.limits.of_measuring(claims)
            calibrated = calibrate(calibration, fleet, done.model, context, quorum=plan.quorum, limits=limits)
            yield done, calibrated
            current = replace(current, model=calibrated.model)
            break


def _federate_from(start: Checkpoint, before: Checkpoint | None, fleet: Fleet, plan: Plan) -> Iterator[Round]:
    earlier = None if before is None else (before.model, before.server_state)
    first, state = start.next_round, start.server_state
    return federate(fleet, start.model, plan, start=first, server_state=state, before=earlier)
