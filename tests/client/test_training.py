"""The local training loop against torch.optim.SGD, and what is reported about it."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining, effective_steps
from spherefed.data.examples import Examples
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError
from spherefed.losses import CrossEntropy, MeanSquaredError
from spherefed.messages import Train, TrainReply
from spherefed.nn.classifier import Classifier
from spherefed.nn.heads import Learned, Orthonormal
from spherefed.rng import Purpose, stream
from spherefed.server.federation import federate
from support.small import assembled, blobs, handle_one, in_process, train_one


def classifier() -> Classifier:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    return Classifier(encoder, Learned().build(3, 5, 0), num_classes=3, normalize=True)


def plain_sgd(
    model: Classifier,
    examples: Examples,
    local: LocalTraining,
    order: np.random.Generator,
    extra_loss: "Callable[[nn.Module], Tensor] | None" = None,
) -> tuple[int, float]:
    """The textbook loop over torch's own optimiser; steps and mean loss."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
    )
    model.train()
    num_steps, losses = 0, []
    for _ in range(local.epochs):
        positions = order.permutation(len(examples))
        for start in range(0, len(positions), local.batch_size):
            chosen = torch.from_numpy(positions[start : start + local.batch_size])
            optimizer.zero_grad()
            loss = CrossEntropy()(model(examples.inputs[chosen]), examples.labels[chosen])
            losses += [loss.item()] * len(chosen)
            if extra_loss is not None:
                loss = loss + extra_loss(model)
            loss.backward()
            optimizer.step()
            num_steps += 1
    return num_steps, float(np.mean(losses))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_local_training_equals_torchs_sgd_to_the_bit(momentum: float, weight_decay: float) -> None:
    local = LocalTraining(lr=0.3, epochs=3, batch_size=16, momentum=momentum, weight_decay=weight_decay)
    examples = blobs(num_train=90).train  # 5 whole batches and one of 10
    ours, theirs = classifier(), classifier()
    trained = train_one(
        LocalModel(ours), examples, local=local, loss=CrossEntropy(), lr=local.lr, order=stream(1, Purpose.BATCHES)
    )
    num_steps, loss = plain_sgd(theirs, examples, local, stream(1, Purpose.BATCHES))
    assert trained.num_steps == num_steps == 18
    assert trained.loss == pytest.approx(loss, rel=1e-5)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_one_client_and_one_round_is_plain_sgd() -> None:
    local = LocalTraining(lr=0.3, epochs=2, batch_size=16)
    assembly = assembled(partition=Iid(clients=1), rounds=1, local=local, loss=CrossEntropy())
    plain = copy.deepcopy(assembly.local_model.classifier)
    initial = assembly.initial()
    (done,) = federate(in_process(assembly), initial, assembly.plan())
    plain_sgd(plain, assembly.dataset.train, local, stream(0, Purpose.BATCHES, 0, 0))
    for name, tensor in plain.named_parameters():
        # The server adds a difference of float32 numbers to where it started, which rounds once more.
        assert torch.allclose(done.model.params[name], tensor, rtol=0, atol=1e-6), name
        assert not torch.equal(done.model.params[name], initial.params[name])


def test_the_proximal_term_is_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    mu, local = 0.7, LocalTraining(lr=0.1, epochs=2, batch_size=30, momentum=0.9, weight_decay=1e-3)
    examples = blobs().train
    ours, theirs = classifier(), classifier()
    anchor = {n: p.detach() + 0.5 for n, p in theirs.named_parameters()}

    def proximal(model: nn.Module) -> Tensor:
        distances = [(p - anchor[n]).pow(2).sum() for n, p in model.named_parameters()]
        return mu / 2 * torch.stack(distances).sum()

    trained = train_one(
        LocalModel(ours),
        examples,
        local=local,
        loss=CrossEntropy(),
        lr=local.lr,
        order=stream(1, Purpose.BATCHES),
        prox_mu=mu,
        anchor=anchor,
    )
    _, loss = plain_sgd(theirs, examples, local, stream(1, Purpose.BATCHES), proximal)
    for name, tensor in theirs.named_parameters():
        assert torch.allclose(dict(ours.named_parameters())[name], tensor, atol=1e-5), name
    assert trained.loss == pytest.approx(loss, rel=1e-4)  # the reported loss is without the proximal term


def test_an_unused_anchor_changes_no_bit() -> None:
    results = []
    for anchor in (None, {n: p.detach() + 1 for n, p in classifier().named_parameters()}):
        model = classifier()
        local = LocalTraining(lr=0.1, epochs=1)
        train_one(
            LocalModel(model),
            blobs().train,
            local=local,
            loss=CrossEntropy(),
            lr=0.1,
            order=stream(1, Purpose.BATCHES),
            prox_mu=0.0,
            anchor=anchor,
        )
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


class TwoBiases(nn.Module):
    """Two parameters that are only ever added: autograd hands out one gradient tensor for both."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.a = nn.Parameter(torch.zeros(6))
        self.b = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.flat(x) * 0.1 + (self.a + self.b)
        return features


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_that_share_a_gradient_tensor_move_as_under_torchs_sgd(momentum: float) -> None:
    local = LocalTraining(lr=0.2, epochs=3, batch_size=16, momentum=momentum, weight_decay=0.0)
    models = [Classifier(TwoBiases(), Orthonormal().build(3, 6, 0), num_classes=3, normalize=False) for _ in range(2)]
    train_one(
        LocalModel(models[0]), blobs().train, local=local, loss=CrossEntropy(), lr=0.2, order=stream(1, Purpose.BATCHES)
    )
    plain_sgd(models[1], blobs().train, local, stream(1, Purpose.BATCHES))
    for name, tensor in models[1].named_parameters():
        assert torch.equal(dict(models[0].named_parameters())[name], tensor)
    moved = models[0].encoder
    assert torch.allclose(moved.a - 0, moved.b - 1, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
def test_effective_steps_equal_the_recursion_they_are_the_sum_of(momentum: float) -> None:
    correction_state = total = 0.0
    assert effective_steps(0, momentum=momentum) == 0
    for num_steps in range(1, 200):
        correction_state = momentum * correction_state + 1
        total += correction_state
        assert effective_steps(num_steps, momentum=momentum) == pytest.approx(total, rel=1e-9)


def test_effective_steps_are_how_far_a_constant_gradient_carries() -> None:
    """The definition itself: under a constant gradient the weights move by lr · ‖a‖₁ times it."""
    for momentum in (0.0, 0.9):
        weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=0.25, momentum=momentum)
        for num_steps in range(1, 30):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            assert -weight.item() / 0.25 == pytest.approx(effective_steps(num_steps, momentum=momentum), rel=1e-12)


def test_a_clients_reply_says_what_it_did() -> None:
    assembly = assembled()
    request = Train(2, assembly.initial(), lr=0.125)
    client = assembly.clients[1]
    before = {n: t.clone() for n, t in request.model.params.items()}
    reply, memory = handle_one(client, request, None)
    assert isinstance(reply, TrainReply)
    assert memory is None
    assert (reply.client, reply.round, reply.num_examples) == (1, 2, len(assembly.partition.parts[1]))
    num_steps = 2 * -(-reply.num_examples // 8)
    assert reply.effective_steps == effective_steps(num_steps, momentum=0.9)
    assert all(torch.equal(t, before[n]) for n, t in request.model.params.items())  # the request is not touched
    local_model = assembly.local_model
    local_model.load_state(request.model)
    train_one(
        local_model,
        client.examples,
        local=assembly.experiment.local,
        loss=MeanSquaredError(),
        lr=0.125,
        order=stream(0, Purpose.BATCHES, 2, 1),
    )
    for name, tensor in local_model.params.items():
        assert torch.equal(reply.delta[name], tensor.detach() - before[name])


def test_handling_a_request_depends_on_nothing_that_was_handled_before() -> None:
    assembly = assembled()
    request = Train(0, assembly.initial(), lr=0.5)
    first, _ = handle_one(assembly.clients[0], request, None)
    torch.manual_seed(99)
    handle_one(assembly.clients[3], Train(1, assembly.initial(), lr=3.0), None)
    again, _ = handle_one(assembly.clients[0], request, None)
    assert isinstance(first, TrainReply)
    assert isinstance(again, TrainReply)
    assert all(torch.equal(first.delta[n], again.delta[n]) for n in first.delta)
    assert first.loss == again.loss


def test_random_layers_follow_the_clients_stream_and_leave_torchs_own_state_alone() -> None:
    assembly = assembled()
    encoder = assembly.local_model.classifier.encoder
    assert isinstance(encoder, nn.Sequential)
    encoder.append(nn.Dropout(0.5))
    assembly = replace(assembly, local_model=LocalModel(assembly.local_model.classifier))
    request = Train(0, assembly.initial(), lr=0.5)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = handle_one(assembly.clients[0], request, None)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, _ = handle_one(assembly.clients[0], request, None)
    assert isinstance(first, TrainReply)
    assert isinstance(again, TrainReply)
    assert all(torch.equal(first.delta[n], again.delta[n]) for n in first.delta)


def test_work_runs_on_one_thread_and_gives_the_callers_setting_back() -> None:
    seen = []

    def spy(inputs: Tensor, order: np.random.Generator) -> Tensor:
        seen.append(torch.get_num_threads())
        return inputs

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assembly = assembled(blobs(augment=spy))
        handle_one(assembly.clients[0], Train(0, assembly.initial(), lr=0.5), None)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_client_without_examples_stays_where_it_is() -> None:
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    none = blobs().train.take(np.zeros(0, dtype=np.int64))
    trained = train_one(
        LocalModel(model),
        none,
        local=LocalTraining(lr=1.0),
        loss=CrossEntropy(),
        lr=1.0,
        order=stream(0, Purpose.BATCHES),
    )
    assert (trained.num_steps, trained.loss) == (0, 0.0)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"epochs": 0},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": float("nan")},
        {"weight_decay": -1e-9},
        {"weight_decay": float("nan")},
    ],
)
def test_impossible_training_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LocalTraining(**({"lr": 0.1} | wrong))
