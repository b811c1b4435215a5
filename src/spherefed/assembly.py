"""From an experiment to the parts that run it: data, partition, clients, the initial model. Used by every engine."""

from dataclasses import dataclass, replace

import torch

from spherefed.calibration import Context
from spherefed.client import Client, Duties
from spherefed.data import sources
from spherefed.data.examples import Examples
from spherefed.data.partition import Partition, hold_out, partition
from spherefed.data.sources import Dataset
from spherefed.errors import ConfigError, ModelError
from spherefed.evaluation import Counts, count
from spherefed.experiment import Experiment
from spherefed.federation import Plan
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.tensors import one_thread
from spherefed.workbench import Workbench


@dataclass(frozen=True, eq=False, slots=True)
class Assembly:
    """What one process needs to be a server, a client, or both."""

    experiment: Experiment
    dataset: Dataset
    """With the validation part, if any, in the place of the test set."""
    partition: Partition
    bench: Workbench

    def client(self, number: int) -> Client:
        """Client k, made when it is needed: an idle one costs only its indices."""
        experiment = self.experiment
        mine = self.dataset.train.take(self.partition.parts[number])
        held = stream(experiment.seed, Purpose.HOLDOUT, number)
        kept, held_out = hold_out(len(mine), experiment.data.held_out, held)
        return Client(
            id=number,
            examples=mine if not len(held_out) else mine.take(kept),
            held_out=mine.take(held_out),
            bench=self.bench,
            duties=Duties(
                seed=experiment.seed,
                local=experiment.local,
                loss=experiment.loss,
                prox_mu=experiment.algorithm.prox_mu,
                calibration=experiment.calibration,
                min_samples=experiment.min_samples,
                augment=self.dataset.augment,
            ),
        )

    def initial(self) -> ModelState:
        """The model before round 0; call it before the bench has been worked on."""
        return self.bench.read()

    def evaluate(self, model: ModelState) -> Counts:
        """Right answers on the test set, which only the server has."""
        with one_thread():
            self.bench.lay(model)
            return count(self.bench.classifier, self.dataset.test, self.bench.device)

    def context(self, model: ModelState, round_index: int) -> Context:
        """What the server knows when it calibrates this model."""
        return Context(head=self.bench.head_of(model), seed=self.experiment.seed, round=round_index)

    def plan(self) -> Plan:
        e = self.experiment
        return Plan(
            rounds=e.rounds, lr=e.local.lr, schedule=e.schedule, cohort=e.cohort, algorithm=e.algorithm, seed=e.seed
        )


def assemble(experiment: Experiment, *, device: str = "cpu", dataset: Dataset | None = None) -> Assembly:
    """Load, split, partition, build; everything random follows the experiment's seed."""
    whole = sources.load(experiment.data.name) if dataset is None else dataset
    data = _with_validation(whole, experiment)
    labels = data.train.all_labels().numpy()
    parts = partition(experiment.partition, labels, data.num_classes, stream(experiment.seed, Purpose.PARTITION))
    return Assembly(experiment, data, parts, Workbench(build_classifier(experiment, data, device)))


def build_classifier(experiment: Experiment, data: Dataset, device: str = "cpu") -> Classifier:
    """Encoder and head as the experiment says, initialised from its seed on the CPU, then moved to the device."""
    model = experiment.model
    with torch_stream(experiment.seed, Purpose.ENCODER), one_thread():
        encoder = model.encoder.build(data.input_shape)
        example = next(data.train.in_order(2, device=torch.device("cpu")))[0]
        try:
            with torch.no_grad():
                features = encoder.eval()(example)
        except RuntimeError as error:
            raise ModelError(
                f"encoder {model.encoder.kind!r} cannot read inputs of shape {data.input_shape}: {error}"
            ) from error
    head = model.head.build(data.num_classes, features.shape[1], experiment.seed)
    classifier = Classifier(encoder, head, num_classes=data.num_classes, normalize=model.normalize)
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}; try --device cpu"
        ) from error


def _with_validation(data: Dataset, experiment: Experiment) -> Dataset:
    """For tuning: a part of the training examples takes the place of the test set, which is then never looked at."""
    if not experiment.data.validation:
        return data
    rng = stream(experiment.seed, Purpose.SPLIT)
    kept, validation = hold_out(len(data.train), experiment.data.validation, rng)
    test: Examples = data.train.take(validation)
    return replace(data, train=data.train.take(kept), test=test)
