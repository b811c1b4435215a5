"""From an experiment to the parts that run it: data, partition, clients, the initial model. Used by every engine."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from spherefed.acceleration.memory_reuse import give_back_freed_memory
from spherefed.acceleration.passes import check_bfloat16, check_compiler
from spherefed.acceleration.stacked_model import suggested_stack
from spherefed.calibration import Context, FfcGcv
from spherefed.client.handle import ClientConfig, Clients
from spherefed.client.local_model import LocalModel
from spherefed.data import sources
from spherefed.data.columns import ByColumn
from spherefed.data.dataset import Dataset, pooled, subset
from spherefed.data.examples import Examples, hold_out
from spherefed.data.locations import data_root as root_of
from spherefed.data.partition import Partition, partition, partition_of
from spherefed.errors import ConfigError
from spherefed.experiment import SITES, Experiment
from spherefed.experiment.own_parts import check_own_parts
from spherefed.messages import ModelState
from spherefed.nn.cached_encoder import feature_dataset, without_encoder
from spherefed.nn.classifier import Classifier, nothing_trained, num_features, on_device
from spherefed.nn.encoders import Encoder, InMemoryEncoder, has_batch_norm
from spherefed.nn.frozen import Frozen
from spherefed.nn.heads import RidgeStart
from spherefed.nn.layers import frozen_tensors, prefers_channels_last
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.schema import kind_of, to_plain
from spherefed.server.federation import Plan
from spherefed.tensors import Tensors, digest, one_thread


@dataclass(frozen=True, eq=False, slots=True)
class Assembly:
    """What one process needs to be a server, a client, or both."""

    experiment: Experiment
    """With `stack` resolved to a number."""
    dataset: Dataset
    """With the validation part, if any, as the test set."""
    partition: Partition
    local_model: LocalModel
    features: Dataset | None = None
    """Cached features in place of the inputs, if the encoder is frozen; the local model then begins after it."""

    @property
    def config(self) -> ClientConfig:
        """What every client of this experiment is configured with."""
        experiment = self.experiment
        return ClientConfig(
            seed=experiment.seed,
            local=experiment.local,
            loss=experiment.loss,
            prox_mu=experiment.algorithm.prox_mu,
            correction=experiment.algorithm.correction,
            personalization=experiment.personalization,
            calibration=experiment.calibration,
            start=FfcGcv() if isinstance(experiment.model.head, RidgeStart) else None,
            min_samples=experiment.min_samples,
            held_out=experiment.data.held_out,
            # Tuning on pooled data: a part of the clients' training examples replaces their held-out ones.
            validation=experiment.data.validation if experiment.data.pooled else 0.0,
            # A frozen encoder sees every example as it is stored, with and without a cache.
            augment=None if experiment.model.frozen else self.dataset.augment,
        )

    @property
    def clients(self) -> Clients:
        """The clients of this process; an idle one costs only its indices."""
        return Clients(self.config, self.local_model, (self.features or self.dataset).train, self.partition.parts)

    @property
    def test(self) -> Examples:
        """The test set as the local model reads it."""
        return (self.features or self.dataset).test

    def initial(self) -> ModelState:
        """The model before round 0; call it before the local model has been trained on."""
        return self.local_model.state()

    def context(self, model: ModelState, round_index: int) -> Context:
        """What the server knows when it calibrates this model."""
        return Context(head=self.local_model.head_of(model), seed=self.experiment.seed, round=round_index)

    def plan(self) -> Plan:
        e = self.experiment
        factors = [e.schedule.factor(t, e.rounds) for t in range(e.rounds)]
        return Plan(
            learning_rates=() if e.local is None else tuple(e.local.lr * factor for factor in factors),
            cohort=e.cohort,
            algorithm=e.algorithm,
            seed=e.seed,
            quorum=e.quorum,
            limits=e.limits,
            local=e.local,
            own_components=bool(e.own_components()),
        )


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class InMemory:
    """What a caller passes as objects, where an experiment usually names it."""

    dataset: Dataset | None = None
    partition: Partition | None = None
    """One part per client, if the data are those of natural clients."""
    encoder: nn.Module | None = None


def assemble(
    experiment: Experiment, *, device: str = "cpu", data_root: str | None = None, in_memory: InMemory | None = None
) -> Assembly:
    """Load, split, partition, build; everything random follows the experiment's seed."""
    check_can_train(experiment, device)
    given = in_memory or InMemory()
    data, parts = load_data(experiment, data_root, given.dataset), given.partition
    if parts is None:
        parts = split_data(experiment, data)
    elif wanted := [name for name in ("examples", "validation", "pooled") if getattr(experiment.data, name)]:
        raise ConfigError(f"data.{wanted[0]} does not go with one data set per client (clients=)")
    return build_parts(experiment, data, parts, device=device, data_root=data_root, encoder=given.encoder)


def build_parts(
    experiment: Experiment,
    data: Dataset,
    parts: Partition,
    *,
    device: str = "cpu",
    data_root: str | None = None,
    derived_state: Tensors | None = None,
    encoder: nn.Module | None = None,
) -> Assembly:
    """The parts of a process that has its data and partition: every engine and every site builds them here.

    `derived_state` is what the server derived from the seed, if this process is not to derive it itself. `encoder` is
    the module of an experiment whose encoder was passed in memory.
    """
    classifier = build_classifier(
        experiment, data.input_shape, data.num_classes, device, dtype=data.input_dtype, encoder=encoder
    )
    if experiment.own_components():
        check_own_parts(experiment, data.num_classes)
    if experiment.stack is None:
        cohort = experiment.cohort or experiment.partition.clients
        stack = 0 if experiment.stacking_blocker else suggested_stack(classifier, cohort)
        experiment = replace(experiment, stack=stack)
    features = frozen_digest = None
    if experiment.model.frozen and not data.remote:
        frozen_digest = digest(frozen) if (frozen := frozen_tensors(classifier)) else ""
        features = _cache_features(experiment, classifier, data, root_of(data_root))
    local_model = build_local_model(experiment, classifier, frozen_digest=frozen_digest)
    if derived_state is not None:
        local_model.load_derived(derived_state)
    return Assembly(experiment, data, parts, local_model, features)


def _cache_features(e: Experiment, classifier: Classifier, data: Dataset, root: Path) -> Dataset | None:
    """The features of a frozen encoder in place of the inputs; the classifier then begins after the encoder."""
    features = feature_dataset(classifier.encoder, to_plain(e.model.encoder), data, root)
    if features is not None:
        classifier.encoder = without_encoder(classifier.encoder)
        give_back_freed_memory()  # of the encoder's passes
    return features


def check_can_train(experiment: Experiment, device: str = "cpu") -> None:
    """Reject an experiment that this machine cannot train; every process that trains calls this."""
    if experiment.precision == "bf16" and device == "cpu":
        check_bfloat16()
    if experiment.compile:
        check_compiler()


def build_local_model(
    experiment: Experiment, classifier: Classifier, *, frozen_digest: str | None = None
) -> LocalModel:
    """The initial model, and which part of it is shared and how it is trained."""
    policy, local = experiment.model.batch_statistics, experiment.local
    local_model = LocalModel(
        classifier,
        experiment.algorithm.share,
        local_statistics=policy == "local",
        compile_for=local.batch_size if local is not None and experiment.compile else None,
        precision=experiment.precision,
        # More than the cohort are never asked, and each place of a stack takes the memory of a model.
        stack=min(experiment.stack or 0, experiment.cohort or experiment.partition.clients),
        frozen_digest=frozen_digest,
        own_components=bool(experiment.own_components()),
    )
    if experiment.rounds and not local_model.params:
        raise nothing_trained(kind_of(experiment.model.encoder), kind_of(experiment.model.head))
    if policy != "average" and not has_batch_norm(local_model.classifier):
        raise ConfigError(
            f"model.batch_statistics = {policy!r} needs an encoder with BatchNorm, "
            f"got {kind_of(experiment.model.encoder)!r} without; set model.encoder.norm=batch where it has that field"
        )
    if local is not None and local.batch_size < local_model.smallest_batch:
        raise ConfigError(
            f"encoder {kind_of(experiment.model.encoder)!r} has BatchNorm, so local.batch_size must be at least "
            f"{local_model.smallest_batch}, got {local.batch_size}; raise it or use norm = 'group'"
        )
    return local_model


def build_classifier(
    experiment: Experiment,
    input_shape: tuple[int, ...],
    num_classes: int,
    device: str = "cpu",
    *,
    dtype: str = "float32",
    encoder: nn.Module | None = None,
) -> Classifier:
    """Encoder and head as the experiment says, initialised from its seed on the CPU, then moved to the device."""
    model = experiment.model
    with torch_stream(experiment.seed, Purpose.ENCODER), one_thread():
        built = model.encoder.build(input_shape) if encoder is None else _copied(model.encoder, encoder)
        dim = num_features(built, input_shape, dtype, kind_of(model.encoder))
        if model.frozen:
            built = _frozen(built, experiment, dim)
            dim = num_features(built, input_shape, dtype, kind_of(model.encoder))
    with torch_stream(experiment.seed, Purpose.HEAD):  # for an own head; built-in ones have their own streams
        head = model.head.build(num_classes, dim, experiment.seed)
    classifier = Classifier(built, head, num_classes=num_classes, normalize=model.normalize)
    if experiment.compile or prefers_channels_last(built):  # compiled convolutions give gradients laid out like that
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return classifier if device == "cpu" else on_device(classifier, device)


def _copied(wanted: Encoder, given: nn.Module) -> nn.Module:
    """A copy of the module that was passed in memory, if the experiment says so."""
    if not isinstance(wanted, InMemoryEncoder):
        raise ConfigError(f"encoder= was given, but the experiment names the encoder {kind_of(wanted)!r}")
    return wanted.copy(given)


def _frozen(encoder: nn.Module, experiment: Experiment, dim: int) -> nn.Module:
    """The encoder, frozen, and the feature map and the adapter that follow it if the experiment says so."""
    model, frozen = experiment.model, Frozen(encoder)
    if model.feature_map is None and model.adapter is None:
        return frozen
    parts = nn.Sequential(frozen)
    if model.feature_map is not None:
        parts.append(model.feature_map.build(dim, experiment.seed))
        dim = model.feature_map.dim
    if model.adapter is not None:
        parts.append(model.adapter.build((dim,)))
    return parts


def split_data(experiment: Experiment, data: Dataset) -> Partition:
    """The partition of the training examples."""
    if isinstance(experiment.partition, ByColumn):
        rows = np.arange(len(data.train)) if data.train.indices is None else data.train.indices.numpy()
        parts = experiment.partition.split_column(data.columns, rows)
        return partition_of(parts, data.train.all_labels().numpy(), data.num_classes)
    rng = stream(experiment.seed, Purpose.PARTITION)
    return partition(experiment.partition, data.train.all_labels().numpy(), data.num_classes, rng)


def load_data(experiment: Experiment, data_root: str | None, given: Dataset | None = None) -> Dataset:
    """The data set as the experiment uses it: on a subset, and with the validation part instead of the test set."""
    wanted = experiment.data
    if wanted.name == SITES:
        raise ConfigError(f"data.name = {SITES!r}: only the sites have these data; use `spherefed deploy run`")
    if given is not None and given.name != wanted.name:
        raise ConfigError(f"the experiment is about the data {wanted.name!r}, but {given.name!r} were passed")
    data, encoder = given or load_named(experiment, wanted.name, data_root), experiment.model.encoder
    if wanted.classes or wanted.mean or hasattr(encoder, "mean") or hasattr(encoder, "std"):
        data = experiment.shared_format.apply_to(data)
    if wanted.examples is not None:
        data = subset(data, wanted.examples, pooled=wanted.pooled)
    if wanted.pooled:
        return pooled(data)
    if wanted.validation:
        kept, validation = hold_out(len(data.train), wanted.validation, stream(experiment.seed, Purpose.SPLIT))
        if not len(validation):
            raise ConfigError(f"data.validation {wanted.validation} of {len(data.train)} examples leaves no test set")
        data = replace(data, train=data.train.take(kept), test=data.train.take(validation))
    return data


def load_named(experiment: Experiment, name: str, data_root: str | None, *, min_classes: int = 2) -> Dataset:
    """A data set by name, read as the experiment says; its label column is for tables, of which this may be none."""
    data, partition = experiment.data, experiment.partition
    label = data.label_column if name.startswith("table:") or name == data.name else None
    client = partition.column if isinstance(partition, ByColumn) else None
    return sources.load(
        name, data_root, min_classes=min_classes, resize=data.resize, label_column=label, client_column=client
    )
