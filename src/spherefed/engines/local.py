"""Clients on this machine: one after the other in this process, or side by side in worker processes.

Both give the same bits: every client's work is a pure function of the request, its data and named random streams,
and runs on one thread.
"""

import multiprocessing
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from spherefed.allocation import keep_freed_memory
from spherefed.assembly import Assembly, build_bench, load_data
from spherefed.client import Client
from spherefed.data.partition import Partition
from spherefed.data.sources import Dataset
from spherefed.engines.answering import answer_group, in_groups, largest_first, packed, unpacked
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.memory import MemoryDirectory, MemoryInRam, MemoryStore
from spherefed.messages import Failure, Reply, Request
from spherefed.stacking import Stack
from spherefed.tensors import num_bytes

TOGETHER_BYTES = 1 << 20
"""How much answers handed on together may take."""


class InProcess:
    """A fleet of clients that take turns in this process."""

    def __init__(
        self,
        client: Callable[[int], Client],
        num_clients: int,
        memory: MemoryStore | None = None,
        stack: Stack | None = None,
    ) -> None:
        self._client = client
        self._clients = range(num_clients)
        self._memory = MemoryInRam() if memory is None else memory
        self._stack = stack

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Small answers are handed on several at a time: training, then what is done with the answers, each in one go
        with its code in the processor's caches, take a twelfth less than by turns."""
        together = TOGETHER_BYTES // (num_bytes(request.model.params) + 1)
        waiting: list[Reply | Failure] = []
        for group in in_groups(clients, request, 0 if self._stack is None else self._stack.size):
            waiting += answer_group(self._client, group, request, self._memory, self._stack)
            if len(waiting) >= together:
                yield from waiting
                waiting = []
        yield from waiting

    def close(self) -> None:
        """Nothing to end."""


MAX_ATTEMPTS = 2
"""A client whose worker died is run once more; a second death is its own doing."""


class Parallel:
    """A fleet of worker processes, each with one thread, its own model and the shared data."""

    def __init__(
        self,
        assembly: Assembly,
        workers: int,
        *,
        device: str = "cpu",
        data_root: str | None = None,
        memory: Path | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._clients = range(len(assembly.partition.parts))
        self._context = multiprocessing.get_context("spawn")
        self._scratch = None
        if assembly.experiment.keeps_memory and memory is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="spherefed-memory-")
            memory = Path(self._scratch.name)
        self._job = _Job(assembly.experiment, _shared(assembly.dataset), data_root, assembly.partition, device, memory)
        self._workers = [self._hire() for _ in range(workers)]

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Whoever is free takes the next group; answers are handed on in the order asked."""
        groups = in_groups(clients, request, self._job.experiment.stack)
        waiting = deque(largest_first(groups, self._job.partition.parts))
        attempts = [0] * len(groups)
        done: dict[int, Sequence[Reply | Failure]] = {}
        message = packed(request)
        for index, worker in enumerate(self._workers):
            if worker.task != IDLE:  # left in mid-work by an `ask` that was not read to its end
                worker.process.kill()
                self._workers[index] = self._hire()
            _send(self._workers[index], "request", message)
        position = 0
        while position < len(groups):
            self._hand_out(waiting, groups, attempts)
            for index, worker in self._ready():
                task = worker.task
                try:
                    done[task] = [unpacked(reply) for reply in worker.connection.recv()]
                    self._workers[index] = replace(worker, task=IDLE)
                except (EOFError, OSError):
                    self._workers[index] = self._hire()
                    _send(self._workers[index], "request", message)
                    if attempts[task] < MAX_ATTEMPTS:
                        waiting.appendleft(task)
                    else:
                        cause = f"its worker process died {MAX_ATTEMPTS} times"
                        done[task] = [Failure(number, cause) for number in groups[task]]
            while position in done:
                yield from done.pop(position)
                position += 1

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _hand_out(self, waiting: "deque[int]", groups: Sequence[Sequence[int]], attempts: list[int]) -> None:
        for index, worker in enumerate(self._workers):
            if worker.task == IDLE and waiting:
                task = waiting.popleft()
                attempts[task] += 1
                self._workers[index] = replace(worker, task=task)
                _send(worker, "clients", groups[task])

    def _ready(self) -> "list[tuple[int, _Worker]]":
        busy = {w.connection: (i, w) for i, w in enumerate(self._workers) if w.task != IDLE}
        return [busy[connection] for connection in wait(list(busy)) if isinstance(connection, Connection)]

    def _hire(self) -> "_Worker":
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._job), daemon=True)
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


@dataclass(frozen=True, slots=True)
class _Job:
    experiment: Experiment
    dataset: Dataset | None
    """In shared memory; None: mapped from files, which the worker does for itself."""
    data_root: str | None
    partition: Partition
    device: str
    memory: Path | None
    """Where workers keep what clients remember; None if the method remembers nothing."""


def _send(worker: _Worker, kind: str, content: Any) -> None:
    with suppress(OSError):  # it is dead: reading from it will say so
        worker.connection.send((kind, content))


def _work(connection: "Connection[Any, Any]", job: _Job) -> None:
    """A worker's life: build the model once, then answer for one client after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    keep_freed_memory()
    data = job.dataset or load_data(job.experiment, job.data_root)
    bench = build_bench(job.experiment, data.input_shape, data.num_classes, job.device)
    assembly = Assembly(job.experiment, data, job.partition, bench)
    store: MemoryStore = MemoryInRam() if job.memory is None else MemoryDirectory(job.memory)
    stack = assembly.stack()
    request: Request | None = None
    try:
        while True:
            kind, content = connection.recv()
            if kind == "request":
                request = unpacked(content)
            else:
                assert request is not None
                answers = answer_group(assembly.client, content, request, store, stack)
                connection.send([packed(each) for each in answers])
    except (EOFError, OSError):
        os._exit(0)  # the parent has gone; nothing here needs saving


def _shared(dataset: Dataset) -> Dataset | None:
    """The data set with its tensors in shared memory, so that workers map them instead of copying.

    What is mapped from files already is not copied there: shared memory may be scarce, and files serve as well.
    """
    if dataset.mapped:
        return None
    for examples in (dataset.train, dataset.test):
        for tensor in (examples.inputs, examples.labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    return dataset
