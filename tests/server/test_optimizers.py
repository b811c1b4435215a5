"""Server optimizers against recursions written number by number."""

from typing import Any

import numpy as np
import pytest
import torch

from spherefed.errors import ConfigError
from spherefed.messages import TrainReply
from spherefed.server.algorithms import (
    Algorithm,
)
from spherefed.server.federation import server_step
from spherefed.server.optimizers import ServerAdagrad, ServerAdam, ServerSgd, ServerYogi
from support.small import aggregate


def scalar_recursion(rule: str, deltas: list[float], lr: float, beta1: float, beta2: float, tau: float) -> list[float]:
    m, v, x, path = 0.0, tau * tau, 0.0, []
    for d in deltas:
        m = beta1 * m + (1 - beta1) * d
        if rule == "adam":
            v = beta2 * v + (1 - beta2) * d * d
        elif rule == "adagrad":
            v = v + d * d
        elif v > d * d:
            v = v - (1 - beta2) * d * d
        elif v < d * d:
            v = v + (1 - beta2) * d * d
        x += lr * m / (v**0.5 + tau)
        path.append(x)
    return path


@pytest.mark.parametrize(
    ("rule", "server"),
    [
        ("adam", ServerAdam(lr=0.3, beta1=0.8, beta2=0.95, tau=0.01)),
        ("yogi", ServerYogi(lr=0.3, beta1=0.8, beta2=0.95, tau=0.01)),
        ("adagrad", ServerAdagrad(lr=0.3, beta1=0.8, tau=0.01)),
    ],
)
def test_adaptive_servers_equal_a_scalar_recursion(rule: str, server: ServerAdam | ServerYogi | ServerAdagrad) -> None:
    rng = np.random.default_rng(0)
    deltas = rng.normal(scale=0.05, size=(6, 3))
    expected = np.array([scalar_recursion(rule, list(column), 0.3, 0.8, 0.95, 0.01) for column in deltas.T]).T
    x, memory = torch.zeros(3, dtype=torch.float64), {}
    for row, want in zip(deltas, expected, strict=True):
        update, memory = server.step({"w": torch.from_numpy(row)}, memory)
        x = x + update["w"]
        assert torch.allclose(x, torch.from_numpy(want), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("server", [ServerSgd(momentum=0.9, lr=3.0), ServerAdam(lr=5.0), ServerYogi(), ServerAdagrad()])
def test_server_optimisers_leave_running_statistics_to_plain_averaging(server: Any) -> None:
    """Variances stay positive whatever the server does to parameters."""
    replies = [
        TrainReply(k, 0, 10 * (k + 1), 1.0, 0.0, {"w": torch.randn(3)}, {"variance": torch.full((2,), 1e-6 * (k + 1))})
        for k in range(3)
    ]
    combined = aggregate(iter(replies), normalize_steps=True)
    assert combined is not None
    update, _ = server_step(Algorithm(server=server), combined, {}, 3)
    assert update.keys() == {"w"}
    assert torch.allclose(combined.buffers["variance"], torch.full((2,), 1e-6 * (1 + 4 + 9) / 6))


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_adaptive_servers_refuse_impossible_values(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        ServerAdam(**bad)
