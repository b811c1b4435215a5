"""Clients in parallel in worker processes on this machine.

The bits are those of `InProcess`: every client's work is a pure function of the request, its data and named random
streams, and runs on one thread.
"""

import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.assembly import Assembly, build_parts, load_data
from spherefed.client.client_state import StateDirectory
from spherefed.client.handle import answer_group
from spherefed.data.partition import Partition
from spherefed.data.sources import Dataset
from spherefed.engines.activity import Activity
from spherefed.engines.deadlines import Deadline
from spherefed.engines.local import in_groups
from spherefed.engines.transfer import from_arrays, largest_first, to_arrays
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.messages import Failure, Reply, Request, Train

MAX_ATTEMPTS = 2
"""A client whose worker died is run once more; after a second death it counts as failed."""
START_SECONDS = 120.0
"""Beside the deadline, the time that a worker process has to start."""
CLOSE_SECONDS = 5.0
"""Seconds for idle worker processes to end by themselves."""
READY = "ready"
"""What a worker sends first."""


class Parallel:
    """A fleet of worker processes, each with one thread, its own model and the shared data."""

    def __init__(
        self,
        assembly: Assembly,
        workers: int,
        *,
        device: str = "cpu",
        data_root: str | None = None,
        client_states: StateDirectory | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        """`encoder` is a module that the caller passed: workers are then forked, because it is in no file."""
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._clients = range(len(assembly.partition.parts))
        self.activity = Activity()
        self._forks = encoder is not None
        self._scratch = None
        if assembly.experiment.keeps_client_state and client_states is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="spherefed-states-")
            client_states = StateDirectory(Path(self._scratch.name))
        self._job = _Job(
            assembly.experiment,
            _shared(assembly.dataset),
            data_root,
            assembly.partition,
            device,
            client_states,
            encoder,
        )
        self._deadline = assembly.experiment.deadline
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._start_worker())

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """A free worker takes the next group; answers are passed on in the order asked.

        A worker that does not answer within the deadline, stuck or stopped, is killed, and its clients have failed.
        """
        groups = in_groups(clients, request, self._job.experiment.stack or 0)
        in_training = isinstance(request, Train)  # statistics are large, so they must not wait for their turn
        waiting = deque(largest_first(groups, self._job.partition.parts) if in_training else range(len(groups)))
        attempts = [0] * len(groups)
        done: dict[int, Sequence[Reply | Failure]] = {}
        message = to_arrays(request)
        for index, worker in enumerate(self._workers):
            if worker.task != IDLE:  # still busy, because an earlier `ask` was not read to its end
                worker.kill()
                self._workers[index] = self._start_worker()
            self._send(self._workers[index], "request", message)
        position = 0
        self.activity.begin(request, clients, self._job.partition.parts)
        while position < len(groups):
            self._assign(waiting, groups, attempts)
            for index, worker in self._ready():
                task = worker.task
                try:
                    answers = self._received(index, worker)
                except (EOFError, OSError):
                    expired = self._replace(index, message)
                    if not expired and attempts[task] < MAX_ATTEMPTS:
                        waiting.appendleft(task)
                        continue
                    died = f"its worker process died {MAX_ATTEMPTS} times"
                    cause = f"did not answer within {self._deadline:g} s" if expired else died
                    answers = [Failure(number, cause) for number in groups[task]]
                if answers is not None:
                    done[task] = answers
                    self.activity.advance(groups[task], self._job.partition.parts)
            while position in done:
                yield from done.pop(position)
                position += 1

    def close(self) -> None:
        """End the worker processes; one that still works is killed, because its answer is not needed."""
        for worker in self._workers:
            if worker.task != IDLE:
                worker.kill()
            worker.connection.close()
        end = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.process.join(timeout=max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                worker.kill()
                worker.process.join()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _received(self, index: int, worker: "_Worker") -> Sequence[Reply | Failure] | None:
        """The answers of a worker's task; None if it has only just started."""
        content = worker.connection.recv()
        if content == READY:
            self._workers[index] = replace(worker, ready=True, deadline=self._until_reply(worker, ready=True))
            return None
        worker.deadline.cancel()
        self._workers[index] = replace(worker, task=IDLE, deadline=Deadline())
        return [from_arrays(reply) for reply in content]

    def _replace(self, index: int, message: Any) -> bool:
        """A new worker in the place of a dead one; whether that one was killed because its deadline was over."""
        expired = self._workers[index].deadline.cancel()
        self._workers[index] = self._start_worker()
        self._send(self._workers[index], "request", message)
        return expired

    def _assign(self, waiting: "deque[int]", groups: Sequence[Sequence[int]], attempts: list[int]) -> None:
        for index, worker in enumerate(self._workers):
            if worker.task == IDLE and waiting:
                task = waiting.popleft()
                attempts[task] += 1
                self._workers[index] = replace(
                    worker, task=task, deadline=self._until_reply(worker, ready=worker.ready)
                )
                self._send(worker, "clients", groups[task])

    def _until_reply(self, worker: "_Worker", *, ready: bool) -> Deadline:
        """From now on, the worker has as long as a client may take; longer if it is still starting."""
        worker.deadline.cancel()
        if self._deadline is None:
            return Deadline()
        return Deadline(self._deadline if ready else self._deadline + START_SECONDS, worker.process.kill)

    def _send(self, worker: "_Worker", kind: str, content: Any) -> None:
        """Send, unless the worker is dead, which reading from it reports; a stopped one would block the pipe."""
        limit = self._until_reply(replace(worker, deadline=Deadline()), ready=worker.ready)
        with suppress(OSError):
            worker.connection.send((kind, content))
        limit.cancel()

    def _ready(self) -> "list[tuple[int, _Worker]]":
        busy = {w.connection: (i, w) for i, w in enumerate(self._workers) if w.task != IDLE}
        return [busy[connection] for connection in wait(list(busy)) if isinstance(connection, Connection)]

    def _start_worker(self) -> "_Worker":
        context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        ours, theirs = context.Pipe()
        # A forked process inherits the other pipes; open, they would hide the end of this process from the workers.
        inherited = [ours, *(worker.connection for worker in self._workers)] if self._forks else []
        process = context.Process(target=_work, args=(theirs, self._job, inherited), daemon=True)
        with (
            warnings.catch_warnings()
        ):  # Python warns of a fork beside threads; a worker uses one thread from the start
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours, IDLE)


IDLE = -1


@dataclass(frozen=True, slots=True)
class _Worker:
    process: Any
    connection: "Connection[Any, Any]"
    task: int
    """The number of the group it is working on, or IDLE."""
    ready: bool = False
    """Whether it has started."""
    deadline: Deadline = field(default_factory=Deadline)
    """When its task has to be done."""

    def kill(self) -> None:
        self.deadline.cancel()
        self.process.kill()


@dataclass(frozen=True, slots=True)
class _Job:
    experiment: Experiment
    dataset: Dataset | None
    """In shared memory; None: the worker maps it from files itself."""
    data_root: str | None
    partition: Partition
    device: str
    client_states: StateDirectory | None
    """Where workers keep client state; None if clients keep none."""
    encoder: nn.Module | None = None
    """Passed in memory; None: the experiment names it."""


def _work(connection: "Connection[Any, Any]", job: _Job, inherited: "Sequence[Connection[Any, Any]]" = ()) -> None:
    """The loop of a worker: build the model once, then answer for one group after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    data = job.dataset or load_data(job.experiment, job.data_root)
    clients = build_parts(
        job.experiment, data, job.partition, device=job.device, data_root=job.data_root, encoder=job.encoder
    ).clients
    store = job.client_states
    stacked = bool(job.experiment.stack)
    request: Request | None = None
    try:
        connection.send(READY)
        while True:
            kind, content = connection.recv()
            if kind == "request":
                request = from_arrays(content)
            else:
                assert request is not None
                answers = answer_group(clients, content, request, store, stacked=stacked)
                connection.send([to_arrays(each) for each in answers])
    except (EOFError, OSError):
        os._exit(0)  # the parent has ended; there is nothing to save


def _shared(dataset: Dataset) -> Dataset | None:
    """The data set with its tensors in shared memory, so that workers map them instead of copying.

    Data that is mapped from files is not copied: shared memory may be scarce, and workers can map the files too.
    """
    if dataset.memory_mapped:
        return None
    for examples in (dataset.train, dataset.test):
        for tensor in (examples.inputs, examples.labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    return dataset
