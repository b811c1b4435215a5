"""What a site does: read its own data, say what it holds to, answer requests, remember on its own disk."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from spherefed.assembly import Assembly, assemble, build_bench, check_can_train, pooled
from spherefed.calibration import Oracle
from spherefed.data import sources
from spherefed.data.convention import normalization
from spherefed.data.partition import Partition, Sites
from spherefed.deployment.roll_call import Adopt, Adopted, Facts, Present, RollCall
from spherefed.engines.answering import answer as answer_request
from spherefed.errors import ClientError, ConfigError
from spherefed.experiment import Experiment, from_text
from spherefed.files import read_tensors, write_tensors
from spherefed.memory import MemoryDirectory, MemoryInRam, MemoryStore
from spherefed.messages import Evaluate, Failure, Measure, Reestimate, Reply, Request, Train
from spherefed.schema import from_plain
from spherefed.tensors import digest, mismatch

ADOPTED = "derived.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A site's own configuration, which no server sees: Flower calls it the node's config."""

    client: int
    """Which client of the federation this is."""
    site: str = ""
    """What people call it."""
    data: str = ""
    """Its own data, `folder:PATH` or `arrays:FILE.npz`; empty: its part of a set that all have."""
    data_root: str = ""
    """Where data sets lie and decoded images are kept; empty: $SPHEREFED_DATA."""
    memory: str = ""
    """A folder of its own for what the client remembers from round to round."""
    device: str = "cpu"
    min_samples: int = 2
    """Fewest examples of which this site sends statistics; an experiment that wants fewer is refused."""

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "Site":
        """From Flower's node config; unknown names are refused with the nearest valid one."""
        try:
            site: Site = from_plain(Site, config)
        except ConfigError as error:
            raise ConfigError(f"the site's config: {error}") from error
        return site


def answer(message: Any, experiment: str, run: str, site: Site) -> Any:
    """A site's answer to any message; `run` tells this run from others of the same experiment."""
    desk = _desk(experiment, run, site)
    match message:
        case RollCall():
            return Present(site.client, site.site, facts(desk.assembly).to_text())
        case Adopt():
            return desk.adopt(message)
        case Train() | Measure() | Reestimate() | Evaluate():
            return desk.answer(message)
        case _:
            raise ConfigError(f"a site does not answer a {type(message).__name__}")


def facts(assembly: Assembly) -> Facts:
    """What this process holds to, as the roll call compares it."""
    data = assembly.dataset
    return Facts(
        version=version("spherefed"),
        experiment=assembly.experiment.digest(),
        classes=data.classes,
        input_shape=data.input_shape,
        normalization=normalization(data),
        derived=digest(assembly.bench.derived()),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Desk:
    """A site at work on one run."""

    site: Site
    assembly: Assembly
    folder: Path | None
    store: MemoryStore

    def answer(self, request: Request) -> Reply | Failure:
        if isinstance(self.store, MemoryDirectory):
            # The server saves every round before it asks for the next: nobody will ask for what came before.
            self.store.settle(request.round)
        return answer_request(self.assembly.client, self.site.client, request, self.store)

    def adopt(self, message: Adopt) -> Adopted:
        if fault := mismatch(message.derived, self.assembly.bench.derived()):
            raise ClientError(f"what was sent does not fit: {fault}")
        self.assembly.bench.adopt(message.derived)
        if self.folder is not None:  # the next message may find another process
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self.folder / ADOPTED, message.derived, {})
        return Adopted(self.site.client, digest(self.assembly.bench.derived()))


_DESKS: dict[Site, tuple[str, str, _Desk]] = {}
"""The newest run of each site in this process; everything it holds can be had again from the disk."""


def _desk(experiment: str, run: str, site: Site) -> _Desk:
    """Kept between messages, until the next run."""
    if _DESKS.get(site, ("", "", None))[:2] != (experiment, run):
        _DESKS.pop(site, None)  # first: two runs' data may be more than fits
        _DESKS[site] = (experiment, run, _new_desk(experiment, run, site))
    return _DESKS[site][2]


def _new_desk(experiment: str, run: str, site: Site) -> _Desk:
    if not re.fullmatch(r"[0-9a-z-]{1,64}", run):
        raise ConfigError(f"a run's number is small letters and digits, got {run!r}")
    assembly = assemble_site(from_text(experiment).apart(), site)
    folder = Path(site.memory).expanduser() / f"{assembly.experiment.digest()[:16]}-{run}" if site.memory else None
    if assembly.experiment.keeps_memory and folder is None:
        raise ConfigError("clients of this method remember: the site's config needs memory=FOLDER")
    if folder is not None and (folder / ADOPTED).exists():
        assembly.bench.adopt(read_tensors(folder / ADOPTED)[0])
    remembers = assembly.experiment.keeps_memory and folder is not None
    return _Desk(site, assembly, folder, MemoryDirectory(folder) if remembers and folder else MemoryInRam())


def _check_harmless(experiment: Experiment, site: Site) -> None:
    """An experiment is the server's word: what would have a site read or send more than it agreed to is refused."""
    if experiment.data.name.startswith(("folder:", "arrays:")) and not isinstance(experiment.partition, Sites):
        raise ConfigError(
            f"the experiment wants {experiment.data.name!r} from this site; a site's own files are named in its own "
            "config, with partition.kind = 'sites'"
        )
    if isinstance(experiment.calibration, Oracle):
        raise ConfigError("calibration 'oracle' sends the features of every example: not between sites")
    if experiment.min_samples < site.min_samples:
        raise ConfigError(
            f"the experiment's min_samples is {experiment.min_samples}, this site's own config wants {site.min_samples}"
        )


def assemble_site(experiment: Experiment, site: Site) -> Assembly:
    """Everything a site needs to be its client: its own data, or its part of a set that all have."""
    clients = experiment.partition.clients
    if not 0 <= site.client < clients:
        raise ConfigError(f"the site's config says client {site.client}; clients are 0 to {clients - 1}")
    _check_harmless(experiment, site)
    root = site.data_root or None
    if not isinstance(experiment.partition, Sites):
        if site.data:
            raise ConfigError(
                f"the site's config names its own data, {site.data!r}, but the experiment deals out "
                f"{experiment.data.name!r}; leave `data` out, or use partition.kind = 'sites'"
            )
        return assemble(experiment, device=site.device, data_root=root)
    if not site.data:
        raise ConfigError("partition.kind = 'sites': the site's config needs data=folder:PATH or data=arrays:FILE.npz")
    check_can_train(experiment, site.device)
    data = pooled(experiment.data.convention.applied(sources.load(site.data, root, fewest_classes=1)))
    mine = np.arange(len(data.train))
    labels = data.train.all_labels().numpy()
    counts = np.zeros((clients, data.num_classes), dtype=np.int64)
    counts[site.client] = np.bincount(labels, minlength=data.num_classes)
    parts = tuple(mine if client == site.client else mine[:0] for client in range(clients))
    bench = build_bench(experiment, data.input_shape, data.num_classes, site.device)
    return Assembly(experiment, data, Partition(parts, counts), bench)
