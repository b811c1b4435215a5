"""A client is one function of a typed request and of what it remembers; every engine calls this same function."""

from dataclasses import dataclass

import torch

from spherefed.calibration import Calibration
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ClientError
from spherefed.evaluation import BATCH_SIZE, count
from spherefed.losses import Loss
from spherefed.messages import Evaluate, EvaluateReply, Measure, MeasureReply, Reply, Request, Train, TrainReply
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.tensors import Tensors, one_thread
from spherefed.training import LocalTraining, effective_steps, train
from spherefed.workbench import Workbench

Memory = Tensors
"""What a client keeps from one round to the next, as plain tensors; stateless methods keep None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Duties:
    """What every client of a federation does alike."""

    seed: int
    local: LocalTraining
    loss: Loss
    prox_mu: float = 0.0
    calibration: Calibration | None = None
    min_samples: int = 2
    """Fewest examples for which statistics are measured: V and U of one example are that example's features."""
    augment: Augment | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Client:
    """One client: its number, its data, the bench its process works on, and its duties."""

    id: int
    examples: Examples
    held_out: Examples
    bench: Workbench
    duties: Duties

    def handle(self, request: Request, memory: Memory | None) -> tuple[Reply, Memory | None]:
        """Answer a request; a pure function of the request, the client's data and its memory."""
        with one_thread():
            self.bench.lay(request.model)
            match request:
                case Train():
                    return self._train(request), memory
                case Measure():
                    return self._measure(request), memory
                case Evaluate():
                    return self._evaluate(request), memory

    def _train(self, request: Train) -> TrainReply:
        bench, duties = self.bench, self.duties
        name = (request.round, self.id)
        with torch_stream(duties.seed, Purpose.LAYERS, *name, device=bench.device):
            trained = train(
                bench,
                self.examples,
                local=duties.local,
                loss=duties.loss,
                lr=request.lr,
                order=stream(duties.seed, Purpose.BATCHES, *name),
                augment=duties.augment,
                prox_mu=duties.prox_mu,
                anchor=request.model.params,
            )
        with torch.no_grad():
            moved = torch._foreach_sub(list(bench.params.values()), [request.model.params[n] for n in bench.params])
        return TrainReply(
            client=self.id,
            round=request.round,
            num_examples=len(self.examples),
            effective_steps=effective_steps(
                trained.num_steps, momentum=duties.local.momentum, shrink=request.lr * duties.prox_mu
            ),
            loss=trained.loss,
            delta=dict(zip(bench.params, moved, strict=True)),
            buffers={n: b.clone() for n, b in bench.buffers.items()},
        )

    def _measure(self, request: Measure) -> MeasureReply:
        calibration, num_examples = self.duties.calibration, len(self.examples)
        if calibration is None:
            raise ClientError("asked to measure, but the experiment has no calibration")
        if 0 < num_examples < self.duties.min_samples:
            raise ClientError(
                f"statistics of {num_examples} examples would reveal their features and labels; "
                f"min_samples is {self.duties.min_samples}"
            )
        batches = self.examples.in_order(BATCH_SIZE, device=self.bench.device)
        moments = calibration.measure(self.bench.classifier, batches)
        return MeasureReply(self.id, request.round, num_examples, moments)

    def _evaluate(self, request: Evaluate) -> EvaluateReply:
        counts = count(self.bench.classifier, self.held_out, self.bench.device)
        return EvaluateReply(self.id, request.round, num_examples=counts.total, correct=counts.correct)
