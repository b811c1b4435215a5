"""Several runs, one after the other or side by side in processes of one thread each: the same bits either way.

A run that takes its rounds from another one waits for it. A process is started once and works off run after run. A
run whose process died is resumed once in a new one.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from spherefed import errors
from spherefed.assembly import InMemory
from spherefed.engines.activity import Activity
from spherefed.errors import ConfigError, EngineError, SpherefedError
from spherefed.experiment import Experiment, experiment_from_json, experiment_to_json
from spherefed.runs.local_only import train_alone
from spherefed.runs.runner import Engine, Progress, run

MAX_ATTEMPTS = 2
"""A run whose process died is resumed once; after a second death it has failed."""
PATIENCE = 10.0
"""Seconds that a process gets to write its checkpoint before it is killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run: what, where to, and the run that it takes its rounds from, if any."""

    name: str
    experiment: Experiment
    out: Path
    trained: Path | None = None
    """The run directory of a job with the same training, which comes first."""
    alone: bool = False
    """Clients train alone and nothing is averaged (`local_only.py`); `out` is then a folder of its own."""
    in_memory: InMemory | None = None
    """Data and encoder that were passed in memory: only for jobs in this process."""

    @property
    def label(self) -> str:
        """What a display of progress calls it."""
        return f"{self.name}, seed {self.experiment.seed}"


@dataclass(frozen=True, slots=True)
class JobRound:
    """A round of a job is done."""

    job: Job
    progress: Progress


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job is over; `error` says why it failed."""

    job: Job
    error: SpherefedError | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs now, and what its clients are doing."""

    job: Job
    activity: Activity


Watch = dict[Path, Running]
"""The jobs that run now, by their run directories."""


def run_jobs(
    jobs: Sequence[Job], *, engine: Engine, processes: int = 1, resume: bool = False, watch: Watch | None = None
) -> Iterator[JobRound | JobEnd]:
    """Run all jobs, in their order as far as processes are free; a failed job also fails those that wait for it.

    With `resume`, a job whose directory holds a run already goes on with it. Stopping the iteration ends the processes;
    every unfinished run can be resumed. `watch` is kept up to date, for a display of progress within rounds.
    """
    watch = {} if watch is None else watch
    if processes < 1:
        raise ConfigError(f"jobs must be at least 1, got {processes}")
    if processes > 1 and (engine.workers or engine.kind != "local"):
        raise ConfigError(
            f"with {processes} jobs side by side each run has one process, got engine {engine.kind!r} with "
            f"{engine.workers} workers; leave out --engine and --workers, or use --jobs 1"
        )
    if processes > 1 and any(job.in_memory is not None for job in jobs):
        raise ConfigError(f"data or an encoder passed in memory stay in this process, got {processes} jobs; use jobs=1")
    if processes == 1:
        return _in_turn(jobs, engine, resume, watch)
    return _side_by_side(jobs, engine, min(processes, len(jobs)), resume, watch)


def _in_turn(jobs: Sequence[Job], engine: Engine, resume: bool, watch: Watch) -> Iterator[JobRound | JobEnd]:
    failed: dict[Path, SpherefedError] = {}
    for job in jobs:
        error = failed.get(job.trained) if job.trained is not None else None
        if error is None:
            running = watch[job.out] = Running(job, Activity())
            try:
                for progress in _run_job(job, engine, resume, running.activity):
                    yield JobRound(job, progress)
            except SpherefedError as found:
                error = found
            finally:
                del watch[job.out]
        if error is not None:
            failed[job.out] = error
        yield JobEnd(job, error)


def _run_job(job: Job, engine: Engine, resume: bool, activity: Activity) -> Generator[Progress]:
    if job.alone:
        yield from train_alone(job.experiment, job.out, engine=engine, activity=activity)
        return
    begun = resume and (job.out / "experiment.json").exists()
    yield from run(
        job.experiment,
        job.out,
        engine=engine,
        resume=begun,
        trained=job.trained,
        in_memory=job.in_memory,
        activity=activity,
    )


def _side_by_side(
    jobs: Sequence[Job], engine: Engine, processes: int, resume: bool, watch: Watch
) -> Iterator[JobRound | JobEnd]:
    waiting, done = list(jobs), set[Path]()
    failed: dict[Path, SpherefedError] = {}
    unfinished = {job.out for job in jobs}
    with closing(_Processes(engine, processes)) as pool:
        while waiting or pool.busy:
            for job in [job for job in waiting if job.trained in failed]:
                waiting.remove(job)
                assert job.trained is not None
                failed[job.out] = failed[job.trained]
                yield JobEnd(job, failed[job.out])
            ready = [job for job in waiting if job.trained in done or job.trained not in unfinished]
            for job in ready[: pool.idle]:
                waiting.remove(job)
                watch[job.out] = Running(job, pool.start(job, resume))
            for event in pool.events() if pool.busy else ():
                if isinstance(event, JobEnd):
                    del watch[event.job.out]
                    if event.error is None:
                        done.add(event.job.out)
                    else:
                        failed[event.job.out] = event.error
                yield event


class _Processes:
    """Processes that each run one job at a time; they are started when they are first needed."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine, self._size = engine, size
        self._context = multiprocessing.get_context("spawn")
        self._started: list[_Process] = []

    @property
    def busy(self) -> bool:
        return any(process.job is not None for process in self._started)

    @property
    def idle(self) -> int:
        return self._size - sum(process.job is not None for process in self._started)

    def start(self, job: Job, resume: bool) -> Activity:
        """Give the job to a process that has none; what its clients will be doing."""
        process = next((each for each in self._started if each.job is None), None)
        if process is None:
            process = self._start_process()
            self._started.append(process)
        process.job, process.attempts = job, 1
        process.activity.reset()
        process.send(resume)
        return process.activity

    def events(self) -> Iterator[JobRound | JobEnd]:
        """Wait for news and pass it on."""
        busy = {process.connection: process for process in self._started if process.job is not None}
        for connection in wait(list(busy)):
            assert isinstance(connection, Connection)
            process = busy[connection]
            job = process.job
            assert job is not None
            event: JobRound | JobEnd | None
            try:
                kind, content = connection.recv()
            except (EOFError, OSError):
                event = self._replace(process, job)
            else:
                event = JobRound(job, content) if kind == "round" else JobEnd(job, _error(content))
                process.job = job if kind == "round" else None
            if event is not None:
                yield event

    def close(self) -> None:
        """End the processes, by their ids; each first writes the checkpoint of its last whole round."""
        for process in self._started:
            process.process.terminate()
        for process in self._started:
            process.process.join(timeout=PATIENCE)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()
            process.connection.close()

    def _replace(self, process: "_Process", job: Job) -> JobEnd | None:
        """A new process for one that died, which resumes the job; the job's end if it died before."""
        process.process.join()
        process.connection.close()
        fresh, attempts = self._start_process(process.activity), process.attempts
        self._started[self._started.index(process)] = fresh
        if attempts >= MAX_ATTEMPTS:
            return JobEnd(job, EngineError(f"{job.out}: its process died {attempts} times; it can be resumed"))
        fresh.job, fresh.attempts = job, attempts + 1
        fresh.send(resume=True)
        return None

    def _start_process(self, activity: Activity | None = None) -> "_Process":
        ours, theirs = self._context.Pipe()
        shared = activity or self._context.RawValue(Activity)
        process = self._context.Process(target=_work, args=(theirs, self._engine, shared), daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours, shared)


@dataclass(slots=True)
class _Process:
    process: Any
    connection: "Connection[Any, Any]"
    activity: Activity
    """In shared memory."""
    job: Job | None = None
    """What it works on; None: nothing."""
    attempts: int = 0

    def send(self, resume: bool) -> None:
        assert self.job is not None
        job = self.job
        with suppress(OSError):  # the process is dead: reading from it reports that
            experiment = experiment_to_json(job.experiment)
            self.connection.send((job.name, experiment, job.out, job.trained, job.alone, resume))


def _work(connection: "Connection[Any, Any]", engine: Engine, activity: Activity) -> None:
    """The loop of a process: run what it is sent, report rounds and ends, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _interrupt)
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt, EOFError, OSError):  # ended by the parent, or the parent is gone
        while True:
            name, content, out, trained, alone, resume = connection.recv()
            job = Job(name=name, experiment=experiment_from_json(content), out=out, trained=trained, alone=alone)
            _report(_run_job(job, engine, resume, activity), job, connection.send)
    os._exit(0)


def _report(rounds: Generator[Progress], job: Job, send: Callable[[Any], None]) -> None:
    try:
        with closing(rounds):
            for progress in rounds:
                send(("round", progress))
        send(("end", None))
    except SpherefedError as error:
        send(("end", (type(error).__name__, str(error))))
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that cannot be written to
        send(("end", ("EngineError", f"{job.out}: {error}")))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _error(content: tuple[str, str] | None) -> SpherefedError | None:
    if content is None:
        return None
    kind, message = content
    found: SpherefedError = getattr(errors, kind, EngineError)(message)
    return found
