"""Clients on a Ray cluster that you own. Actors load the data once and answer requests for any client.

An actor keeps only its data and a model. The server keeps the client states, sends them with each call and receives
them with each answer. So any actor can serve any client, and a dead actor loses no state. The results equal those of
the local engine, to the bit.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spherefed.assembly import Assembly
from spherefed.client.client_state import ClientStateStore, InMemoryStates
from spherefed.engines.activity import Activity
from spherefed.engines.local import in_groups
from spherefed.engines.ray_actor import ActorReady, ActorSetup, ClientActor, GroupAnswers, package_versions
from spherefed.engines.ray_cluster import Cluster, last_line
from spherefed.engines.transfer import from_arrays, largest_first, to_arrays
from spherefed.errors import ConfigError, EngineError
from spherefed.messages import Failure, Reply, Request

import ray  # isort: skip  # after ray_cluster, whose error names the package to install if Ray is missing

MAX_GROUPS_PER_ACTOR = 2
"""Groups that an actor has at once: one in work, and one queued so that the actor does not wait for the next call."""
STARTUP_TIMEOUT = 300.0
"""Seconds that actors have to start, load and report. Then the run continues without them, or ends if none is ready."""
MAX_STARTUP_DEATHS = 3
"""Number of deaths in a row during startup after which the run ends."""
REMOTE_ACTOR = ray.remote(ClientActor)


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
        client_states: ClientStateStore | None = None,
        deadline: float | None = None,
    ) -> None:
        if workers < 0:
            raise ConfigError(f"workers must not be negative, got {workers}")
        self._clients = range(len(assembly.partition.parts))
        self._parts = assembly.partition.parts
        self.activity = Activity()
        self._stack = assembly.experiment.stack or 0
        self._client_states = InMemoryStates() if client_states is None else client_states
        self._deadline = deadline
        self._num_requests = 0
        self._slots: list[ActorSlot] = []
        self._cluster = Cluster(address, workers)
        try:
            workers = workers or self._cluster.num_cpus
            self._options = {
                # If there are more actors than CPUs, each actor gets an equal share of a CPU.
                "num_cpus": 1 / math.ceil(workers / self._cluster.num_cpus),
                "num_gpus": 1 if device.startswith("cuda") else 0,
                "max_restarts": 0,  # the fleet starts a new actor: Ray rejects calls to an actor that is restarting
                "max_task_retries": 0,
                "scheduling_strategy": "SPREAD",
            }
            self._setup = ray.put(ActorSetup.from_assembly(assembly, device, data_root))
            self._slots = [self._start_actor() for _ in range(workers)]
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    @property
    def nodes(self) -> list[str]:
        """For every actor that is ready, the id of its Ray node."""
        return [slot.node for slot in self._slots if slot.node is not None]

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Give each free actor the next group; yield the answers in the order of `clients`."""
        pending = _PendingRequest(request, in_groups(clients, request, self._stack), self._next_number())
        pending.queue.extend(largest_first(pending.groups, self._parts))
        self._replace_busy()  # an earlier `ask` that was not read to its end leaves actors at work
        request_ref = ray.put(to_arrays(request))  # Ray frees it when this generator ends
        ends = math.inf if self._deadline is None else time.monotonic() + self._deadline
        position = 0
        self.activity.begin(request, clients, self._parts)
        while position < len(pending.groups):
            self._dispatch(pending, request_ref)
            left = ends - time.monotonic()
            if left > 0:
                if position not in pending.answers:
                    self._wait_for_calls(pending, left)
            else:
                pending.fail_unfinished(
                    f"did not answer within {self._deadline:g} s", (g for slot in self._slots for g in slot.groups)
                )
                self._replace_busy()
            while position in pending.answers:
                yield from pending.answers.pop(position)
                position += 1

    def close(self) -> None:
        """End the actors, and the Ray cluster if this fleet started it."""
        for slot in self._slots:
            with suppress(Exception):  # the actor, or all of Ray, has ended already
                ray.kill(slot.actor)
        self._slots = []
        self._setup = None
        self._cluster.close()

    def _next_number(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def _start_actor(self, deaths: int = 0) -> "ActorSlot":
        actor = REMOTE_ACTOR.options(**self._options).remote()
        return ActorSlot(actor, deque([_ActorCall(actor.setup.remote(self._setup))]), deaths)

    def _replace_busy(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot.groups:
                ray.kill(slot.actor)
                self._slots[index] = self._start_actor()

    def _wait_until_ready(self) -> None:
        ends = time.monotonic() + STARTUP_TIMEOUT
        while any(slot.node is None for slot in self._slots) and (left := ends - time.monotonic()) > 0:
            self._wait_for_calls(_PendingRequest(None, [], 0), left)
        if not self.nodes:
            raise EngineError(
                f"no actor was ready within {STARTUP_TIMEOUT:.0f} s: the cluster has {self._cluster.num_cpus} CPUs "
                f"and now {ray.available_resources().get('CPU', 0):g} of them free"
            )

    def _dispatch(self, pending: "_PendingRequest", request_ref: Any) -> None:
        # With a deadline, no group is queued behind another one on the same actor.
        for num_groups in range(MAX_GROUPS_PER_ACTOR if self._deadline is None else 1):
            for slot in self._slots:
                # The last groups, one per actor, are not queued: the actor that is free first takes the next.
                if not pending.queue or (num_groups and len(pending.queue) <= len(self._slots)):
                    return
                if slot.node is not None and len(slot.groups) == num_groups:
                    self._submit(slot, pending.queue.popleft(), pending, request_ref)

    def _submit(self, slot: "ActorSlot", group: int, pending: "_PendingRequest", request_ref: Any) -> None:
        clients = pending.groups[group]
        assert pending.request is not None
        try:
            states = {client: self._client_states.load(client, before=pending.request.round) for client in clients}
        except Exception as error:
            pending.fail(group, f"{type(error).__name__}: {error}")
            return
        if slot.pinged != pending.number:
            # If this call fails, the actor died before it worked on any group of this request.
            slot.pinged = pending.number
            slot.calls.append(_ActorCall(slot.actor.ping.remote()))
        reference = slot.actor.answer.remote(pending.number, request_ref, list(clients), to_arrays(states))
        slot.calls.append(_ActorCall(reference, group))

    def _wait_for_calls(self, pending: "_PendingRequest", timeout: float) -> None:
        """Wait until some actor has finished its current call, then process all finished calls.

        An actor executes its calls in order, so only the first call of each actor can be the next to finish.
        """
        first = {slot.calls[0].reference: index for index, slot in enumerate(self._slots) if slot.calls}
        if not first:
            return
        none_ready = all(slot.node is None for slot in self._slots)
        limit = min(timeout, STARTUP_TIMEOUT if none_ready else math.inf)
        finished, _ = ray.wait(list(first), timeout=None if limit == math.inf else limit)
        if not finished and none_ready and limit < timeout:
            raise EngineError(f"no actor was ready within {STARTUP_TIMEOUT:.0f} s; check that the cluster still runs")
        finished, _ = ray.wait(list(first), num_returns=len(first), timeout=0) if finished else ([], [])
        for reference in finished:
            self._process_call(first[reference], pending)

    def _process_call(self, index: int, pending: "_PendingRequest") -> None:
        slot = self._slots[index]
        call = slot.calls.popleft()
        try:
            content = ray.get(call.reference)
        except ray.exceptions.RayActorError as error:
            if slot.node is None and slot.deaths + 1 >= MAX_STARTUP_DEATHS:
                raise EngineError(
                    f"an actor died {MAX_STARTUP_DEATHS} times while it was loading: {last_line(error)}"
                ) from error
            if call.group is not None:
                pending.fail(call.group, "its actor died")
            pending.queue.extendleft(reversed(slot.groups))  # the actor had not started these
            self._slots[index] = self._start_actor(slot.deaths + 1 if slot.node is None else 0)
        except ray.exceptions.RayError as error:
            # Not an error of the client, which is an answer: the call failed, or its answer was lost.
            if call.group is None:
                raise EngineError(f"an actor could not start: {last_line(error)}") from error
            pending.fail(call.group, f"its actor failed: {last_line(error)}")
        else:
            if isinstance(content, ActorReady):
                slot.node = self._check_ready(content).node
            elif call.group is not None:
                pending.answers[call.group] = self._decode_and_save(content, pending)
                self.activity.advance(pending.groups[call.group], self._parts)

    def _check_ready(self, ready: ActorReady) -> ActorReady:
        if ready.error is not None:
            raise EngineError(f"the actor on {ready.host} could not start: {ready.error}")
        if ready.versions != (own_versions := package_versions()):
            raise EngineError(
                f"the actor on {ready.host} has {ready.versions}, this process has {own_versions}; "
                "install the same versions on all machines"
            )
        return ready

    def _decode_and_save(self, content: GroupAnswers, pending: "_PendingRequest") -> list[Reply | Failure]:
        """The answers with tensors; saves the new client states."""
        answers: list[Reply | Failure] = [from_arrays(answer) for answer in content.answers]
        assert pending.request is not None
        for position, answer in enumerate(answers):
            if answer.client in content.new_states:
                try:
                    self._client_states.save(
                        answer.client, pending.request.round, from_arrays(content.new_states[answer.client])
                    )
                except Exception as error:
                    answers[position] = Failure(answer.client, f"{type(error).__name__}: {error}")
        return answers


@dataclass(slots=True)
class _PendingRequest:
    """The state of one request: groups that wait for an actor, and answers that wait to be yielded in order."""

    request: Request | None
    groups: list[Sequence[int]]
    number: int
    queue: deque[int] = field(default_factory=deque)
    """Indices of the groups that no actor has yet."""
    answers: dict[int, list[Reply | Failure]] = field(default_factory=dict)
    """By the index of the group."""

    def fail(self, group: int, cause: str) -> None:
        self.answers[group] = [Failure(client, cause) for client in self.groups[group]]

    def fail_unfinished(self, cause: str, submitted: Iterable[int]) -> None:
        """Fail the queued groups and the submitted ones."""
        for group in (*self.queue, *submitted):
            self.fail(group, cause)
        self.queue.clear()


@dataclass(frozen=True, slots=True)
class _ActorCall:
    reference: Any
    group: int | None = None
    """Index of the group that the actor answers for; None for a setup call or a ping."""


@dataclass(slots=True)
class ActorSlot:
    """A place in the fleet and its current actor."""

    actor: Any
    calls: deque[_ActorCall]
    """Unfinished calls in the order made; the actor executes them in this order."""
    deaths: int
    """Number of actors in a row that died in this slot before they were ready."""
    node: str | None = None
    """The id of the actor's Ray node; None until the actor is ready."""
    pinged: int = 0
    """Number of the last request for which the actor was pinged."""

    @property
    def groups(self) -> list[int]:
        """Indices of the groups that the actor has."""
        return [call.group for call in self.calls if call.group is not None]
