"""Fig. 5 under its assumptions: networks and calibrations worked by hand, the rule of the verdicts, the command."""

import json
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from spherefed.cli.costs import cost
from spherefed.costs.calibration_latency import calibration_assumptions, ccvr_seconds, ffc_seconds
from spherefed.costs.comparisons import Comparison
from spherefed.costs.gemms import Gemm, training_gemms
from spherefed.costs.hardware import Figure5, figure_5
from spherefed.costs.latency import Bandwidth, LatencyAssumptions, product_cycles, round_seconds, step_cycles
from spherefed.costs.networks import META, Network, describe_network, trace
from spherefed.costs.setting import TABLE_1, Setting
from spherefed.costs.systolic import DATAFLOWS, Array, Dataflow, gemm_cycles
from spherefed.costs.training_memory import memory_assumptions, peak_bytes
from spherefed.costs.verdicts import judge_growth, judge_maximum, judge_order
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet, MobileNetV2
from spherefed.nn.heads import ClassifierHead
from spherefed.schema import to_plain

TINY = Array(rows=3, columns=4, clock_hz=1.0, special_lanes=2)

CONVNET = [(32, 32 * 32), (64, 16 * 16), (64, 8 * 8), (64, 8 * 8), (128, 4 * 4), (128, 4 * 4), (256, 2 * 2)]


def test_what_waits_for_the_backward_pass_of_convnet() -> None:
    """Autograd: the input, of every layer the norm's input and the activation's output, mean and scale of each group.

    Without the rest: the inputs of products, that of the head only if it is trained.
    """
    outputs = [channels * positions for channels, positions in CONVNET]
    trained, fixed = (describe_network(ConvNet(), 100, trained_head=head) for head in (True, False))
    groups = len(CONVNET) * 32
    assert trained.saved_bytes == 4 * (3 * 32 * 32 + 2 * sum(outputs) + 2 * groups)
    # Unit features add a norm and its clamp, no more: the features wait in any case.
    assert fixed.saved_bytes == trained.saved_bytes + 2 * 4
    assert trained.product_input_bytes == 4 * (3 * 32 * 32 + sum(outputs))
    assert fixed.product_input_bytes == trained.product_input_bytes - 4 * 1024
    # A norm's and an activation's results in every layer; then norm, clamp and quotient of the features.
    assert trained.special_elements == 2 * sum(outputs)
    assert fixed.special_elements == trained.special_elements + 1 + 1 + 1024


def test_peak_memory_by_hand() -> None:
    trained, fixed = (describe_network(ConvNet(), 100, trained_head=head) for head in (True, False))
    cases = {case.name: case for case in memory_assumptions(TABLE_1)}
    none = cases["momentum, no activations"]
    assert peak_bytes(trained, none) == 4 * 3 * (610_592 + 102_400)
    assert peak_bytes(fixed, none) == 4 * (3 * 610_592 + 102_400)
    batch = cases["momentum, activations of B = 64"]
    assert peak_bytes(trained, batch) - peak_bytes(trained, none) == 64 * trained.saved_bytes


def small_network(*, trained_head: bool) -> Network:
    """Two inputs, a convolution of three taps at four positions, a pool, a head of three features and five classes."""
    with META:
        body = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        head = ClassifierHead(torch.empty(5, 3), learned=trained_head)
    return trace(Classifier(body, head, num_classes=5, normalize=False), (2, 4))


PLAIN = LatencyAssumptions(name="array only", stated=True, batch_size=2)


def test_a_step_by_hand() -> None:
    """On 3×4 cells, output-stationary, a fold takes T + 5 cycles."""
    array = TINY
    convolution = 3 * (6 + 5) + 2 * (8 + 5)  # (8, 3, 6) has 3 folds; (6, 3, 8) has 2; no input gradient
    head = 2 * (3 + 5) + (5 + 5) + 2 * (2 + 5)  # (2, 5, 3) has 2, (2, 3, 5) has 1, (3, 5, 2) has 2
    trained, fixed = small_network(trained_head=True), small_network(trained_head=False)
    assert step_cycles(trained, 2, array, "os", PLAIN) == convolution + head
    assert step_cycles(fixed, 2, array, "os", PLAIN) == convolution + head - 14
    update = replace(PLAIN, optimizer="momentum")
    num_weights = 2 * 3 * 3 + 3 + 3 * 5
    assert step_cycles(trained, 2, array, "os", update) == convolution + head + num_weights / 2
    # The pool gives three numbers per example, forward and backward, through two lanes.
    assert step_cycles(trained, 2, array, "os", replace(PLAIN, special_unit="serial")) == convolution + head + 6
    # Input 2×4, weight 18 and output 3×4 of the convolution; the head's 3, 15 and 5; two examples.
    moved = 2 * (2 * 8 + 18 + 2 * 12) + 3 * (2 * 3 + 15 + 2 * 5)
    slow = Bandwidth(bytes_per_second=0.4, reuse="full")  # ten cycles for each number
    assert step_cycles(trained, 2, array, "os", replace(PLAIN, bandwidth=slow)) == pytest.approx(10 * moved)
    macs = 8 * 3 * 6 * 2 + 2 * 5 * 3 * 3
    assert step_cycles(trained, 2, array, "os", replace(PLAIN, cells="ideal")) == macs / 12


def test_packed_groups_take_their_operations_and_other_products_are_as_before() -> None:
    network, array = describe_network(MobileNetV2(), 10, trained_head=True), Array()
    gemms = list(training_gemms(network, 2))
    cycles = sum(g.macs / 2048 if g.count > 1 else gemm_cycles(g, array, "ws") for g in gemms)
    assert step_cycles(network, 2, array, "ws", replace(PLAIN, groups="packed")) == pytest.approx(cycles)
    assert step_cycles(network, 2, array, "ws", PLAIN) == sum(gemm_cycles(g, array, "ws") for g in gemms)


def test_a_round_is_the_sum_of_its_batches() -> None:
    network, array = small_network(trained_head=True), TINY
    setting = Setting(dim=3, num_classes=5, num_examples=21, rounds=1, epochs=3, num_clients=3, batch_size=2)
    batches = [2, 2, 2, 1]  # seven examples of each client
    cycles = sum(step_cycles(network, size, array, "ws", PLAIN) for _ in range(3) for size in batches)
    assert round_seconds(network, setting, array, "ws", PLAIN) == cycles
    fast = replace(array, clock_hz=100.0)
    assert round_seconds(network, setting, fast, "ws", PLAIN) == pytest.approx(cycles / 100)


def test_memory_delays_a_product_only_when_moving_takes_longer_than_computing() -> None:
    gemm, array = Gemm(m=7, n=9, k=8), replace(TINY, clock_hz=10.0)
    computing = gemm_cycles(gemm, array, "os")
    for reuse, numbers in (("full", 7 * 8 + 8 * 9 + 7 * 9), ("none", 3 * 7 * 8 + 3 * 8 * 9 + 7 * 9)):
        slow = Bandwidth(bytes_per_second=4.0, reuse=reuse)  # type: ignore[arg-type]
        assert product_cycles(gemm, array, "os", slow) == 10 * numbers  # a number per second, ten cycles each
        assert product_cycles(gemm, array, "os", replace(slow, bytes_per_second=1e9)) == computing
    assert product_cycles(gemm, array, "os", None) == computing


def test_slow_memory_delays_the_update_and_the_special_unit_by_the_numbers_they_move() -> None:
    """One number per cycle: a weight moves five with momentum and three without, a result two forward, three back."""
    network, slow = small_network(trained_head=True), Bandwidth(bytes_per_second=4.0, reuse="full")
    plain = replace(PLAIN, bandwidth=slow)

    def more(case: LatencyAssumptions) -> float:
        return step_cycles(network, 2, TINY, "os", case) - step_cycles(network, 2, TINY, "os", plain)

    num_weights, num_results = 2 * 3 * 3 + 3 + 3 * 5, 2 * 3
    assert more(replace(plain, optimizer="momentum")) == 5 * num_weights
    assert more(replace(plain, optimizer="sgd")) == 3 * num_weights
    assert more(replace(plain, special_unit="serial")) == (2 + 3) * num_results


def test_more_bandwidth_is_never_slower_and_an_update_never_free() -> None:
    network = describe_network(ConvNet(), 100, trained_head=True)
    rates = [1e8, 1e9, 1e10, 1e12]
    full = [replace(PLAIN, bandwidth=Bandwidth(bytes_per_second=rate, reuse="full")) for rate in rates]
    seconds = [round_seconds(network, TABLE_1, Array(), "os", case) for case in full]
    assert all(slow >= fast for slow, fast in pairwise(seconds))
    assert seconds[0] > seconds[-1]
    for case in full:
        with_update = replace(case, optimizer="momentum")
        without = round_seconds(network, TABLE_1, Array(), "os", case)
        assert round_seconds(network, TABLE_1, Array(), "os", with_update) > without


def test_calibration_by_hand() -> None:
    network, array = small_network(trained_head=False), TINY
    setting = Setting(
        dim=3, num_classes=5, num_examples=20, rounds=1, epochs=1, num_clients=2, batch_size=4, num_virtual=3
    )
    case = next(c for c in calibration_assumptions(setting) if c.encoder == "left out")
    statistics = (10 + 5) + 2 * (10 + 5)  # (3, 3, 10) and (3, 5, 10)
    solve = (27 / 6 + 9 * 5) / 12
    assert ffc_seconds(network, setting, array, "os", case) == pytest.approx(statistics + solve)
    moments, sampling = 5 * (2 + 5), 5 * (3 + 5)  # (3, 3, 2) and (3, 3, 3) of each class
    steps = 100 * 4  # 15 virtual features in batches of 4
    refit = steps * (2 * 2 * (3 + 5) + 2 * (4 + 5))  # (4, 5, 3) has 4 folds, (3, 5, 4) has 2
    factors = 5 * 27 / 6 / 12
    assert ccvr_seconds(network, setting, array, "os", case) == pytest.approx(moments + sampling + refit + factors)
    # Ten examples in batches of 4, 4 and 2: (16, 3, 6) has 6 folds, (8, 3, 6) has 3.
    features = (6 + 6 + 3) * (6 + 5)
    fast = replace(case, encoder="counted", server="free")
    assert ffc_seconds(network, setting, array, "os", fast) == features + statistics
    assert ccvr_seconds(network, setting, array, "os", fast) == features + moments


def comparison(encoder: str, saving: float, *, stated: bool = True, dataflow: Dataflow = "os") -> Comparison:
    return Comparison(
        encoder=encoder,
        baseline_method="FedAvg",
        assumptions="some",
        stated=stated,
        dataflow=dataflow,
        baseline=1.0,
        spherefed=1 - saving,
        saving=saving,
    )


@pytest.mark.parametrize(
    ("claimed", "finding"), [(0.3, "too high"), (0.25, "possible"), (0.15, "possible"), (0.1, "too low")]
)
def test_a_maximum_is_judged_by_the_range_of_the_best_network(claimed: float, finding: str) -> None:
    cases = [
        comparison("a", 0.01),
        comparison("b", 0.1501),
        comparison("a", 0.2497, dataflow="ws"),
        comparison("b", 0.02, dataflow="ws"),
        comparison("a", 0.9, stated=False),
    ]
    verdict = judge_maximum("claim", claimed, cases, "Reason.")
    assert verdict.finding == finding
    assert (verdict.lowest, verdict.highest, verdict.elsewhere) == (0.1501, 0.2497, 0.9)


def test_an_order_and_a_growth_are_judged_by_how_often_they_are_true() -> None:
    cases = [comparison("a", 0.2), comparison("b", 0.1), comparison("a", 0.1, dataflow="ws")]
    assert judge_order("claim", "a", cases).finding == "holds"
    cases.append(comparison("b", 0.3, dataflow="ws"))
    assert judge_order("claim", "a", cases).finding == "holds in part"
    assert judge_order("claim", "c", cases).finding == "does not hold"
    more = [replace(case, saving=case.saving + 0.1) for case in cases]
    assert judge_growth("claim", cases, more).finding == "holds"
    assert judge_growth("claim", more, cases).finding == "does not hold"
    assert judge_growth("claim", cases, [more[0], *cases[1:]]).finding == "holds in part"


@pytest.fixture(scope="module")
def figure() -> Figure5:
    return figure_5()


def test_the_array_alone_saves_what_a_first_estimate_found(figure: Figure5) -> None:
    saved = {(c.encoder, c.assumptions, c.dataflow): c.saving for c in figure.latency}
    assert saved["convnet", "array only", "os"] == pytest.approx(0.0029, abs=5e-5)
    assert saved["convnet", "array only", "ws"] == pytest.approx(0.0013, abs=1e-4)
    assert saved["convnet", "array only; B = 1", "os"] == pytest.approx(0.059, abs=5e-4)
    for encoder, flow in product(("resnet18", "mobilenetv2"), DATAFLOWS):
        assert 0 < saved[encoder, "array only", flow] < saved["convnet", "array only", flow]


def test_operations_with_and_without_the_zeros_of_strides_by_hand(figure: Figure5) -> None:
    """ConvNet has 3×3 kernels; the gradient of a layer's input has as many positions as the input, zeros included."""
    inputs = [(3, 32 * 32), *CONVNET]
    layers = [(9 * a * b, before, after) for (a, before), (b, after) in zip(inputs, CONVNET, strict=False)]
    head = 1024 * 100
    forward = sum(weights * after for weights, _, after in layers)
    through = {
        "operations only": sum(weights * before for weights, before, _ in layers[1:]),
        "operations only, zeros skipped": sum(weights * after for weights, _, after in layers[1:]),
    }
    saved = {(c.encoder, c.assumptions, c.dataflow): c for c in figure.latency}
    for name, macs in through.items():
        share = head / (2 * forward + macs + 3 * head)
        for flow in DATAFLOWS:
            assert saved["convnet", name, flow].saving == pytest.approx(share)
            assert saved["convnet", name, flow].stated
        assert f"{share:.3%}" in figure.verdicts[1].text


def test_every_assumption_with_another_batch_size_than_the_papers_contradicts_it(figure: Figure5) -> None:
    cases = (*figure.assumptions.latency, *figure.assumptions.peak_memory)
    assert {case.batch_size for case in cases if case.stated} == {64}
    assert {case.batch_size for case in cases if not case.stated} == {0, 1}


def test_no_assumption_reaches_the_claimed_latency_and_mobilenet_never_leads(figure: Figure5) -> None:
    memory, latency, calibration, _, order = figure.verdicts
    assert (memory.finding, latency.finding, calibration.finding) == ("too high", "too high", "possible")
    assert order.finding == "does not hold"
    assert max(c.saving for c in figure.latency) < 0.136
    # The head's share of all weights: a latency in proportion to weights could not save more.
    assert max(c.saving for c in figure.latency if c.encoder == "mobilenetv2") < 128_000 / 2_412_112


def test_the_claimed_latency_is_what_convnet_saves_of_communication(figure: Figure5) -> None:
    sent = {c.encoder: c.saving for c in figure.communication if c.baseline_method == "FedAvg"}
    encoder, head, statistics = 610_592, 102_400, 1024 * (1024 + 100)
    assert sent["convnet"] == pytest.approx(1 - (200 * encoder + statistics) / (200 * (encoder + head)))
    assert round(sent["convnet"], 3) == 0.136
    moments = next(c for c in figure.communication if (c.encoder, c.baseline_method) == ("convnet", "CCVR"))
    assert moments.baseline == 4 * (200 * (encoder + head) + 100 * 1024 * (1 + 1024))


@pytest.mark.slow
def test_the_command_prints_every_panel_and_verdict_and_json(figure: Figure5) -> None:
    shown = CliRunner().invoke(cost, ["--hardware"], catch_exceptions=False).output
    assert all(f"Fig. 5{panel}" in shown for panel in "abcd")
    assert all(f"{verdict.claim}: {verdict.finding}" in shown for verdict in figure.verdicts)
    assert all(case.name in shown for case in figure.assumptions.latency)
    plain = json.loads(CliRunner().invoke(cost, ["--hardware", "--json"], catch_exceptions=False).output)
    assert plain["latency"] == to_plain(figure.latency)
    assert [setting["dim"] for setting in plain["settings"]] == [1024, 512, 1280]
    one = CliRunner().invoke(cost, ["--hardware", "--encoder", "mlp", "--json"], catch_exceptions=False).output
    assert {bar["encoder"] for bar in json.loads(one)["latency"]} == {"mlp"}
