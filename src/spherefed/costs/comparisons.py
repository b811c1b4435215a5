"""The bars of SphereFed, Fig. 5 a-d: one network before and after, under one assumption."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spherefed.costs.calibration_latency import CalibrationAssumptions, ccvr_seconds, ffc_seconds
from spherefed.costs.latency import LatencyAssumptions, round_seconds
from spherefed.costs.networks import Network, describe_network
from spherefed.costs.setting import Setting
from spherefed.costs.systolic import BYTES_PER_NUMBER, DATAFLOWS, Array, Dataflow
from spherefed.costs.training_memory import MemoryAssumptions, peak_bytes
from spherefed.nn.encoders import Encoder
from spherefed.schema import kind_of


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPair:
    """One encoder with a trained head (FedAvg) and with unit features and a fixed head (SphereFed)."""

    encoder: str
    fedavg: Network
    spherefed: Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One bar: a quantity with the baseline and with SphereFed."""

    encoder: str
    baseline_method: str
    """FedAvg or CCVR."""
    assumptions: str
    """Their name."""
    stated: bool
    """Whether they contradict nothing that the paper states."""
    dataflow: Dataflow | None
    """None where the quantity does not depend on it."""
    baseline: float
    """Seconds or bytes."""
    spherefed: float
    saving: float
    """1 − spherefed / baseline."""


def describe_pair(encoder: Encoder, num_classes: int, input_shape: tuple[int, ...]) -> NetworkPair:
    """Both networks of an encoder."""
    trained, fixed = (
        describe_network(encoder, num_classes, trained_head=head, input_shape=input_shape) for head in (True, False)
    )
    return NetworkPair(encoder=kind_of(encoder), fedavg=trained, spherefed=fixed)


def compare_communication(pairs: Iterable[NetworkPair], setting: Setting) -> Iterator[Comparison]:
    """Fig. 5a: bytes of one client over the whole run, encoder included, as the paper counts them."""
    for pair in pairs:
        dim, C = pair.spherefed.dim, setting.num_classes
        fedavg = 2 * setting.rounds * pair.fedavg.num_trained
        ccvr = fedavg + dim * C + dim**2 * C
        spherefed = 2 * setting.rounds * pair.spherefed.num_trained + dim**2 + dim * C
        for method, numbers in (("FedAvg", fedavg), ("CCVR", ccvr)):
            yield _comparison(
                pair, method, "dense 32-bit numbers", BYTES_PER_NUMBER * numbers, BYTES_PER_NUMBER * spherefed
            )


def compare_memory(pairs: Iterable[NetworkPair], cases: Iterable[MemoryAssumptions]) -> Iterator[Comparison]:
    """Fig. 5b: peak bytes of local training."""
    known = tuple(pairs)
    for case in cases:
        for pair in known:
            trained, fixed = peak_bytes(pair.fedavg, case), peak_bytes(pair.spherefed, case)
            yield _comparison(pair, "FedAvg", case.name, trained, fixed, stated=case.stated)


def compare_latency(
    pairs: Iterable[NetworkPair], setting: Setting, array: Array, cases: Iterable[LatencyAssumptions]
) -> Iterator[Comparison]:
    """Fig. 5c: seconds of one local round, for every dataflow."""
    known = tuple(pairs)
    for case in cases:
        for flow in DATAFLOWS:
            for pair in known:
                trained, fixed = (
                    round_seconds(network, setting, array, flow, case) for network in (pair.fedavg, pair.spherefed)
                )
                yield _comparison(pair, "FedAvg", case.name, trained, fixed, stated=case.stated, dataflow=flow)


def compare_calibration(
    pairs: Iterable[NetworkPair], setting: Setting, array: Array, cases: Iterable[CalibrationAssumptions]
) -> Iterator[Comparison]:
    """Fig. 5d: seconds of one calibration by CCVR and by FFC, for every dataflow."""
    known = tuple(pairs)
    for case in cases:
        for flow in DATAFLOWS:
            for pair in known:
                ccvr = ccvr_seconds(pair.fedavg, setting, array, flow, case)
                ffc = ffc_seconds(pair.spherefed, setting, array, flow, case)
                yield _comparison(pair, "CCVR", case.name, ccvr, ffc, stated=case.stated, dataflow=flow)


def _comparison(
    pair: NetworkPair,
    method: str,
    name: str,
    baseline: float,
    spherefed: float,
    *,
    stated: bool = True,
    dataflow: Dataflow | None = None,
) -> Comparison:
    return Comparison(
        encoder=pair.encoder,
        baseline_method=method,
        assumptions=name,
        stated=stated,
        dataflow=dataflow,
        baseline=baseline,
        spherefed=spherefed,
        saving=1 - spherefed / baseline,
    )
