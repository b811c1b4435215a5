"""From an experiment to the parts that run it: data, partition, clients, the initial model. Used by every engine."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from spherefed.calibration import Context
from spherefed.client import Client, Duties
from spherefed.data import sources
from spherefed.data.examples import Examples
from spherefed.data.partition import Partition, hold_out, partition
from spherefed.data.sources import Dataset
from spherefed.errors import ConfigError, ModelError
from spherefed.evaluation import Counts, count
from spherefed.experiment import SITES, Experiment
from spherefed.federation import Plan
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import has_batch_statistics
from spherefed.nn.layers import likes_channels_last
from spherefed.nn.passes import check_bfloat16, check_compiler
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.stacking import Stack, suggested
from spherefed.tensors import one_thread
from spherefed.workbench import Workbench

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Assembly:
    """What one process needs to be a server, a client, or both."""

    experiment: Experiment
    dataset: Dataset
    """With the validation part, if any, in the place of the test set."""
    partition: Partition
    bench: Workbench
    duties: Duties = field(init=False)
    _nothing: Examples = field(init=False)

    def __post_init__(self) -> None:
        experiment = self.experiment
        duties = Duties(
            seed=experiment.seed,
            local=experiment.local,
            loss=experiment.loss,
            prox_mu=experiment.algorithm.prox_mu,
            correction=experiment.algorithm.correction,
            personalization=experiment.personalization,
            calibration=experiment.calibration,
            min_samples=experiment.min_samples,
            augment=self.dataset.augment,
        )
        object.__setattr__(self, "duties", duties)
        object.__setattr__(self, "_nothing", self.dataset.train.take(NOTHING))

    def client(self, number: int) -> Client:
        """Client k, made when it is needed: an idle one costs only its indices."""
        mine = self.dataset.train.take(self.partition.parts[number])
        examples, held_out = self._divided(mine, number) if self.experiment.data.held_out else (mine, self._nothing)
        return Client(
            id=number,
            examples=examples,
            held_out=held_out,
            bench=self.bench,
            duties=self.duties,
        )

    def _divided(self, mine: Examples, number: int) -> tuple[Examples, Examples]:
        """What client k trains on, and what it holds out."""
        data = self.experiment.data
        held = stream(self.experiment.seed, Purpose.HOLDOUT, number)
        kept, held_out = hold_out(len(mine), data.held_out, held)
        if data.pooled and data.validation:  # tuning: what is held out stays out of sight
            again, validation = hold_out(len(kept), data.validation, held)
            kept, held_out = kept[again], kept[validation]
        return mine if len(kept) == len(mine) else mine.take(kept), mine.take(held_out)

    def stack(self) -> Stack | None:
        """Where clients train together, if the experiment wants them to."""
        return Stack(self.bench, self.experiment.stack) if self.experiment.stack else None

    def initial(self) -> ModelState:
        """The model before round 0; call it before the bench has been worked on."""
        return self.bench.read()

    def evaluate(self, model: ModelState) -> Counts:
        """Right answers on the test set, which only the server has."""
        with one_thread():
            self.bench.lay(model)
            self.bench.set_training(False)
            return count(self.bench.classifier, self.dataset.test, self.bench.device)

    def context(self, model: ModelState, round_index: int) -> Context:
        """What the server knows when it calibrates this model."""
        return Context(head=self.bench.head_of(model), seed=self.experiment.seed, round=round_index)

    def global_accuracy(self, model: ModelState) -> float | None:
        """Accuracy on the test set; None where there is no test set (pooled) or no whole model (a part is private)."""
        if not len(self.dataset.test) or self.bench.private:
            return None
        return self.evaluate(model).accuracy

    def plan(self) -> Plan:
        e = self.experiment
        return Plan(
            rounds=e.rounds,
            lr=e.local.lr,
            schedule=e.schedule,
            cohort=e.cohort,
            algorithm=e.algorithm,
            seed=e.seed,
            quorum=e.quorum,
        )


def assemble(experiment: Experiment, *, device: str = "cpu", data_root: str | None = None) -> Assembly:
    """Load, split, partition, build; everything random follows the experiment's seed."""
    check_can_train(experiment, device)
    data = load_data(experiment, data_root)
    parts = split_data(experiment, data)
    bench = build_bench(experiment, data.input_shape, data.num_classes, device)
    if experiment.stack is None:
        cohort = experiment.cohort or experiment.partition.clients
        experiment = replace(experiment, stack=0 if experiment.against_stacking else suggested(bench, cohort))
    return Assembly(experiment, data, parts, bench)


def check_can_train(experiment: Experiment, device: str = "cpu") -> None:
    """Whether this machine has what the experiment trains with: for every process that is going to."""
    if experiment.precision == "bf16" and device == "cpu":
        check_bfloat16()
    if experiment.compile:
        check_compiler()


def build_bench(
    experiment: Experiment, input_shape: tuple[int, ...], num_classes: int, device: str = "cpu"
) -> Workbench:
    """The initial model on a bench that knows what is shared."""
    policy = experiment.model.batch_statistics
    bench = Workbench(
        build_classifier(experiment, input_shape, num_classes, device),
        experiment.algorithm.share,
        local_statistics=policy == "local",
        compile_for=experiment.local.batch_size if experiment.compile else None,
        precision=experiment.precision,
    )
    if policy != "average" and not has_batch_statistics(bench.classifier):
        raise ConfigError(
            f"model.batch_statistics = {policy!r} needs an encoder with BatchNorm, "
            f"got {experiment.model.encoder.kind!r} without; set model.encoder.norm=batch where it has that field"
        )
    if experiment.local.batch_size < bench.smallest_batch:
        raise ConfigError(
            f"encoder {experiment.model.encoder.kind!r} has BatchNorm, so local.batch_size must be at least "
            f"{bench.smallest_batch}, got {experiment.local.batch_size}; raise it or use norm = 'group'"
        )
    return bench


def build_classifier(
    experiment: Experiment, input_shape: tuple[int, ...], num_classes: int, device: str = "cpu"
) -> Classifier:
    """Encoder and head as the experiment says, initialised from its seed on the CPU, then moved to the device."""
    model = experiment.model
    with torch_stream(experiment.seed, Purpose.ENCODER), one_thread():
        encoder = model.encoder.build(input_shape)
        try:
            with torch.no_grad():
                features = encoder.eval()(torch.zeros(1, *input_shape))
        except RuntimeError as error:
            raise ModelError(f"encoder {model.encoder.kind!r} cannot read inputs of {input_shape}: {error}") from error
    head = model.head.build(num_classes, features.shape[1], experiment.seed)
    classifier = Classifier(encoder, head, num_classes=num_classes, normalize=model.normalize)
    if experiment.compile or likes_channels_last(encoder):  # compiled convolutions give gradients laid out like that
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return on_device(classifier, device)


def on_device(classifier: Classifier, device: str) -> Classifier:
    """The classifier moved to a torch device by name."""
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}; try --device cpu"
        ) from error


def split_data(experiment: Experiment, data: Dataset) -> Partition:
    """Who gets which of the training examples."""
    rng = stream(experiment.seed, Purpose.PARTITION)
    return partition(experiment.partition, data.train.all_labels().numpy(), data.num_classes, rng)


def load_data(experiment: Experiment, data_root: str | None) -> Dataset:
    """The data set as the experiment uses it: on a subset, and with the validation part in the test set's place."""
    wanted = experiment.data
    if wanted.name == SITES:
        raise ConfigError(f"data.name = {SITES!r}: only the sites have these data; use `spherefed deploy run`")
    data = wanted.convention.applied(sources.load(wanted.name, data_root))
    if wanted.examples is not None:
        if wanted.examples > len(data.train):
            raise ConfigError(f"data.examples is {wanted.examples}, {data.name} has {len(data.train)} for training")
        chosen = stream(0, Purpose.SUBSET).permutation(len(data.train))[: wanted.examples]
        data = replace(data, train=data.train.take(np.sort(chosen)))
    if wanted.pooled:
        return pooled(data)
    if wanted.validation:
        rng = stream(experiment.seed, Purpose.SPLIT)
        kept, validation = hold_out(len(data.train), wanted.validation, rng)
        if not len(validation):
            raise ConfigError(
                f"data.validation {wanted.validation} of {len(data.train)} examples leaves none to test on"
            )
        data = replace(data, train=data.train.take(kept), test=data.train.take(validation))
    return data


def pooled(data: Dataset) -> Dataset:
    """Training and test examples as one set that clients share (App. B); nothing is left for the server."""
    parts = (data.train, data.test)
    train = Examples(
        torch.cat([part.inputs if part.indices is None else part.inputs[part.indices] for part in parts]),
        torch.cat([part.all_labels() for part in parts]),
        data.train.prepare,
    )
    return replace(data, train=train, test=train.take(torch.zeros(0, dtype=torch.int64)))
