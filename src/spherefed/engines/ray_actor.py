"""The actor of the Ray engine and the values that the fleet exchanges with it.

An actor is a process in the cluster that answers requests for clients. Ray pickles these classes by reference, so every
machine must be able to import them from this module.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.assembly import Assembly, build_parts, check_can_train, load_data
from spherefed.client.client_state import ClientState
from spherefed.client.handle import Clients, answer_group
from spherefed.components import (
    Record,
    add_search_folders,
    changed_components,
    describe_components,
    search_folders,
)
from spherefed.data.partition import Partition
from spherefed.data.sources import Dataset
from spherefed.engines.transfer import from_arrays, to_arrays
from spherefed.errors import SpherefedError
from spherefed.experiment import experiment_from_json, experiment_to_json
from spherefed.messages import Request
from spherefed.tensors import Tensors, digest


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """Everything an actor needs before its first request."""

    experiment: str
    """As JSON: an object could only be received after the user's own modules have been found."""
    components: dict[str, Record]
    """The sources of the user's own components."""
    dataset: Dataset | None
    """None if the data set is mapped from files; every machine then needs these files."""
    data_root: str | None
    data_digest: str
    partition: Partition
    device: str
    derived_state: Tensors
    """The tensors derived from the seed. The server sends its own, because another CPU may round differently."""
    frozen_digest: str
    """Digest of the frozen encoder, which every machine builds itself; empty if the encoder is trained."""

    @staticmethod
    def from_assembly(assembly: Assembly, device: str, data_root: str | None) -> "ActorSetup":
        data = assembly.dataset
        return ActorSetup(
            experiment=experiment_to_json(assembly.experiment),
            components=describe_components(assembly.experiment.own_components()),
            dataset=None if data.memory_mapped else data,
            data_root=data_root,
            data_digest=_data_digest(data),
            partition=assembly.partition,
            device=device,
            derived_state=to_arrays(assembly.local_model.derived_state()),
            frozen_digest=assembly.local_model.frozen_digest(),
        )


@dataclass(frozen=True, slots=True)
class ActorReady:
    """An actor's reply to its setup."""

    node: str
    host: str
    versions: str
    error: str | None = None
    """Why the actor cannot work; None if it can."""


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """The answers for one group of clients, with tensors as arrays."""

    answers: list[Any]
    new_states: dict[int, Any]
    """The new client states, by client; clients whose state did not change are left out."""


@dataclass(frozen=True, slots=True)
class SentStates:
    """A store of client states that arrive with a call; new states return with its answer."""

    given: Mapping[int, ClientState | None]
    saved: dict[int, ClientState]

    def load(self, client: int, before: int) -> ClientState | None:
        return self.given.get(client)

    def save(self, client: int, stamp: int, client_state: ClientState) -> None:
        self.saved[client] = client_state


class ClientActor:
    """A process in the cluster that answers requests for clients."""

    def __init__(self) -> None:
        self._clients: Clients | None = None
        self._request_number = 0
        self._request: Request | None = None

    def setup(self, setup: ActorSetup) -> ActorReady:
        """Load the data and build the model; an error is part of the reply."""
        import ray  # here, so that this module can be imported without Ray

        identity = ray.get_runtime_context().get_node_id(), socket.gethostname(), package_versions()
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            add_search_folders(search_folders(setup.components))
            experiment = experiment_from_json(setup.experiment)
            if changed := changed_components(setup.components, setup.components):
                return ActorReady(*identity, f"its components differ from the server's: {'; '.join(changed)}")
            data = setup.dataset or load_data(experiment, setup.data_root)
            if _data_digest(data) != setup.data_digest:
                return ActorReady(*identity, f"its files of {data.name} differ from the server's")
            check_can_train(experiment, setup.device)
            derived = from_arrays(setup.derived_state)
            parts = build_parts(
                experiment,
                data,
                setup.partition,
                device=setup.device,
                data_root=setup.data_root,
                derived_state=derived,
            )
        except SpherefedError as error:
            return ActorReady(*identity, str(error))
        if parts.local_model.frozen_digest() != setup.frozen_digest:
            return ActorReady(*identity, "its frozen encoder has other weights than the server's")
        self._clients = parts.clients
        return ActorReady(*identity)

    def ping(self) -> None:
        """Return at once; the fleet uses the reply to check that the actor is alive."""

    def answer(self, request_number: int, request: Any, clients: list[int], client_states: Any) -> GroupAnswers:
        """Answer the request for these clients. Every call carries the request; the actor converts it once."""
        assert self._clients is not None
        if request_number != self._request_number:
            self._request_number, self._request = request_number, from_arrays(request)
        assert self._request is not None
        store = SentStates(from_arrays(client_states), {})
        stacked = self._clients.local_model.stacked is not None
        answers = answer_group(self._clients, clients, self._request, store, stacked=stacked)
        return GroupAnswers([to_arrays(each) for each in answers], to_arrays(store.saved))


def package_versions() -> str:
    """The versions that must be equal on all machines; the build suffix (+cpu, +cu124) is left out."""
    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in ("spherefed", "torch"))


def _data_digest(data: Dataset) -> str:
    """A digest of counts, shape and labels, to compare data sets that two machines loaded."""
    shape = torch.tensor([len(data.train), len(data.test), data.num_classes, *data.input_shape])
    return digest({"labels": data.train.all_labels(), "shape": shape})
