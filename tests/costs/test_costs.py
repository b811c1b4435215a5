"""Table 1: formulas against the paper's printed numbers, and against the bytes of real messages."""

import pytest
import torch

from spherefed.calibration import Ccvr, Ffc
from spherefed.client.local_model import LocalModel
from spherefed.costs import flops, traffic
from spherefed.costs.setting import TABLE_1, Setting
from spherefed.messages import MeasureReply, ModelState, Train, TrainReply, message_bytes
from spherefed.nn.classifier import Classifier
from spherefed.nn.heads import Learned, Orthonormal


def test_traffic_is_that_of_table_1():
    megabytes = [f(TABLE_1) / 1e6 for f in (traffic.fedavg_bytes, traffic.ccvr_bytes, traffic.ffc_bytes)]
    assert [int(m) for m in megabytes] == [102, 758, 7]
    assert megabytes == pytest.approx([102.4, 758.272, 7.0656])
    assert traffic.ffc_packed_bytes(TABLE_1, bytes_per_number=4) / 1e6 == pytest.approx(3.8, abs=0.05)
    assert traffic.ffc_packed_bytes(TABLE_1) / 1e6 == pytest.approx(7.6, abs=0.05)


def test_operations_are_those_of_table_1():
    giga = {name: getattr(flops, f"{name}_flops")(TABLE_1) / 1e9 for name in ("fedavg", "ccvr", "ffc")}
    assert giga["fedavg"] == pytest.approx(1.92e4)
    assert giga["ffc"] == pytest.approx(176.6, abs=0.1)
    assert 2.1e4 <= giga["ccvr"] < 2.2e4
    assert flops.ccvr_moments_flops(TABLE_1) / 1e9 == pytest.approx(163.84)
    assert flops.ccvr_sampling_flops(TABLE_1) / 1e9 == pytest.approx(235, abs=2)
    assert flops.ccvr_refit_epoch_flops(TABLE_1) / 1e9 == pytest.approx(19.2)
    assert flops.ffc_solve_flops(TABLE_1) < 0.01 * flops.ffc_flops(TABLE_1)


SMALL = Setting(dim=6, num_classes=4, num_examples=20, rounds=3, epochs=1)


def small(head):
    return Classifier(
        torch.nn.Linear(3, SMALL.dim),
        head.build(SMALL.num_classes, SMALL.dim, 0),
        num_classes=SMALL.num_classes,
        normalize=False,
    )


def batches(labels):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(len(labels), 3, generator=generator), torch.tensor(labels))]


def reply_bytes(calibration, labels):
    return message_bytes(MeasureReply(0, 0, len(labels), calibration.measure(small(Orthonormal()), batches(labels))))


SCALARS = 3 * 8  # client, round and num_examples of the reply


def test_statistics_are_as_large_as_the_formula_says():
    assert reply_bytes(Ffc(), [0, 1, 2, 3] * 5) == traffic.ffc_packed_bytes(SMALL) + SCALARS + 2 * 8  # and two counts


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [2, 2, 2], [1, 3, 3]])
def test_moments_are_as_large_as_the_formula_says_for_the_classes_held(labels):
    num_classes = len(set(labels))
    formula = traffic.ccvr_packed_bytes(SMALL, num_client_classes=num_classes) - traffic.fedavg_bytes(SMALL)
    assert reply_bytes(Ccvr(), labels) == formula + SCALARS + 8  # and num_signed


def test_a_learned_head_costs_what_the_formula_says_and_a_fixed_one_nothing():
    def round_trip(head):
        state: ModelState = LocalModel(small(head)).state()
        reply = TrainReply(0, 0, 20, 1.0, 0.0, state.params, state.buffers)
        return message_bytes(Train(0, state, 0.1)) + message_bytes(reply)

    assert SMALL.rounds * (round_trip(Learned()) - round_trip(Orthonormal())) == traffic.fedavg_bytes(SMALL)
