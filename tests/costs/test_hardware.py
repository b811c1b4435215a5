"""The accelerator of Fig. 5: products and cycles against loop oracles, torch's flop counter and SCALE-Sim."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spherefed.costs.gemms import (
    Gemm,
    encoder_gemms,
    forward_gemm,
    input_gradient_gemm,
    training_gemms,
    weight_gradient_gemm,
)
from spherefed.costs.networks import META, describe_network, trace
from spherefed.costs.systolic import DATAFLOWS, Array, Dataflow, gemm_cycles, streamed_elements
from spherefed.errors import ModelError
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet, Encoder, Mlp, MobileNetV2, ResNet18, SENet18
from spherefed.nn.heads import ClassifierHead

TINY = Array(rows=3, columns=4, clock_hz=1.0, special_lanes=2)
GEMMS = [Gemm(m=m, n=n, k=k) for m, n, k in product((1, 3, 4, 7), (1, 4, 9), (1, 2, 8))]


def tiles(total: int, size: int) -> list[range]:
    return [range(start, min(start + size, total)) for start in range(0, total, size)]


def walked_cycles(gemm: Gemm, array: Array, dataflow: Dataflow) -> int:
    """Tile by tile: the cycle in which the last number of the stream leaves the farthest cell."""
    spread = {"os": (gemm.m, gemm.n, gemm.k), "ws": (gemm.k, gemm.n, gemm.m), "is": (gemm.k, gemm.m, gemm.n)}
    rows, columns, stream = spread[dataflow]
    total = 0
    for _ in product(tiles(rows, array.rows), tiles(columns, array.columns)):
        loaded = 0
        if dataflow != "os":
            for _ in range(array.rows):  # what is stationary enters row by row
                loaded += 1
        cells = product(range(array.rows), range(array.columns), range(stream))
        total += loaded + 1 + max(row + column + step for row, column, step in cells)
    return total


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_cycles_are_those_of_a_walk_over_tiles_and_cells(dataflow: Dataflow) -> None:
    for gemm in GEMMS:
        assert gemm_cycles(gemm, TINY, dataflow) == walked_cycles(gemm, TINY, dataflow), gemm
        assert gemm_cycles(replace(gemm, count=5), TINY, dataflow) == 5 * gemm_cycles(gemm, TINY, dataflow)


def walked_elements(gemm: Gemm, array: Array, dataflow: Dataflow) -> int:
    """Tile by tile: numbers read for it and written from it."""
    total = 0
    if dataflow == "os":
        for rows, columns in product(tiles(gemm.m, array.rows), tiles(gemm.n, array.columns)):
            total += len(rows) * gemm.k + gemm.k * len(columns) + len(rows) * len(columns)
        return total
    spread, stream = (gemm.n, gemm.m) if dataflow == "ws" else (gemm.m, gemm.n)
    for number, depth in enumerate(tiles(gemm.k, array.rows)):
        for columns in tiles(spread, array.columns):
            stationary, streaming = len(depth) * len(columns), stream * len(depth)
            sums = stream * len(columns)
            total += stationary + streaming + sums + (sums if number else 0)  # partial sums are read again
    return total


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_streamed_elements_are_those_of_a_walk_over_tiles(dataflow: Dataflow) -> None:
    for gemm in GEMMS:
        assert streamed_elements(gemm, TINY, dataflow) == walked_elements(gemm, TINY, dataflow), gemm
        assert streamed_elements(gemm, TINY, dataflow) >= gemm.distinct_elements


sizes = st.integers(1, 300)


@given(m=sizes, n=sizes, k=sizes, more=st.tuples(*[st.integers(0, 50)] * 3), dataflow=st.sampled_from(DATAFLOWS))
def test_a_larger_product_never_takes_less_and_no_product_less_than_its_operations(
    m: int, n: int, k: int, more: tuple[int, int, int], dataflow: Dataflow
) -> None:
    array, small = Array(), Gemm(m=m, n=n, k=k)
    large = Gemm(m=m + more[0], n=n + more[1], k=k + more[2])
    assert gemm_cycles(small, array, dataflow) <= gemm_cycles(large, array, dataflow)
    assert streamed_elements(small, array, dataflow) <= streamed_elements(large, array, dataflow)
    assert gemm_cycles(small, array, dataflow) >= small.macs / array.num_cells


def backward_flops(gradient: torch.Size, _: object, weight: torch.Size, *rest: object, **__: object) -> int:
    """A convolution's gradients of input and weight, whichever are asked for; torch's own count forgets groups."""
    *_, mask = rest
    assert isinstance(mask, list | tuple)
    return sum(mask[:2]) * 2 * gradient[0] * gradient[2:].numel() * weight.numel()


@pytest.mark.parametrize("trained_head", [True, False])
@pytest.mark.parametrize("encoder", [ConvNet(), ResNet18(), MobileNetV2(), SENet18(), Mlp()], ids=lambda e: e.kind)
def test_the_products_of_a_network_have_the_operations_of_the_flop_counter(
    encoder: Encoder, trained_head: bool
) -> None:
    batch_size, num_classes = 2, 10
    network = describe_network(encoder, num_classes, trained_head=trained_head)
    with META:
        body = encoder.build((3, 32, 32))
        head = ClassifierHead(torch.empty(num_classes, network.dim), learned=trained_head)
        inputs = torch.empty(batch_size, 3, 32, 32)
    with FlopCounterMode(display=False) as forward:
        scores = head(body(inputs))
    custom = {torch.ops.aten.convolution_backward: backward_flops} if isinstance(encoder, MobileNetV2) else {}
    with FlopCounterMode(display=False, custom_mapping=custom) as backward:
        scores.sum().backward()
    products = [forward_gemm(layer, batch_size).macs for layer in network.layers]
    assert 2 * sum(products) == forward.get_total_flops()
    weights = [weight_gradient_gemm(layer, batch_size) for layer in network.layers]
    # The counter leaves out the zeros that a stride puts between the gradients of the output.
    through = [macs for layer, macs in zip(network.layers, products, strict=True) if layer.input_gradient]
    assert 2 * (sum(gemm.macs for gemm in weights if gemm) + sum(through)) == backward.get_total_flops()
    for layer, macs in zip(network.layers, products, strict=True):
        if gemm := input_gradient_gemm(layer, batch_size):
            assert gemm.macs * layer.out_positions == macs * layer.in_positions
            assert gemm.macs - gemm.zero_macs == macs


def test_the_first_layer_has_two_products_a_trained_head_three_and_a_fixed_one_two() -> None:
    trained, fixed = (describe_network(ConvNet(), 100, trained_head=head) for head in (True, False))
    assert len(list(training_gemms(trained, 64))) == 3 * 8 - 1
    assert len(list(training_gemms(fixed, 64))) == 3 * 8 - 2
    assert len(list(encoder_gemms(fixed, 64))) == 7
    assert input_gradient_gemm(trained.layers[0], 64) is None
    head = trained.layers[-1]
    found = [make(head, 64) for make in (forward_gemm, input_gradient_gemm, weight_gradient_gemm)]
    assert [(g.m, g.n, g.k, g.count) for g in found if g] == [
        (64, 100, 1024, 1),
        (64, 1024, 100, 1),
        (1024, 100, 64, 1),
    ]
    assert weight_gradient_gemm(fixed.layers[-1], 64) is None


def test_a_depthwise_convolution_is_one_product_per_channel() -> None:
    network = describe_network(MobileNetV2(), 10, trained_head=True)
    layer = next(layer for layer in network.layers if layer.groups == 144 and layer.out_positions == 16 * 16)
    gemms = [make(layer, 8) for make in (forward_gemm, input_gradient_gemm, weight_gradient_gemm)]
    assert [(g.m, g.n, g.k, g.count) for g in gemms if g] == [
        (8 * 16 * 16, 1, 9, 144),
        (8 * 32 * 32, 1, 9, 144),  # stride 2
        (9, 1, 8 * 16 * 16, 144),
    ]


class Attention(nn.Module):
    """A product of activations, which belongs to no layer."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.flatten(2)
        return torch.bmm(rows, rows.transpose(1, 2)).flatten(1)


def test_a_product_outside_of_layers_is_refused_and_not_forgotten() -> None:
    with META:
        model = Classifier(Attention(), ClassifierHead(torch.empty(5, 9), learned=True), num_classes=5, normalize=False)
    with pytest.raises(ModelError, match="2 matrix products, 1 of them"):
        trace(model, (3, 4, 4))


def test_a_transposed_convolution_has_no_cost_model() -> None:
    with META:
        body = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.Flatten())
        model = Classifier(
            body, ClassifierHead(torch.empty(5, 4 * 9 * 9), learned=True), num_classes=5, normalize=False
        )
    with pytest.raises(ModelError, match=r"encoder\.0.*transposed"):
        trace(model, (3, 8, 8))


SIMULATED = [
    (1, 1, 1),
    (32, 64, 100),
    (33, 65, 7),
    (31, 130, 64),
    (64, 100, 512),  # ResNet18's head: forward, input gradient, weight gradient
    (64, 512, 100),
    (512, 100, 64),
    (1, 100, 1280),  # MobileNetV2's head for one example
    (1280, 100, 1),
    (256, 1, 9),  # a depthwise channel
    (9, 1, 256),
    (64, 128, 576),  # ConvNet's fifth layer for four examples
]


@pytest.mark.soak
def test_cycles_are_those_of_scale_sim(tmp_path: Path) -> None:
    """SCALE-Sim 3.0 counts from zero, so its figure is one less. It needs an older numpy, hence its own environment."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "scalesim==3.0.0", "numpy<2.4"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"SCALE-Sim cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    array, script = Array(), Path(__file__).parents[1] / "support" / "scalesim_cycles.py"
    for dataflow in DATAFLOWS:
        folder = tmp_path / dataflow
        folder.mkdir()
        wanted = {"rows": array.rows, "columns": array.columns, "dataflow": dataflow, "gemms": SIMULATED}
        command = [str(python), str(script), str(folder), json.dumps(wanted)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        theirs = json.loads(ended.stdout.splitlines()[-1])
        ours = [gemm_cycles(Gemm(m=m, n=n, k=k), array, dataflow) for m, n, k in SIMULATED]
        print(dataflow, [(shape, mine, their) for shape, mine, their in zip(SIMULATED, ours, theirs, strict=True)])
        assert theirs == [cycles - 1 for cycles in ours]
