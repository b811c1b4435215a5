"""The server of a federation: handshake with the sites, assemble, and run the same round loop as every engine."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from spherefed.assembly import Assembly, assemble, build_parts
from spherefed.data import sources
from spherefed.data.dataset import Dataset, pooled
from spherefed.data.partition import Partition, Sites
from spherefed.data.shared_format import without_examples
from spherefed.deployment.handshake import Member, majority
from spherefed.deployment.membership import Membership
from spherefed.engines.flower import Messenger, NodeFleet
from spherefed.errors import ConfigError
from spherefed.experiment import SITES, Experiment, experiment_from_json
from spherefed.runs.directory import RunDirectory, read_json
from spherefed.runs.environment import describe_environment
from spherefed.runs.runner import Progress, run_assembled


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The run that `spherefed deploy run` asks the server for."""

    experiment: str
    """As JSON."""
    out: str
    """The run directory, on the server."""
    resume: bool = False
    wait: float = 120.0
    """Seconds to wait until all sites are connected."""
    device: str = "cpu"
    data_root: str = ""
    keys: str = "{}"
    """The client whose key each node has, as JSON {node: client}; empty without authentication."""
    sites: str = "[]"
    """The names of the sites by client number, as JSON."""


def serve(open_messenger: Callable[[str], Messenger], request: RunRequest) -> Iterator[Progress]:
    """Run the experiment to its end; yield after every round."""
    experiment, out = experiment_from_json(request.experiment).unstacked(), Path(request.out)
    if experiment.stack:
        raise ConfigError(
            f"stack = {experiment.stack} needs all clients in one process; set stack = 0 for a deployment"
        )
    if request.resume and RunDirectory(out).finished:
        RunDirectory(out).check_experiment(experiment)
        return
    if not request.resume:
        RunDirectory(out).check_new()
    run = _run_id(out, resume=request.resume)
    keys = {int(node): client for node, client in json.loads(request.keys).items()}
    membership = Membership(open_messenger(run), experiment, keys, json.loads(request.sites))
    membership.wait_for_sites(request.wait)
    assembly = assemble_server(
        experiment, membership.members, device=request.device, data_root=request.data_root or None
    )
    membership.check_agreement(assembly)

    fleet = NodeFleet(
        membership.messenger,
        experiment.partition.clients,
        membership.locate_clients,
        experiment.deadline,
        _max_measure_bytes(assembly),
    )
    environment = describe_environment(experiment, engine="flower", device=request.device, workers=0)
    environment |= {"run": run, "sites": membership.describe()}
    # One checkpoint per round: sites rely on it when they delete old client states (`site.py`).
    yield from run_assembled(
        assembly, lambda _: fleet, out, environment=environment, checkpoint_every=1, resume=request.resume
    )


def _max_measure_bytes(assembly: Assembly) -> int | None:
    """Most bytes of the moments of one site; None without a calibration."""
    max_examples, head = assembly.experiment.limits.max_examples, assembly.local_model.head_of(assembly.initial())
    sizes = []
    for calibration in (assembly.config.start, assembly.config.calibration):
        if calibration is not None:
            most: Callable[[Tensor, int], int] | None = getattr(calibration, "max_bytes", None)
            if most is None:  # a user's need not have it
                return None
            sizes.append(most(head, max_examples))
    return max(sizes, default=None)


def _run_id(out: Path, *, resume: bool) -> str:
    """An id that distinguishes this run from other runs of the same experiment; a resumed run keeps it."""
    found = read_json(out / "environment.json") if resume and (out / "environment.json").exists() else {}
    return str(found.get("run") or secrets.token_hex(8))


def assemble_server(
    experiment: Experiment, members: Mapping[int, Member], *, device: str = "cpu", data_root: str | None = None
) -> Assembly:
    """The parts that the server needs: the model, and test data if the server has its own."""
    if not isinstance(experiment.partition, Sites):
        return assemble(experiment, device=device, data_root=data_root)
    if experiment.data.name == SITES:
        data = without_examples(experiment.data.classes, majority(members, lambda each: each.input_shape))
    else:
        data = _server_test_data(experiment, data_root)
    clients = experiment.partition.clients
    no_examples = np.zeros(0, dtype=np.int64)
    parts = Partition((no_examples,) * clients, np.zeros((clients, data.num_classes), dtype=np.int64))
    return build_parts(experiment, data, parts, device=device, data_root=data_root)


def _server_test_data(experiment: Experiment, data_root: str | None) -> Dataset:
    """The server's own data, all used as test set: only sites train."""
    wanted = experiment.data
    own = sources.load(wanted.name, data_root, min_classes=1, resize=wanted.resize)
    found = pooled(experiment.shared_format.apply_to(own))
    return replace(found, train=found.test, test=found.train)
