"""Resizing and normalization that belong to an encoder of the user's own, named by a dotted path."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from spherefed.assembly import assemble
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.errors import ConfigError, DataError
from spherefed.experiment import Experiment, experiment_from_mapping
from spherefed.nn.encoders import CallableEncoder
from spherefed.runs.runner import Engine, run_to_end


def encoder(name: str, **options: Any) -> CallableEncoder:
    return CallableEncoder(f"{__name__}:{name}", tuple(sorted(options.items())))


class Side(nn.Module):
    """Flattened pixels, times a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * images.flatten(1)


def own_resize(resize: int) -> nn.Module:
    """A callable that has the parameter itself."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(resize), nn.Flatten())


def one_shot(**options: Any) -> Experiment:
    return experiment_from_mapping(
        {
            "name": "own",
            "rounds": 0,
            "model": {
                "encoder": {"kind": f"{__name__}:Side", **options},
                "frozen": True,
                "head": "orthonormal",
                "normalize": True,
            },
            "calibration": "ffc-gcv",
        }
    )


def test_resize_is_done_before_the_callable_s_module() -> None:
    images = torch.rand(3, 1, 8, 8)
    built = encoder("Side", factor=2.0, resize=16).build((1, 8, 8))
    expected = 2 * functional.interpolate(images, size=(16, 16), mode="bicubic", align_corners=False).flatten(1)
    assert torch.equal(built(images), expected)
    assert torch.equal(encoder("Side", resize=8).build((1, 8, 8))(images), images.flatten(1))


def test_a_callable_with_the_parameter_gets_it() -> None:
    built = encoder("own_resize", resize=2).build((1, 8, 8))
    assert built(torch.rand(1, 1, 8, 8)).shape == (1, 4)


def test_mean_and_std_of_the_encoder_normalize_the_data(tmp_path: Path) -> None:
    ours = assemble(one_shot(mean=[0.5], std=[0.25], resize=4), data_root=str(tmp_path))
    prepare = ours.dataset.train.prepare
    assert prepare is not None
    assert (prepare.mean, prepare.std) == ((0.5,), (0.25,))
    assert ours.features is not None
    assert ours.features.train.inputs.shape[1] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5]}, r"model\.encoder\.mean and model\.encoder\.std need one number per channel each"),
        ({"std": [0.5]}, r"model\.encoder\.mean and model\.encoder\.std need one number per channel each"),
        ({"mean": [0.5], "std": [0.0]}, "every std above 0"),
        ({"resize": 0}, r"model\.encoder\.resize must be a positive whole number of pixels, got 0"),
        ({"resize": "big"}, r"model\.encoder\.resize must be a positive whole number of pixels, got 'big'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        assemble(one_shot(**options), data_root=str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_normalization_for_other_channels_names_the_encoder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"digits has 1 channels, but encoder '.*:Side' is for 3"):
        assemble(one_shot(mean=[0.5] * 3, std=[0.25] * 3), data_root=str(tmp_path))


VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 1,
}


@pytest.mark.slow
def test_a_frozen_model_of_transformers_is_a_one_shot_encoder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    options = {**VIT, "resize": 16, "mean": [0.5], "std": [0.5]}
    experiment = one_shot(kind="support.own.pretrained:PooledTransformer", **options)
    result = run_to_end(experiment, tmp_path / "run", engine=Engine(data_root=str(tmp_path)))
    assert result["accuracy"]["calibrated"][GLOBAL_TEST] > 0.4  # by chance: 0.1
    assert result["frozen_sha256"]
