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
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherefed.assembly import Assembly, build_bench, load_data
from spherefed.client import Client
from spherefed.data.partition import Partition
from spherefed.data.sources import Dataset
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.memory import MemoryDirectory, MemoryInRam, MemoryStore
from spherefed.messages import Failure, Reply, Request


class InProcess:
    """A fleet of clients that take turns in this process."""

    def __init__(self, client: Callable[[int], Client], num_clients: int, memory: MemoryStore | None = None) -> None:
        self._client = client
        self._clients = range(num_clients)
        self._memory = MemoryInRam() if memory is None else memory

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        for number in clients:
            yield answer(self._client, number, request, self._memory)

    def close(self) -> None:
        """Nothing to end."""


def answer(client: Callable[[int], Client], number: int, request: Request, store: MemoryStore) -> Reply | Failure:
    """One client's answer; whatever goes wrong there is a failure with a cause, not the end of the run."""
    try:
        before = store.load(number, before=request.round)
        reply, after = client(number).handle(request, before)
        if after is not None and after is not before:
            store.save(number, request.round, after)
    except Exception as error:
        return Failure(number, f"{type(error).__name__}: {error}")
    return reply


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
        """Whoever is free takes the next client; answers are handed on in the order asked."""
        waiting = deque(clients)
        attempts = dict.fromkeys(clients, 0)
        done: dict[int, Reply | Failure] = {}
        message = _packed(request)
        for index, worker in enumerate(self._workers):
            if worker.client != IDLE:  # left in mid-work by an `ask` that was not read to its end
                worker.process.kill()
                self._workers[index] = self._hire()
            _send(self._workers[index], "request", message)
        position = 0
        while position < len(clients):
            self._hand_out(waiting, attempts)
            for index, worker in self._ready():
                number = worker.client
                try:
                    done[number] = _unpacked(worker.connection.recv())
                    self._workers[index] = replace(worker, client=IDLE)
                except (EOFError, OSError):
                    self._workers[index] = self._hire()
                    _send(self._workers[index], "request", message)
                    if attempts[number] < MAX_ATTEMPTS:
                        waiting.appendleft(number)
                    else:
                        done[number] = Failure(number, f"its worker process died {MAX_ATTEMPTS} times")
            while position < len(clients) and clients[position] in done:
                yield done.pop(clients[position])
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

    def _hand_out(self, waiting: "deque[int]", attempts: dict[int, int]) -> None:
        for index, worker in enumerate(self._workers):
            if worker.client == IDLE and waiting:
                number = waiting.popleft()
                attempts[number] += 1
                self._workers[index] = replace(worker, client=number)
                _send(worker, "client", number)

    def _ready(self) -> "list[tuple[int, _Worker]]":
        busy = {w.connection: (i, w) for i, w in enumerate(self._workers) if w.client != IDLE}
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
    client: int
    """The client it is working on, or IDLE."""


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
    data = job.dataset or load_data(job.experiment, job.data_root)
    bench = build_bench(job.experiment, data.input_shape, data.num_classes, job.device)
    assembly = Assembly(job.experiment, data, job.partition, bench)
    store: MemoryStore = MemoryInRam() if job.memory is None else MemoryDirectory(job.memory)
    request: Request | None = None
    try:
        while True:
            kind, content = connection.recv()
            if kind == "request":
                request = _unpacked(content)
            else:
                assert request is not None
                connection.send(_packed(answer(assembly.client, content, request, store)))
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


def _packed(message: Any) -> Any:
    """Tensors as numpy arrays: plain bytes in the pipe, no file handles that outlive a dead process."""
    if isinstance(message, torch.Tensor):
        return message.detach().cpu().numpy()
    if isinstance(message, dict):
        return {name: _packed(value) for name, value in message.items()}
    return _rebuilt(message, _packed)


def _unpacked(message: Any) -> Any:
    if isinstance(message, np.ndarray):
        return torch.from_numpy(message)
    if isinstance(message, dict):
        return {name: _unpacked(value) for name, value in message.items()}
    return _rebuilt(message, _unpacked)


def _rebuilt(message: Any, convert: Callable[[Any], Any]) -> Any:
    if not is_dataclass(message) or isinstance(message, type):
        return message
    return type(message)(**{f.name: convert(getattr(message, f.name)) for f in fields(message)})
