"""From an experiment to the parts that run it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from spherefed.assembly import assemble, build_parts, load_data, split_data
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError
from spherefed.experiment import Data, Model
from spherefed.messages import ModelState
from spherefed.nn.encoders import Flatten, Mlp, SmallNet
from spherefed.nn.heads import Orthonormal
from spherefed.server.algorithms import fedavg, fedrep
from spherefed.server.federation import Plan
from support.small import assembled, blobs, tiny


def test_a_plan_says_what_the_experiment_says() -> None:
    assembly = assembled(cohort=3, seed=5)
    plan = assembly.plan()
    assert plan == Plan(
        learning_rates=plan.learning_rates, cohort=3, algorithm=fedavg(), seed=5, local=assembly.experiment.local
    )
    cosine = [0.5 * (1 + math.cos(math.pi * t / 3)) / 2 for t in range(3)]
    assert plan.learning_rates == pytest.approx(cosine, rel=1e-12)


def test_the_local_model_is_built_as_the_experiment_says() -> None:
    learned = Model(encoder=Mlp(widths=(8,)))
    private = assembled(algorithm=fedrep(), model=learned, calibration=None).local_model
    assert private.private.keys() == {"head.weight"}
    assert assembled(precision="bf16").local_model.gradients.chain is None
    assert assembled().local_model.gradients.chain is not None
    assert assembled(stack=3).local_model.stacked is not None
    assert assembled(stack=0).local_model.stacked is None


def test_the_same_experiment_gives_the_same_parts_and_another_seed_others() -> None:
    first, again, other = assembled(), assembled(), assembled(seed=1)
    assert first.initial().digest() == again.initial().digest() != other.initial().digest()
    assert first.partition.digest() == again.partition.digest() != other.partition.digest()


def test_parts_with_derived_tensors_use_them_instead_of_their_own() -> None:
    experiment, data = tiny(), blobs()
    parts = split_data(experiment, data)
    derived = {
        name: tensor + 1 for name, tensor in build_parts(experiment, data, parts).local_model.derived_state().items()
    }
    found = build_parts(experiment, data, parts, derived_state=derived)
    model = found.initial()
    found.local_model.load_state(model)
    assert torch.equal(found.local_model.classifier.head.weight, derived["head"])


def test_the_context_of_a_calibration_has_the_head_of_the_state() -> None:
    assembly = assembled(seed=3)
    model = assembly.initial()
    calibrated = ModelState(model.params, model.buffers, {"weight": torch.ones(3, 8)})
    for state, head in ((model, assembly.local_model.classifier.head.weight), (calibrated, torch.ones(3, 8))):
        context = assembly.context(state, 7)
        assert (context.seed, context.round) == (3, 7)
        assert torch.equal(context.head, head)


def test_clients_have_the_examples_that_the_partition_says() -> None:
    assembly = assembled(partition=Iid(clients=5))
    assert len(assembly.clients) == 5
    for number, part in enumerate(assembly.partition.parts):
        examples = assembly.clients[number].examples
        assert examples.indices is not None
        assert examples.indices.tolist() == part.tolist()


def test_a_subset_is_the_same_for_every_seed_and_validation_takes_the_place_of_the_test_set() -> None:
    def labels(seed: int, **changes: object) -> tuple[list[int], list[int]]:
        base = tiny(seed=seed)
        data = load_data(replace(base, data=replace(base.data, examples=50, **changes)), None)
        return data.train.all_labels().tolist(), data.test.all_labels().tolist()

    assert labels(0) == labels(1)
    kept, validation = labels(0, validation=0.2)
    assert sorted(kept + validation) == sorted(labels(0)[0])
    assert len(validation) == 10
    assert labels(1, validation=0.2)[1] != validation


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": Model(encoder=Mlp(), batch_statistics="reestimate")}, "needs an encoder with BatchNorm"),
        ({"model": Model(encoder=SmallNet(norm="batch")), "local": LocalTraining(lr=0.1, batch_size=1)}, "at least 2"),
        ({"model": Model(encoder=Flatten(), head=Orthonormal())}, "nothing is trained: .*use head 'learned'"),
    ],
)
def test_what_the_encoder_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        assemble(tiny(calibration=None, **changes))


def test_a_subset_of_pooled_data_is_taken_of_training_and_test_examples_together() -> None:
    pooled = Data(examples=400, pooled=True, held_out=0.2)
    data = load_data(tiny(data=pooled), None)
    assert (len(data.train), len(data.test)) == (400, 0)
    everything = load_data(tiny(data=replace(pooled, examples=None)), None)
    whole, own = ({row.numpy().tobytes() for row in part.inputs} for part in (everything.train, data.train))
    assert own <= whole
    test = {row.numpy().tobytes() for row in load_data(tiny(data=Data()), None).test.inputs}
    assert 0 < len(own & test) < 200  # a fifth of all examples are test examples
    assert len(load_data(tiny(data=replace(pooled, examples=1797)), None).train) == 1797
    with pytest.raises(ConfigError, match=r"data\.examples is 1798, digits has 1797 for training"):
        load_data(tiny(data=replace(pooled, examples=1798)), None)
