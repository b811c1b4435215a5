"""A site's data, client and model for an experiment of the server; read and built only if its limits allow it."""

import hashlib

import numpy as np

from spherefed.assembly import Assembly, build_parts, check_can_train, load_data, split_data
from spherefed.client.handle import Client
from spherefed.data import sources
from spherefed.data.dataset import Dataset, pooled
from spherefed.data.locations import data_root
from spherefed.data.partition import Partition
from spherefed.data.resize import resized
from spherefed.deployment.limits import check_count, check_data, check_experiment, check_size, is_own_data
from spherefed.deployment.record import SiteRecord
from spherefed.deployment.site_config import Site
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment


def assemble_site(experiment: Experiment, site: Site) -> tuple[Assembly, str]:
    """The parts that a site needs for its client, and the version of its data.

    The experiment is checked before data are read, and the size of the model before it is built.
    """
    clients, limits, root = experiment.partition.clients, site.limits, site.data_root or None
    if not 0 <= site.client < clients:
        raise ConfigError(f"the site's config has client = {site.client}; clients are 0 to {clients - 1}")
    check_experiment(experiment, limits, site.allowed)
    check_data(experiment, site.data)
    check_can_train(experiment, site.device)
    if is_own_data(site.data):
        stored = sources.load(site.data, root, min_classes=1)
        data_version = _digest(stored)
        data = _in_shared_format(experiment, stored, root)
        parts = _only_part(data, site.client, clients)
    else:
        data_version, data = site.data, load_data(experiment, root)
        parts = split_data(experiment, data)
    check_size(experiment, data.input_shape, data.input_dtype, data.num_classes, limits.max_parameters)
    assembly = build_parts(experiment, data, parts, device=site.device, data_root=root)
    check_count(sum(t.numel() for t in assembly.local_model.classifier.state_dict().values()), limits.max_parameters)
    return assembly, data_version


def site_client(assembly: Assembly, site: Site, record: SiteRecord) -> Client:
    """This site's client. With its own data, the site decides what is held out: once, for all experiments."""
    clients = assembly.clients
    if not is_own_data(site.data):
        return clients[site.client]
    if record.path is None:
        raise ConfigError("a site with its own data needs record = FILE in its config, where it keeps its hold-out")
    own = clients.examples.take(clients.parts[site.client])
    kept, held_out = record.stored_hold_out(site.held_out).split(len(own))
    return Client(site.client, own.take(kept), own.take(held_out), assembly.local_model, assembly.config)


def _in_shared_format(experiment: Experiment, stored: Dataset, root: str | None) -> Dataset:
    size = experiment.data.resize
    return pooled(experiment.shared_format.apply_to(stored if size is None else resized(stored, size, data_root(root))))


def _only_part(data: Dataset, client: int, clients: int) -> Partition:
    """All examples belong to this client; those of the others are elsewhere."""
    indices = np.arange(len(data.train))
    counts = np.zeros((clients, data.num_classes), dtype=np.int64)
    counts[client] = np.bincount(data.train.all_labels().numpy(), minlength=data.num_classes)
    return Partition(tuple(indices if number == client else indices[:0] for number in range(clients)), counts)


def _digest(stored: Dataset) -> str:
    """SHA-256 of the data as stored: what an experiment makes of them (size, class list) does not change it."""
    sha = hashlib.sha256(repr(stored.classes).encode())
    for part in (stored.train, stored.test):
        for tensor in (part.inputs, part.labels) if part.indices is None else (part.inputs, part.labels, part.indices):
            sha.update(np.ascontiguousarray(tensor.numpy()).data)
    return sha.hexdigest()
