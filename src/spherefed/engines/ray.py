"""Clients on a Ray cluster that one owns: actors load the data once and answer for whichever clients are next.

An actor remembers nothing but its data and a model. What clients remember is kept by the server, sent along and sent
back, so that any actor may serve any client, and an actor that dies takes nothing with it. The results are those of
the local engine, to the bit.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from spherefed.allocation import keep_freed_memory
from spherefed.assembly import Assembly, build_bench, check_can_train, load_data
from spherefed.data.partition import Partition
from spherefed.data.sources import Dataset
from spherefed.engines.answering import answer_group, in_groups, largest_first, packed, unpacked
from spherefed.engines.ray_cluster import Cluster, last_line
from spherefed.errors import ConfigError, EngineError, SpherefedError
from spherefed.experiment import Experiment
from spherefed.memory import Memory, MemoryInRam, MemoryStore
from spherefed.messages import Failure, Reply, Request
from spherefed.stacking import Stack
from spherefed.tensors import Tensors, digest

import ray  # isort: skip  # after ray_cluster, which says what to install where there is none

AHEAD = 2
"""Groups that an actor has at a time: one it works on, and one so that it need not wait for the next."""
BEGINS_WITHIN = 300.0
"""Seconds for an actor to find a place, load and say so, before the run goes on without it; for all, before it ends."""
MAX_DEATHS = 3
"""An actor that dies so often in a row while it loads will not live."""


class RayFleet:
    """A fleet of actors, each with one thread, its own model and its own copy of the data."""

    def __init__(
        self,
        assembly: Assembly,
        workers: int = 0,
        *,
        address: str | None = None,
        device: str = "cpu",
        data_root: str | None = None,
        memory: MemoryStore | None = None,
        deadline: float | None = None,
    ) -> None:
        if workers < 0:
            raise ConfigError(f"workers must not be negative, got {workers}")
        self._clients = range(len(assembly.partition.parts))
        self._parts = assembly.partition.parts
        self._stack = assembly.experiment.stack
        self._memory = MemoryInRam() if memory is None else memory
        self._deadline = deadline
        self._asked = 0
        self._seats: list[_Seat] = []
        self._cluster = Cluster(address, workers)
        try:
            workers = workers or self._cluster.num_cpus
            self._options = {
                # More actors than CPUs share them, equally many to each.
                "num_cpus": 1 / math.ceil(workers / self._cluster.num_cpus),
                "num_gpus": 1 if device.startswith("cuda") else 0,
                "max_restarts": 0,  # we hire another: Ray's own restart refuses calls made in the meantime
                "max_task_retries": 0,
                "scheduling_strategy": "SPREAD",
            }
            self._job = ray.put(_Job.of(assembly, device, data_root))
            self._seats = [self._hire() for _ in range(workers)]
            self._await_roll_call()
        except BaseException:
            self.close()
            raise

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    @property
    def nodes(self) -> list[str]:
        """For every actor that is ready, the id of the Ray node it lives on."""
        return [seat.node for seat in self._seats if seat.node is not None]

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Whoever is free takes the next group; answers are handed on in the order asked."""
        asked = _Asked(request, in_groups(clients, request, self._stack), self._next_number())
        asked.waiting.extend(largest_first(asked.groups, self._parts))
        self._dismiss_busy()  # left in mid-work by an `ask` that was not read to its end
        sent = ray.put(packed(request))  # goes when this generator does
        ends = math.inf if self._deadline is None else time.monotonic() + self._deadline
        position = 0
        while position < len(asked.groups):
            self._hand_out(asked, sent)
            left = ends - time.monotonic()
            if left > 0:
                if position not in asked.done:
                    self._collect(asked, left)
            else:
                asked.fail_the_rest(
                    f"did not answer within {self._deadline:g} s", (t for seat in self._seats for t in seat.tasks)
                )
                self._dismiss_busy()
            while position in asked.done:
                yield from asked.done.pop(position)
                position += 1

    def close(self) -> None:
        """End the actors, and the Ray that was started for them."""
        for seat in self._seats:
            with suppress(Exception):  # it, or all of Ray, is gone already
                ray.kill(seat.actor)
        self._seats = []
        self._job = None
        self._cluster.close()

    def _next_number(self) -> int:
        self._asked += 1
        return self._asked

    def _hire(self, deaths: int = 0) -> "_Seat":
        actor = _REMOTE.options(**self._options).remote()
        return _Seat(actor, deque([_Call(actor.begin.remote(self._job))]), deaths)

    def _dismiss_busy(self) -> None:
        for index, seat in enumerate(self._seats):
            if seat.tasks:
                ray.kill(seat.actor)
                self._seats[index] = self._hire()

    def _await_roll_call(self) -> None:
        ends = time.monotonic() + BEGINS_WITHIN
        while any(seat.node is None for seat in self._seats) and (left := ends - time.monotonic()) > 0:
            self._collect(_Asked(None, [], 0), left)
        if not self.nodes:
            raise EngineError(
                f"no actor was ready within {BEGINS_WITHIN:.0f} s: the cluster has {self._cluster.num_cpus} CPUs "
                f"and now {ray.available_resources().get('CPU', 0):g} of them free"
            )

    def _hand_out(self, asked: "_Asked", sent: Any) -> None:
        # With a deadline nobody is to wait behind one who is slow.
        for held in range(AHEAD if self._deadline is None else 1):
            for seat in self._seats:
                # What is left at the end goes to who is free first.
                if not asked.waiting or (held and len(asked.waiting) <= len(self._seats)):
                    return
                if seat.node is not None and len(seat.tasks) == held:
                    self._give(seat, asked.waiting.popleft(), asked, sent)

    def _give(self, seat: "_Seat", task: int, asked: "_Asked", sent: Any) -> None:
        numbers = asked.groups[task]
        assert asked.request is not None
        try:
            remembered = {n: self._memory.load(n, before=asked.request.round) for n in numbers}
        except Exception as error:
            asked.fail(task, f"{type(error).__name__}: {error}")
            return
        if seat.greeted != asked.number:
            # If this is not answered, the actor died before it had anything of this request to do.
            seat.greeted = asked.number
            seat.calls.append(_Call(seat.actor.greet.remote()))
        called = seat.actor.answer.remote(asked.number, sent, list(numbers), packed(remembered))
        seat.calls.append(_Call(called, task))

    def _collect(self, asked: "_Asked", timeout: float) -> None:
        """Wait until an actor has done what it does now, and take what is there.

        An actor does its calls in order: only the first of each can be the next to end.
        """
        first = {seat.calls[0].reference: index for index, seat in enumerate(self._seats) if seat.calls}
        if not first:
            return
        idle = all(seat.node is None for seat in self._seats)
        wanted = min(timeout, BEGINS_WITHIN if idle else math.inf)
        ended, _ = ray.wait(list(first), timeout=None if wanted == math.inf else wanted)
        if not ended and idle and wanted < timeout:
            raise EngineError(f"no actor was ready within {BEGINS_WITHIN:.0f} s; is the cluster still there?")
        ended, _ = ray.wait(list(first), num_returns=len(first), timeout=0) if ended else ([], [])
        for reference in ended:
            self._take(first[reference], asked)

    def _take(self, index: int, asked: "_Asked") -> None:
        seat = self._seats[index]
        call = seat.calls.popleft()
        try:
            content = ray.get(call.reference)
        except ray.exceptions.RayActorError as error:
            if seat.node is None and seat.deaths + 1 >= MAX_DEATHS:
                raise EngineError(
                    f"an actor died {MAX_DEATHS} times while it was loading: {last_line(error)}"
                ) from error
            if call.task is not None:
                asked.fail(call.task, "its actor died")
            asked.waiting.extendleft(reversed(seat.tasks))  # these had not begun
            self._seats[index] = self._hire(seat.deaths + 1 if seat.node is None else 0)
        except ray.exceptions.RayError as error:
            # Not the client's doing, which comes as an answer: the actor could not be called, or its reply was lost.
            if call.task is None:
                raise EngineError(f"an actor could not begin: {last_line(error)}") from error
            asked.fail(call.task, f"its actor failed: {last_line(error)}")
        else:
            if isinstance(content, _Ready):
                seat.node = self._checked(content).node
            elif call.task is not None:
                asked.done[call.task] = self._received(content, asked)

    def _checked(self, ready: "_Ready") -> "_Ready":
        if ready.refused is not None:
            raise EngineError(f"the actor on {ready.host} could not begin: {ready.refused}")
        if ready.versions != (here := _versions()):
            raise EngineError(
                f"the actor on {ready.host} has {ready.versions}, this process {here}; install the same on all machines"
            )
        return ready

    def _received(self, content: "_Answers", asked: "_Asked") -> list[Reply | Failure]:
        answers: list[Reply | Failure] = [unpacked(answer) for answer in content.answers]
        assert asked.request is not None
        for position, answer in enumerate(answers):
            if answer.client in content.kept:
                try:
                    self._memory.save(answer.client, asked.request.round, unpacked(content.kept[answer.client]))
                except Exception as error:
                    answers[position] = Failure(answer.client, f"{type(error).__name__}: {error}")
        return answers


@dataclass(slots=True)
class _Asked:
    """How far a request is: groups that wait for an actor, and answers that wait for their turn."""

    request: Request | None
    groups: list[Sequence[int]]
    number: int
    waiting: deque[int] = field(default_factory=deque)
    done: dict[int, list[Reply | Failure]] = field(default_factory=dict)

    def fail(self, task: int, cause: str) -> None:
        self.done[task] = [Failure(number, cause) for number in self.groups[task]]

    def fail_the_rest(self, cause: str, begun: Iterable[int]) -> None:
        """Everything that waits, and what was begun."""
        for task in (*self.waiting, *begun):
            self.fail(task, cause)
        self.waiting.clear()


@dataclass(frozen=True, slots=True)
class _Call:
    reference: Any
    task: int | None = None
    """The number of the group it is about; None: it is about none."""


@dataclass(slots=True)
class _Seat:
    """A place in the fleet, and the actor that has it now."""

    actor: Any
    calls: deque[_Call]
    """In the order made, which is the order in which they are done."""
    deaths: int
    """Of actors before it in this place that never began."""
    node: str | None = None
    """Where it lives; None: it has not said that it is ready."""
    greeted: int = 0
    """The number of the request that it was greeted for."""

    @property
    def tasks(self) -> list[int]:
        return [call.task for call in self.calls if call.task is not None]


@dataclass(frozen=True, slots=True)
class _Job:
    """What an actor needs to begin."""

    experiment: Experiment
    dataset: Dataset | None
    """None: it is mapped from files, which every machine has to have."""
    data_root: str | None
    facts: str
    partition: Partition
    device: str
    derived: Tensors
    """What follows from the seed; as computed by the server, since another CPU may round otherwise."""

    @staticmethod
    def of(assembly: Assembly, device: str, data_root: str | None) -> "_Job":
        data = assembly.dataset
        return _Job(
            experiment=assembly.experiment,
            dataset=None if data.mapped else data,
            data_root=data_root,
            facts=_facts(data),
            partition=assembly.partition,
            device=device,
            derived=packed(assembly.bench.derived()),
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    node: str
    host: str
    versions: str
    refused: str | None = None
    """Why it cannot work, if it cannot."""


@dataclass(frozen=True, slots=True)
class _Answers:
    answers: list[Any]
    kept: dict[int, Any]
    """What clients remember from now on, of those that remember something new."""


@dataclass(frozen=True, slots=True)
class _Carried:
    """A memory store that was sent along, and is sent back."""

    given: Mapping[int, Memory | None]
    kept: dict[int, Memory]

    def load(self, client: int, before: int) -> Memory | None:
        return self.given.get(client)

    def save(self, client: int, stamp: int, memory: Memory) -> None:
        self.kept[client] = memory


class _Actor:
    """A process somewhere in the cluster that answers for clients."""

    def __init__(self) -> None:
        self._assembly: Assembly | None = None
        self._stack: Stack | None = None
        self._number = 0
        self._request: Request | None = None

    def begin(self, job: _Job) -> _Ready:
        import socket

        place = ray.get_runtime_context().get_node_id(), socket.gethostname(), _versions()
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            data = job.dataset or load_data(job.experiment, job.data_root)
            if _facts(data) != job.facts:
                return _Ready(*place, f"its files of {data.name} are not those of the server")
            check_can_train(job.experiment, job.device)
            bench = build_bench(job.experiment, data.input_shape, data.num_classes, job.device)
        except SpherefedError as error:
            return _Ready(*place, str(error))
        bench.adopt(unpacked(job.derived))
        self._assembly = Assembly(job.experiment, data, job.partition, bench)
        self._stack = self._assembly.stack()
        return _Ready(*place)

    def greet(self) -> None:
        """Say that it is there."""

    def answer(self, number: int, request: Any, numbers: list[int], remembered: Any) -> _Answers:
        """Answer for these clients; a request comes with every call and is unpacked once."""
        assert self._assembly is not None
        if number != self._number:
            self._number, self._request = number, unpacked(request)
        assert self._request is not None
        store = _Carried(unpacked(remembered), {})
        answers = answer_group(self._assembly.client, numbers, self._request, store, self._stack)
        return _Answers([packed(each) for each in answers], packed(store.kept))


_REMOTE = ray.remote(_Actor)


def _versions() -> str:
    """What has to be the same everywhere for equal results; builds for other devices are."""
    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in ("spherefed", "torch"))


def _facts(data: Dataset) -> str:
    """A digest by which a data set loaded elsewhere is known to be the same."""
    shape = torch.tensor([len(data.train), len(data.test), data.num_classes, *data.input_shape])
    return digest({"labels": data.train.all_labels(), "shape": shape})
