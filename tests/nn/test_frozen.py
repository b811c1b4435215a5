"""Frozen encoders: fixed batches, eval mode, nothing to train, send or average."""

import pytest
import torch
from torch import nn

from spherefed.client.local_model import LocalModel
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import Encoder, Mlp, MobileNetV2, ResNet18, SmallNet
from spherefed.nn.frozen import BATCH_ROWS, Frozen
from spherefed.nn.heads import Learned
from spherefed.nn.layers import frozen_tensors, trainable_modules


def small_encoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "shape"),
    [(Mlp(widths=(37, 19)), (1, 7, 9)), (SmallNet(norm="batch"), (3, 16, 16)), (ResNet18(), (3, 32, 32))],
)
def test_features_of_an_example_do_not_depend_on_its_batch(encoder: Encoder, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    frozen, num = Frozen(encoder.build(shape)), 2 * BATCH_ROWS + 5
    inputs, order = torch.randn(num, *shape), torch.randperm(num)
    whole = frozen(inputs)
    assert torch.equal(frozen(inputs[order]), whole[order])
    assert torch.equal(torch.cat([frozen(part) for part in torch.split(inputs, 7)]), whole)
    assert whole.std() > 0


def test_no_rows_give_no_features_of_the_right_width() -> None:
    assert Frozen(small_encoder())(torch.zeros(0, 6)).shape == (0, 5)


def test_a_frozen_module_stays_in_eval_mode_and_keeps_its_statistics() -> None:
    frozen = Frozen(small_encoder())
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    outer = nn.Sequential(frozen, nn.Dropout()).train()
    assert outer.training
    assert not any(part.training for part in frozen.modules())
    first = frozen(torch.ones(4, 6))
    assert torch.equal(first, frozen(torch.ones(4, 6)))  # no dropout
    assert not first.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen.state_dict().items())


def test_a_local_model_shares_and_keeps_nothing_of_a_frozen_encoder() -> None:
    encoder = nn.Sequential(Frozen(small_encoder()), nn.Linear(5, 4))
    model = LocalModel(Classifier(encoder, Learned().build(3, 4, 0), num_classes=3, normalize=False))
    assert set(model.state().params) == {"encoder.1.weight", "encoder.1.bias", "head.weight"}
    assert not model.state().buffers
    assert not model.private
    assert model.smallest_batch == 1  # the BatchNorm layer does not see the batch
    model.set_training(True)
    assert model.classifier.training
    assert not any(part.training for part in encoder[0].modules())


def test_the_digest_of_a_frozen_encoder_follows_its_weights_and_buffers() -> None:
    def digest(change: str | None) -> str:
        torch.manual_seed(0)
        encoder = Frozen(small_encoder())
        if change is not None:
            frozen_tensors(encoder)[change].add_(1e-3)
        return LocalModel(
            Classifier(nn.Sequential(encoder), Learned().build(3, 5, 0), num_classes=3, normalize=False)
        ).frozen_digest()

    digests = {digest(None), digest("module.1.weight"), digest("module.2.running_var")}
    assert len(digests) == 3
    assert digest(None) in digests
    trained = Classifier(small_encoder(), Learned().build(3, 5, 0), num_classes=3, normalize=False)
    assert LocalModel(trained).frozen_digest() == ""


def test_trainable_modules_leave_out_what_is_frozen() -> None:
    net = nn.Sequential(Frozen(MobileNetV2().build((3, 32, 32))), nn.Linear(4, 4))
    assert list(trainable_modules(net)) == ["", "1"]
