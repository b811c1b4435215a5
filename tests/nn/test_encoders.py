"""The encoders against the paper's tables, written out here row by row, and against what every encoder promises."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from spherefed.errors import ConfigError
from spherefed.nn.encoders import (
    VGG13,
    ConvNet,
    Encoder,
    Mlp,
    MobileNetV2,
    Norm,
    ResNet18,
    SENet18,
    SmallNet,
    has_batch_norm,
)
from spherefed.schema import from_plain, to_plain

PAPER = (ConvNet(), VGG13(), ResNet18(), SENet18(), MobileNetV2())
ALL = (*PAPER, SmallNet(), Mlp())
NORMS: tuple[Norm, ...] = ("batch", "group")


def names(encoder: Encoder) -> str:
    return encoder.kind


class Weights(NamedTuple):
    """One layer with weights, as a row of a table: a convolution, or a Linear (a convolution of one pixel)."""

    channels: int
    width: int
    kernel: int
    side: int  # of the output
    groups: int = 1
    bias: bool = False
    normed: bool = True

    @property
    def num_params(self) -> int:
        kernels = self.kernel**2 * self.channels * self.width // self.groups
        return kernels + self.width * (int(self.bias) + 2 * int(self.normed))

    @property
    def flops(self) -> int:
        return 2 * self.side**2 * self.kernel**2 * self.channels * self.width // self.groups


# Table 11: in, out, stride.
TABLE_11 = [(3, 32, 1), (32, 64, 2), (64, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)]
# Table 12, with the fifth pool that it lacks; P is a pool.
TABLE_12 = "3-64 64-64 P 64-128 128-128 P 128-256 256-256 P 256-512 512-512 P 512-512 512-512 P"
# Tables 13 and 15, blocks B1-B4: in, out, stride (None: TIN_S).
BLOCKS = [
    (64, 64, None),
    (64, 64, 1),
    (64, 128, 2),
    (128, 128, 1),
    (128, 256, 2),
    (256, 256, 1),
    (256, 512, 2),
    (512, 512, 1),
]
# Table 14, blocks B1-B7: in, hidden, out, stride (None: TIN_S), repetition.
TABLE_14 = [
    (32, 32, 16, 1, 1),
    (16, 96, 24, None, 1),
    (24, 144, 24, 1, 1),
    (24, 144, 32, 2, 1),
    (32, 192, 32, 1, 2),
    (32, 192, 64, 2, 1),
    (64, 384, 64, 1, 3),
    (64, 384, 96, 1, 1),
    (96, 576, 96, 1, 2),
    (96, 576, 160, 2, 1),
    (160, 960, 160, 1, 2),
    (160, 960, 320, 1, 1),
]


def convnet_rows(side: int) -> Iterator[Weights]:
    for channels, width, stride in TABLE_11:
        side //= stride
        yield Weights(channels, width, 3, side)


def vgg_rows(side: int) -> Iterator[Weights]:
    for row in TABLE_12.split():
        if row == "P":
            side //= 2
        else:
            channels, width = map(int, row.split("-"))
            yield Weights(channels, width, 3, side, bias=True)


def resnet_rows(side: int) -> Iterator[Weights]:
    tin_s = side // 32
    yield Weights(3, 64, 3, side)
    for channels, width, given in BLOCKS:
        stride = given or tin_s
        side //= stride
        yield Weights(channels, width, 3, side)
        yield Weights(width, width, 3, side)
        if channels != width or stride != 1:  # the shortcut, which the table does not list
            yield Weights(channels, width, 1, side)


def senet_rows(side: int) -> Iterator[Weights]:
    yield from resnet_rows(side)
    for _, width, _ in BLOCKS:
        yield Weights(width, width // 16, 1, 1, bias=True, normed=False)
        yield Weights(width // 16, width, 1, 1, bias=True, normed=False)


def mobilenet_rows(side: int) -> Iterator[Weights]:
    tin_s = side // 32
    yield Weights(3, 32, 3, side)
    for channels, hidden, width, given, repetition in TABLE_14:
        stride = given or tin_s
        for _ in range(repetition):
            yield Weights(channels, hidden, 1, side)
            side //= stride
            yield Weights(hidden, hidden, 3, side, groups=hidden)
            yield Weights(hidden, width, 1, side)
            if stride == 1 and channels != width:  # the shortcut, which the table does not list
                yield Weights(channels, width, 1, side)
    yield Weights(320, 1280, 1, side)


ROWS = {
    "convnet": convnet_rows,
    "vgg13": vgg_rows,
    "resnet18": resnet_rows,
    "senet18": senet_rows,
    "mobilenetv2": mobilenet_rows,
}


def num_params(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def built(encoder: Encoder, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return encoder.build(shape)


def images(num: int, *shape: int) -> Tensor:
    return torch.randn(num, *shape, generator=torch.Generator().manual_seed(1))


def shape_of(encoder: Encoder) -> tuple[int, ...]:
    return (1, 8, 8) if isinstance(encoder, Mlp | SmallNet) else (3, 32, 32)


def with_norms(encoders: tuple[Encoder, ...]) -> list[Encoder]:
    return [
        variant
        for encoder in encoders
        for variant in ([encoder] if isinstance(encoder, Mlp) else [replace(encoder, norm=n) for n in NORMS])
    ]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("encoder", PAPER, ids=names)
def test_parameters_flops_and_features_are_those_of_the_papers_table(encoder: Encoder, side: int, norm: Norm) -> None:
    with torch.device("meta"):
        module = replace(encoder, norm=norm).build((3, side, side))
        with FlopCounterMode(display=False) as counter:
            features = module(torch.empty(2, 3, side, side))
    expected = list(ROWS[encoder.kind](side))
    widths = {"vgg13": 512, "resnet18": 512, "senet18": 512, "mobilenetv2": 1280}
    assert num_params(module) == sum(row.num_params for row in expected)
    assert counter.get_total_flops() == 2 * sum(row.flops for row in expected)
    assert features.shape == (2, widths.get(encoder.kind, 1024 * (side // 32) ** 2))


@pytest.mark.parametrize(
    ("encoder", "count"), [(ResNet18(), 11_168_832), (VGG13(), 9_410_880), (MobileNetV2(), 2_284_112)]
)
def test_parameter_counts_are_those_of_the_usual_cifar_networks_without_their_heads(
    encoder: Encoder, count: int
) -> None:
    with torch.device("meta"):
        assert num_params(encoder.build((3, 32, 32))) == count


def test_senet_is_resnet_and_two_small_layers_per_block() -> None:
    with torch.device("meta"):
        extra = num_params(SENet18().build((3, 32, 32))) - num_params(ResNet18().build((3, 32, 32)))
    # Two blocks of each width c: c·c/16 weights twice, c/16 and c biases.
    assert extra == sum(2 * (c * c // 8 + c // 16 + c) for c in (64, 128, 256, 512))


@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 8, 8), (1, 15, 16), (1, 28, 28), (3, 32, 32), (3, 17, 64)])
def test_smallnet_gives_256_features_whatever_the_image(shape: tuple[int, ...]) -> None:
    module = built(SmallNet(), shape)
    assert module(images(2, *shape)).shape == (2, 256)
    # 3×3 convolutions to 16, 32 and 64 channels, and a scale and a shift for each.
    assert num_params(module) == 9 * (shape[0] * 16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64)


@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 8, 8), (1, 28, 28), (1, 14, 10), (1, 33, 50)])
def test_smallnet_averages_the_quarters_of_the_image_like_an_adaptive_pool(shape: tuple[int, ...]) -> None:
    module = built(SmallNet(), shape)
    assert isinstance(module, nn.Sequential)
    maps = module[:-2](images(2, *shape))
    torch.testing.assert_close(module[-2](maps), functional.adaptive_avg_pool2d(maps, 2))


@pytest.mark.parametrize("encoder", PAPER, ids=names)
def test_grey_images_need_only_a_narrower_first_convolution(encoder: Encoder) -> None:
    with torch.device("meta"):
        grey, colour = encoder.build((1, 32, 32)), encoder.build((3, 32, 32))
        assert grey(torch.empty(2, 1, 32, 32)).shape == colour(torch.empty(2, 3, 32, 32)).shape
    first = next(layer for layer in grey.modules() if isinstance(layer, nn.Conv2d))
    assert num_params(colour) - num_params(grey) == 2 * first.out_channels * 9


@pytest.mark.parametrize("encoder", with_norms(ALL), ids=str)
def test_gradient_reaches_every_parameter(encoder: Encoder) -> None:
    shape = shape_of(encoder)
    module = built(encoder, shape)
    features = module(images(2, *shape))
    (features * images(*features.shape)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A constant on a channel, with only linear layers up to the next BatchNorm, is taken away there: VGG13's
        # biases and the shifts of MobileNetV2's bottlenecks have the gradient zero, up to rounding.
        if not (has_batch_norm(module) and name.endswith("bias")):
            assert parameter.grad.abs().max() > 1e-6, name


@pytest.mark.parametrize("encoder", with_norms(ALL), ids=str)
def test_features_are_flat_not_negative_and_in_eval_mode_independent_of_the_batch(encoder: Encoder) -> None:
    shape = shape_of(encoder)
    module = built(encoder, shape)
    batch = images(3, *shape)
    with torch.no_grad():
        module(batch)  # moves the running statistics, if there are any
        module.eval()
        together, alone = module(batch), torch.cat([module(image[None]) for image in batch])
    assert together.ndim == 2
    assert together.min() >= 0
    assert together.max() > 0
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", with_norms(ALL), ids=str)
def test_only_batch_norm_has_batch_statistics_and_buffers(encoder: Encoder) -> None:
    with torch.device("meta"):
        module = encoder.build(shape_of(encoder))
    wanted = getattr(encoder, "norm", None) == "batch"
    assert has_batch_norm(module) is wanted
    assert bool(list(module.buffers())) is wanted


@pytest.mark.parametrize("encoder", [*(replace(e, norm="group") for e in PAPER), SmallNet()], ids=names)
def test_group_norm_follows_every_convolution_in_gcd_32_groups(encoder: Encoder) -> None:
    with torch.device("meta"):
        module = encoder.build(shape_of(encoder))
    groups = [(layer.num_groups, layer.num_channels) for layer in module.modules() if isinstance(layer, nn.GroupNorm)]
    convolutions = [layer.out_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert groups == [(gcd(32, channels), channels) for channels in convolutions]


def test_a_basic_block_can_lower_what_its_shortcut_carries() -> None:
    module = built(ResNet18(), (3, 32, 32))
    assert isinstance(module, nn.Sequential)
    block, maps = module[4], images(2, 64, 8, 8).abs()
    assert (block(maps) < maps).any()


def test_the_bottleneck_of_mobilenet_is_linear() -> None:
    module = built(MobileNetV2(), (3, 32, 32))
    assert isinstance(module, nn.Sequential)
    assert (module[3](images(2, 32, 8, 8)) < 0).any()


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 32, 64), (3, 128, 128), (32, 32), (64,), (0, 32, 32)])
@pytest.mark.parametrize("encoder", PAPER, ids=names)
def test_other_shapes_are_refused_with_what_to_do(encoder: Encoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        encoder.build(shape)
    for part in (encoder.kind, str(shape), "(channels, 32, 32)", "(channels, 64, 64)", "smallnet"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 2, 8), (1, 1, 8, 8), (0, 8, 8)])
def test_smallnet_refuses_what_is_not_an_image_of_some_size(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"smallnet.*at least 3×3.*use encoder 'mlp'"):
        SmallNet().build(shape)


@pytest.mark.parametrize("encoder", with_norms(ALL), ids=str)
def test_every_encoder_survives_plain_data(encoder: Encoder) -> None:
    assert from_plain(Encoder, to_plain(encoder), "encoder") == encoder
    assert from_plain(Encoder, encoder.kind, "encoder") == type(encoder)()


def test_batch_norm_is_the_default_of_mobilenet_only() -> None:
    assert {e.kind for e in PAPER if e.norm == "batch"} == {"mobilenetv2"}


def test_an_unknown_norm_is_refused_by_its_path() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.norm must be one of batch, group; got 'layer'"):
        from_plain(Encoder, {"kind": "vgg13", "norm": "layer"}, "encoder")
