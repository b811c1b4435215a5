"""Learning rates against torch's own schedulers."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from spherefed.errors import ConfigError
from spherefed.messages import Failure, Reply, Request
from spherefed.server.federation import federate
from spherefed.server.schedules import Constant, Cosine, MultiStep, Schedule
from support.fleets import Only
from support.small import assembled, in_process

SCHEDULES: list[Schedule] = [Constant(), Cosine(), MultiStep(every=4, gamma=0.1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rates_follow_torchs_schedulers_round_by_round(schedule: Schedule) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = {
        "constant": torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
        "multistep": torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1),
    }[schedule.kind]
    for t in range(10):
        assert 0.4 * schedule.factor(t, 10) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_the_scheduled_rate_is_what_clients_are_sent() -> None:
    assembly = assembled(rounds=4, schedule=Cosine())
    sent: list[float] = []

    class Spy(Only):
        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
            sent.append(request.lr)  # type: ignore[union-attr]
            return super().ask(clients, request)

    rounds = list(federate(Spy(in_process(assembly), range(4)), assembly.initial(), assembly.plan()))
    assert sent == [r.lr for r in rounds] == [0.5 * Cosine().factor(t, 4) for t in range(4)]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"gamma": 0.0}, {"gamma": 1.5}, {"gamma": float("nan")}])
def test_impossible_schedules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        MultiStep(**wrong)  # type: ignore[arg-type]
