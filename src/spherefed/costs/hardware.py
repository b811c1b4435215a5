"""SphereFed, Fig. 5 by formula: communication, peak memory, round latency and calibration latency on the accelerator.

The paper states a 32×64 systolic array at 100 MHz with a special unit (App. E). It states neither dataflow, buffers,
bandwidth, whether zeros are skipped, nor what the server is. Each is an assumption with a name here. The batch size is
stated: B = 64 "unless otherwise stated" (Sec. 5.1), and nothing else is stated for the accelerator. Assumptions with
B = 1 contradict it.
"""

from dataclasses import dataclass, replace

from spherefed.costs.calibration_latency import CalibrationAssumptions, calibration_assumptions
from spherefed.costs.comparisons import (
    Comparison,
    NetworkPair,
    compare_calibration,
    compare_communication,
    compare_latency,
    compare_memory,
    describe_pair,
)
from spherefed.costs.gemms import training_gemms, weight_gradient_gemm
from spherefed.costs.latency import LatencyAssumptions, latency_assumptions
from spherefed.costs.setting import TABLE_1, Setting
from spherefed.costs.systolic import Array
from spherefed.costs.training_memory import MemoryAssumptions, memory_assumptions
from spherefed.costs.verdicts import Verdict, judge_growth, judge_maximum, judge_order
from spherefed.nn.encoders import ConvNet, Encoder, MobileNetV2, ResNet18

FIGURE_5_ENCODERS: tuple[Encoder, ...] = (ConvNet(), ResNet18(), MobileNetV2())

MEMORY_CLAIM, LATENCY_CLAIM, CALIBRATION_CLAIM = 0.105, 0.136, 0.091
"""The three maxima in the text; the bars of Fig. 5 are not in the paper's source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Every assumption under which a panel was computed."""

    peak_memory: tuple[MemoryAssumptions, ...]
    latency: tuple[LatencyAssumptions, ...]
    calibration: tuple[CalibrationAssumptions, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure5:
    """All panels but the accuracy, which needs training, and what they say about the paper's claims."""

    array: Array
    settings: tuple[Setting, ...]
    """One for each encoder; they differ in `dim` only."""
    assumptions: Assumptions
    communication: tuple[Comparison, ...]
    """Fig. 5a, bytes."""
    peak_memory: tuple[Comparison, ...]
    """Fig. 5b, bytes."""
    latency: tuple[Comparison, ...]
    """Fig. 5c, seconds."""
    calibration: tuple[Comparison, ...]
    """Fig. 5d, seconds."""
    verdicts: tuple[Verdict, ...]
    """About the encoders given: the paper's claims are about `FIGURE_5_ENCODERS`."""


def figure_5(
    *,
    encoders: tuple[Encoder, ...] = FIGURE_5_ENCODERS,
    setting: Setting = TABLE_1,
    input_shape: tuple[int, ...] = (3, 32, 32),
    array: Array | None = None,
) -> Figure5:
    """Compute every panel for every assumption and dataflow, and judge the claims.

    The setting's `dim` gives way to that of each encoder.
    """
    unit = Array() if array is None else array
    pairs = tuple(describe_pair(encoder, setting.num_classes, input_shape) for encoder in encoders)
    cases = Assumptions(
        peak_memory=memory_assumptions(setting),
        latency=latency_assumptions(setting),
        calibration=calibration_assumptions(setting),
    )
    figure = Figure5(
        array=unit,
        settings=tuple(replace(setting, dim=pair.fedavg.dim) for pair in pairs),
        assumptions=cases,
        communication=tuple(compare_communication(pairs, setting)),
        peak_memory=tuple(compare_memory(pairs, cases.peak_memory)),
        latency=tuple(compare_latency(pairs, setting, unit, cases.latency)),
        calibration=tuple(compare_calibration(pairs, setting, unit, cases.calibration)),
        verdicts=(),
    )
    return replace(figure, verdicts=_judge(figure, pairs, setting))


def _judge(figure: Figure5, pairs: tuple[NetworkPair, ...], setting: Setting) -> tuple[Verdict, ...]:
    doubled = compare_calibration(
        pairs, replace(setting, num_classes=2 * setting.num_classes), figure.array, figure.assumptions.calibration
    )
    verdicts: tuple[Verdict, ...] = (
        judge_maximum("saves up to 10.5 % of memory", MEMORY_CLAIM, figure.peak_memory, _memory_reason(pairs)),
        judge_maximum(
            "saves up to 13.6 % of a round's latency",
            LATENCY_CLAIM,
            figure.latency,
            _latency_reason(figure, pairs, setting.batch_size),
        ),
        judge_maximum(
            "FFC saves up to 9.1 % of CCVR's latency",
            CALIBRATION_CLAIM,
            figure.calibration,
            "CCVR's refit on the server decides, and the paper states neither its length nor what the server is.",
        ),
        judge_growth("FFC's saving grows with the number of classes", figure.calibration, doubled),
    )
    if len(pairs) > 1 and any(pair.encoder == MobileNetV2.kind for pair in pairs):
        order = judge_order("MobileNetV2 saves more latency than the others", MobileNetV2.kind, figure.latency)
        verdicts = (*verdicts, order)
    return verdicts


def _memory_reason(pairs: tuple[NetworkPair, ...]) -> str:
    shares = ", ".join(f"{p.encoder} {p.spherefed.num_fixed / p.fedavg.num_trained:.1%}" for p in pairs)
    return (
        f"The head's share of all weights is {shares}; a fixed head still occupies its weights. "
        "Freezing the head releases at most its input, the features, which the encoder's last layer may need as well."
    )


def _latency_reason(figure: Figure5, pairs: tuple[NetworkPair, ...], batch_size: int) -> str:
    shares = ", ".join(
        f"{pair.encoder} {_saved_operations(pair, batch_size):.3%} "
        f"({_saved_operations(pair, batch_size, zeros=False):.3%})"
        for pair in pairs
    )
    sent = max((c for c in figure.communication if c.baseline_method == "FedAvg"), key=lambda c: c.saving)
    return (
        "The head's weight gradient is this share of all operations of a step (in brackets: without multiplications by "
        f"the zeros that a stride puts between gradients): {shares}. "
        f"For comparison, the largest saving of communication (Fig. 5a) is {sent.saving:.2%} ({sent.encoder})."
    )


def _saved_operations(pair: NetworkPair, batch_size: int, *, zeros: bool = True) -> float:
    """The share of the head's weight gradient; `zeros`: multiplications by a stride's zeros count."""
    saved = weight_gradient_gemm(pair.fedavg.layers[-1], batch_size)
    assert saved is not None
    return saved.macs / sum(
        gemm.macs if zeros else gemm.macs - gemm.zero_macs for gemm in training_gemms(pair.fedavg, batch_size)
    )
