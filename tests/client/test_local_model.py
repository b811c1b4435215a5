"""The model that a process trains: what is loaded is read back, what is private stays, what does not fit is refused."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from spherefed.client.local_model import LocalModel
from spherefed.errors import ModelError
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier, hyperspherical
from spherefed.nn.heads import ClassifierHead, Learned, Orthonormal

ENCODER = {f"encoder.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")}
STATISTICS = {"encoder.1.running_mean", "encoder.1.running_var"}
HEAD = "head.weight"


def local_model(share: Any = "all", *, head: ClassifierHead | None = None, **settings: Any) -> LocalModel:
    """A layer, BatchNorm and a learned head, each with values of its own."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))
    chosen = head or Learned().build(3, 6, 0)
    return LocalModel(Classifier(encoder, chosen, num_classes=3, normalize=True), share, **settings)


def fixed() -> ClassifierHead:
    return Orthonormal().build(3, 6, 0)


def shifted(state: ModelState, by: float) -> ModelState:
    return ModelState({n: t + by for n, t in state.params.items()}, {n: t + by for n, t in state.buffers.items()})


@pytest.mark.parametrize(
    ("share", "local_statistics", "params", "buffers", "private"),
    [
        ("all", False, ENCODER | {HEAD}, STATISTICS, set()),
        ("all", True, ENCODER | {HEAD}, set(), STATISTICS),
        ("encoder", False, ENCODER, STATISTICS, {HEAD}),
        ("encoder", True, ENCODER, set(), STATISTICS | {HEAD}),
        ("head", False, {HEAD}, set(), ENCODER | STATISTICS),
    ],
)
def test_every_tensor_is_either_shared_or_private(
    share: str, local_statistics: bool, params: set[str], buffers: set[str], private: set[str]
) -> None:
    mine = local_model(share, local_statistics=local_statistics)
    state = mine.state()
    assert (state.params.keys(), state.buffers.keys(), state.head) == (params, buffers, None)
    assert mine.private_state().keys() == private


def test_a_fixed_head_is_neither_sent_nor_private() -> None:
    mine = local_model(head=fixed())
    assert HEAD not in {**mine.state().tensors(), **mine.private_state()}
    assert torch.equal(mine.derived_state()["head"], fixed().weight)


def test_what_is_loaded_is_read_back() -> None:
    mine = local_model("encoder")
    state, private = shifted(mine.state(), 1.0), {HEAD: torch.full((3, 6), 5.0)}
    mine.load_state(state, private)
    assert mine.state().digest() == state.digest()
    assert torch.equal(mine.private_state()[HEAD], private[HEAD])
    assert torch.equal(mine.classifier.encoder[0].weight, state.params["encoder.0.weight"])
    assert torch.equal(mine.classifier.head.weight, private[HEAD])


def test_what_is_read_is_a_copy() -> None:
    mine = local_model("encoder")
    state, private = mine.state(), mine.private_state()
    before = state.digest()
    with torch.no_grad():
        for tensor in mine.classifier.state_dict().values():
            tensor.add_(1)
    assert state.digest() == before
    assert torch.equal(private[HEAD], local_model("encoder").private_state()[HEAD])


def test_a_calibrated_head_lasts_until_the_next_state_without_one() -> None:
    mine = local_model(head=fixed())
    state = mine.state()
    calibrated = {"weight": fixed().weight + 3}
    mine.load_state(ModelState(state.params, state.buffers, calibrated))
    assert torch.equal(mine.classifier.head.weight, calibrated["weight"])
    mine.load_state(state)
    assert torch.equal(mine.classifier.head.weight, fixed().weight)


def test_a_private_part_of_another_client_does_not_stay() -> None:
    mine = local_model("encoder")
    initial = mine.private_state()
    mine.load_state(mine.state(), {HEAD: torch.full((3, 6), 5.0)})
    mine.load_state(mine.state())
    assert torch.equal(mine.private_state()[HEAD], initial[HEAD])


def test_batchnorms_step_counter_does_not_count_earlier_clients() -> None:
    mine = local_model()
    state = mine.state()
    mine.set_training()
    for _ in range(3):
        mine.classifier(torch.randn(4, 8))
    assert int(mine.classifier.encoder[1].num_batches_tracked) == 3
    mine.load_state(state)
    assert int(mine.classifier.encoder[1].num_batches_tracked) == 0


@pytest.mark.parametrize("part", ["params", "buffers"])
@pytest.mark.parametrize("fault", ["narrow", "missing", "unknown", "double"])
def test_a_state_that_does_not_fit_is_refused_and_nothing_of_it_is_loaded(part: str, fault: str) -> None:
    mine = local_model()
    good = mine.state()
    tensors = dict(getattr(shifted(good, 1.0), part))
    name = next(iter(tensors))
    if fault == "narrow":
        tensors[name] = tensors[name][:1]  # a copy would broadcast it
    elif fault == "missing":
        del tensors[name]
    elif fault == "unknown":
        tensors["other"] = torch.ones(1)
    else:
        tensors[name] = tensors[name].double()
    bad = ModelState(**{"params": good.params, "buffers": good.buffers} | {part: tensors})
    with pytest.raises(ModelError, match="does not fit"):
        mine.load_state(bad)
    assert mine.state().digest() == good.digest()


def test_heads_and_private_parts_that_do_not_fit_are_refused() -> None:
    mine = local_model("encoder")
    state = mine.state()
    with pytest.raises(ModelError, match="does not fit"):
        mine.load_state(ModelState(state.params, state.buffers, {"weight": torch.zeros(1, 6)}))
    with pytest.raises(ModelError, match="does not fit"):
        mine.load_state(state, {HEAD: torch.zeros(2, 6)})


@pytest.mark.parametrize(
    ("calibrated", "head", "expected"),
    [(None, None, "learned"), (None, fixed(), "fixed"), (torch.ones(3, 6), None, "calibrated")],
)
def test_the_head_of_a_state_is_calibrated_learned_or_fixed(calibrated: Any, head: Any, expected: str) -> None:
    mine = local_model(head=copy.deepcopy(head))
    state = shifted(mine.state(), 1.0)
    whole = ModelState(state.params, state.buffers, None if calibrated is None else {"weight": calibrated})
    wanted = {"learned": state.params.get(HEAD), "fixed": fixed().weight, "calibrated": calibrated}[expected]
    assert wanted is not None
    assert torch.equal(mine.head_of(whole), wanted)


def test_derived_tensors_of_one_process_serve_another() -> None:
    first, second = local_model("encoder"), local_model("encoder", head=Learned().build(3, 6, 1))
    assert not torch.equal(first.derived_state()["head"], second.derived_state()["head"])
    second.load_derived(first.derived_state())
    assert all(torch.equal(second.derived_state()[n], t) for n, t in first.derived_state().items())
    second.load_state(first.state())
    assert torch.equal(second.private_state()[HEAD], first.private_state()[HEAD])


def test_the_mode_reaches_every_layer() -> None:
    mine = local_model()
    for training in (False, True, False):
        mine.set_training(training)
        assert {layer.training for layer in mine.classifier.modules()} == {training}


@pytest.mark.parametrize(("encoder", "smallest"), [(nn.Linear(8, 6), 1), (nn.BatchNorm1d(6), 2)])
def test_batchnorm_needs_two_examples_in_a_batch(encoder: nn.Module, smallest: int) -> None:
    assert LocalModel(Classifier(encoder, fixed(), num_classes=3, normalize=False)).smallest_batch == smallest


def test_a_model_whose_feature_dimension_is_unknown_is_refused() -> None:
    with pytest.raises(ModelError, match="call the model once"):
        LocalModel(hyperspherical(nn.Linear(8, 6), 3))
