"""A site: reads its own data, answers the handshake and the requests, keeps the client state on its own disk.

The experiment and every request come from the server. The site checks them against its own limits (`limits.py`) before
it reads or builds anything, and remembers what it has answered (`record.py`).
"""

import hashlib
import re
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spherefed.assembly import Assembly
from spherefed.client.client_state import ClientStateStore, InMemoryStates, StateDirectory
from spherefed.client.handle import Client, answer_group
from spherefed.components import describe_components, only_components
from spherefed.data.shared_format import normalization
from spherefed.data.sources import is_own_source
from spherefed.deployment.handshake import DerivedLoaded, Handshake, HandshakeReply, LoadDerived, SiteProperties
from spherefed.deployment.limits import MAX_EXPERIMENT_CHARACTERS
from spherefed.deployment.record import SiteRecord, frequent_classes, read_record
from spherefed.deployment.site_config import Site
from spherefed.deployment.site_data import assemble_site, site_client
from spherefed.errors import ClientError, ConfigError
from spherefed.experiment import Experiment, experiment_from_json
from spherefed.files import read_tensors, write_tensors
from spherefed.messages import Evaluate, EvaluateReply, Failure, Measure, Reestimate, Reply, Request, Train
from spherefed.tensors import digest, mismatch

DERIVED_FILE = "derived.safetensors"


def answer(message: Any, experiment: str, run: str, site: Site) -> Any:
    """A site's reply to any message; `run` distinguishes runs of the same experiment."""
    session = _session(experiment, run, site)
    match message:
        case Handshake():
            return HandshakeReply(
                site.client, site.site, properties(session.assembly).to_json(), left_out=session.left_out
            )
        case LoadDerived():
            return session.load_derived(message)
        case Train() | Measure() | Reestimate() | Evaluate():
            return session.answer(message)
        case _:
            raise ConfigError(f"a site cannot answer a {type(message).__name__}")


def properties(assembly: Assembly) -> SiteProperties:
    """The properties of this process that the handshake compares."""
    data = assembly.dataset
    return SiteProperties(
        version=version("spherefed"),
        experiment=assembly.experiment.digest(),
        classes=data.classes,
        input_shape=data.input_shape,
        normalization=normalization(data),
        components=_components(assembly.experiment),
        frozen_encoder=assembly.local_model.frozen_digest(),
        derived_state=digest(assembly.local_model.derived_state()),
    )


def _components(experiment: Experiment) -> str:
    """The user's own components with the digests of their sources, as text."""
    found = describe_components(experiment.own_components())
    return ", ".join(f"{name} {(record['sha256'] or 'no file')[:16]}" for name, record in found.items()) or "none"


@dataclass(frozen=True, eq=False, slots=True)
class SiteSession:
    """A site's data, model and client state for one run."""

    site: Site
    assembly: Assembly
    client: Client
    measured: Client
    """The client with the examples that statistics are measured on: those of frequent classes."""
    data_version: str
    run: str
    folder: Path | None
    store: ClientStateStore
    record: SiteRecord

    @property
    def left_out(self) -> int:
        """Examples of rare classes, which are left out of statistics."""
        return len(self.client.examples) - len(self.measured.examples)

    def answer(self, request: Request) -> Reply | Failure:
        """The reply within this site's limits; a ConfigError or ClientError says which limit the request exceeds."""
        client = self.measured if isinstance(request, Measure | Reestimate) else self.client
        if not isinstance(request, Evaluate) and len(client.examples):  # no examples reveal nothing
            self._check_request(request, len(client.examples))
        if isinstance(self.store, StateDirectory):
            _, last = self.record.trainings.get(self.run, (0, request.round))
            if last < request.round:  # a state that was lost is an error and never a fresh start
                self.store.check_present(request.round, {client.id: last})
            # The server saves each round before it requests the next, so no request needs an older state.
            self.store.prune(request.round)
        (reply,) = answer_group({client.id: client}, [client.id], request, self.store, stacked=False)
        if not isinstance(reply, Failure) and len(client.examples):
            self._note(request)
        return without_rare_classes(reply, self.site.limits.min_samples_per_class)

    def _check_request(self, request: Train | Measure | Reestimate, num_examples: int) -> None:
        limits, rounds = self.site.limits, self.assembly.experiment.rounds
        if isinstance(request, Train):
            if num_examples < limits.min_samples:
                raise ClientError(
                    f"training needs at least {limits.min_samples} examples, this site has {num_examples} "
                    "(limits.min_samples in site.toml)"
                )
            if not 0 <= request.round < rounds:
                raise ClientError(f"the experiment has {rounds} rounds from 0 on, asked to train round {request.round}")
            return
        dim = self.assembly.local_model.classifier.head.weight.shape[1]
        if num_examples < (least := limits.min_measured(dim)):
            raise ClientError(
                f"statistics of {dim} features need at least {least} examples, this site has {num_examples} "
                "(limits.min_samples and limits.min_samples_per_feature in site.toml)"
            )

    def _note(self, request: Request) -> None:
        """Record an answer before it is sent; raise a ConfigError if there were too many."""
        limits = self.site.limits
        if isinstance(request, Train):
            self.record.add_training(self.run, request.round, limits.max_rounds)
        elif isinstance(request, Measure | Reestimate):
            self.record.add_measure(self.data_version, self._measure_digest(request), limits.max_measures)

    def _measure_digest(self, request: Measure | Reestimate) -> str:
        """Equal for requests that give equal statistics."""
        model = request.model.digest(), digest(self.assembly.local_model.derived_state())
        parts = (type(request).__name__, str(request.round), self.assembly.experiment.digest(), *model)
        return hashlib.sha256("/".join(parts).encode()).hexdigest()

    def load_derived(self, message: LoadDerived) -> DerivedLoaded:
        if fault := mismatch(message.derived_state, self.assembly.local_model.derived_state()):
            raise ClientError(f"the derived state does not fit this model: {fault}")
        self.assembly.local_model.load_derived(message.derived_state)
        if self.folder is not None:  # another process may answer the next message
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_tensors(self.folder / DERIVED_FILE, message.derived_state, {})
        return DerivedLoaded(self.site.client, digest(self.assembly.local_model.derived_state()))


_SESSIONS: dict[Site, tuple[str, str, SiteSession]] = {}
"""The newest run of each site in this process: a cache, which can be rebuilt from the disk."""


def _session(experiment: str, run: str, site: Site) -> SiteSession:
    """The session of this run; it is kept between messages until the next run."""
    if _SESSIONS.get(site, ("", "", None))[:2] != (experiment, run):
        _SESSIONS.pop(site, None)  # before the next: the data of two runs may not fit into memory
        _SESSIONS[site] = (experiment, run, _new_session(experiment, run, site))
    return _SESSIONS[site][2]


def without_rare_classes(reply: Reply | Failure, least: int) -> Reply | Failure:
    """An evaluation without the counts of its classes, if one of them has fewer than `least` examples, but some."""
    if not isinstance(reply, EvaluateReply) or "counts" not in reply.classes:
        return reply
    examples = reply.classes["counts"][1]
    rare = bool(((examples > 0) & (examples < least)).any())
    return replace(reply, classes={}) if rare else reply


def _new_session(experiment: str, run: str, site: Site) -> SiteSession:
    if not re.fullmatch(r"[0-9a-z-]{1,64}", run):
        raise ConfigError(f"a run id must be 1 to 64 lowercase letters, digits and '-', got {run!r}")
    if len(experiment) > MAX_EXPERIMENT_CHARACTERS:
        raise ConfigError(f"the experiment has {len(experiment)} characters, more than {MAX_EXPERIMENT_CHARACTERS}")
    record = read_record(Path(site.record).expanduser() if site.record else None)
    # The experiment comes from the server: reading and building it imports only the components that this site lists.
    with only_components(site.allowed | ({site.data} if is_own_source(site.data) else set())):
        assembly, data_version = assemble_site(experiment_from_json(experiment).unstacked(), site)
    client = site_client(assembly, site, record)
    frequent = frequent_classes(client.examples.all_labels().numpy(), site.limits.min_samples_per_class)
    measured = (
        client if len(frequent) == len(client.examples) else replace(client, examples=client.examples.take(frequent))
    )
    name = f"{assembly.experiment.digest()[:16]}-{run}"
    folder = Path(site.client_state).expanduser() / name if site.client_state else None
    if assembly.experiment.keeps_client_state and folder is None:
        raise ConfigError("clients of this method keep a state; set client_state = FOLDER in the site's config")
    if folder is not None and (folder / DERIVED_FILE).exists():
        assembly.local_model.load_derived(read_tensors(folder / DERIVED_FILE)[0])
    on_disk = assembly.experiment.keeps_client_state and folder is not None
    store = StateDirectory(folder) if on_disk and folder else InMemoryStates()
    return SiteSession(site, assembly, client, measured, data_version, name, folder, store, record)
