"""Compiled and mixed-precision training against the plain pass: equal up to rounding, and refused where impossible."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from spherefed.acceleration import passes
from spherefed.assembly import Assembly, assemble
from spherefed.client.training import LocalTraining
from spherefed.engines.local import InProcess
from spherefed.engines.workers import Parallel
from spherefed.errors import ConfigError
from spherefed.experiment import Data, Experiment, Model
from spherefed.messages import Measure, MeasureReply, ModelState
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Learned
from spherefed.runs.loading import load
from spherefed.runs.runner import run_to_end
from spherefed.server.federation import federate
from support.small import blobs, handle_one, save_arrays, tiny

# Torch's own compiler uses what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """22 or 23 examples for each of four clients: two batches of eight and a short one."""
    return Data(name=save_arrays(tmp_path / "data.npz", blobs()))


@pytest.fixture(autouse=True)
def forgotten_trials() -> Iterator[None]:
    passes.check_bfloat16.cache_clear()
    yield
    passes.check_bfloat16.cache_clear()


def trained(assembly: Assembly) -> ModelState:
    fleet = InProcess(assembly.clients)
    return list(federate(fleet, assembly.initial(), assembly.plan()))[-1].model


def assert_close(a: ModelState, b: ModelState, tolerance: float) -> None:
    for name, tensor in a.params.items():
        torch.testing.assert_close(tensor, b.params[name], rtol=tolerance, atol=tolerance)


def learned(data: Data, **changes: object) -> Experiment:
    return tiny(data=data, model=Model(encoder=Mlp(widths=(8,)), head=Learned()), **changes)


@pytest.mark.slow
def test_compiled_rounds_equal_plain_ones_up_to_rounding_and_short_batches_compile_nothing(data: Data) -> None:
    plain = trained(assemble(learned(data)))
    torch._dynamo.reset()
    counters.clear()
    compiled = trained(assemble(learned(data, compile=True)))
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["graph_break"] == {}
    assert_close(compiled, plain, 1e-4)


@pytest.mark.soak
def test_workers_compile_to_the_same_bits(data: Data) -> None:
    assembly = assemble(learned(data, compile=True))
    initial = assembly.initial()
    parallel = Parallel(assembly, 2)
    try:
        *_, last = federate(parallel, initial, assembly.plan())
    finally:
        parallel.close()
    assert last.model.digest() == trained(assembly).digest()


def test_without_a_compiler_compilation_is_refused_and_its_runs_are_still_read(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One client with fewer examples than a batch: nothing is compiled.
    short = learned(data, compile=True, local=LocalTraining(lr=0.1, epochs=1, batch_size=64))
    run_to_end(short, tmp_path / "run")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler"):
        assemble(short)
    assert load(tmp_path / "run")(torch.zeros(1, 1, 2, 3)).shape == (1, 3)


@pytest.mark.slow
def test_bfloat16_trains_float32_weights_to_nearly_the_same_place(data: Data) -> None:
    gentle = {"rounds": 1, "local": LocalTraining(lr=0.05, epochs=1, batch_size=8)}
    plain = trained(assemble(learned(data, **gentle)))
    mixed = trained(assemble(learned(data, precision="bf16", **gentle)))
    assert {tensor.dtype for tensor in mixed.params.values()} == {torch.float32}
    assert mixed.digest() != plain.digest()
    assert_close(mixed, plain, 0.01)


def test_statistics_are_measured_in_full_precision(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_TRIAL", "")  # nothing is computed in bfloat16 here
    plain, mixed = assemble(tiny(data=data)), assemble(tiny(data=data, precision="bf16"))
    request = Measure(0, plain.initial())
    a, b = (handle_one(assembly.clients[0], request, None)[0] for assembly in (plain, mixed))
    assert isinstance(a, MeasureReply)
    assert isinstance(b, MeasureReply)
    assert all(torch.equal(moment, b.moments[name]) for name, moment in a.moments.items())


@pytest.mark.parametrize(
    ("trial", "cause"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("raise RuntimeError('no such thing')", "no such thing"),
    ],
)
def test_bfloat16_is_refused_where_a_trial_of_it_dies(
    data: Data, trial: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_TRIAL", trial)
    with pytest.raises(ConfigError, match=cause):
        assemble(tiny(data=data, precision="bf16"))


@pytest.mark.parametrize("pace", [{"compile": True}, {"precision": "bf16"}])
def test_stacked_clients_are_neither_compiled_nor_in_bfloat16(pace: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="stack = 4 does not go with"):
        tiny(stack=4, **pace)
