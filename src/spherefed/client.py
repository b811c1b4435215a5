"""A client is one function of a typed request and of what it remembers; every engine calls this same function."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from spherefed.batch_statistics import measure_moments
from spherefed.calibration import Calibration
from spherefed.corrections import Correction, Uncorrected, Work
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ClientError
from spherefed.evaluation import BATCH_SIZE, count
from spherefed.losses import Loss
from spherefed.memory import Memory
from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Measure,
    MeasureReply,
    Reestimate,
    ReestimateReply,
    Reply,
    Request,
    Train,
    TrainReply,
)
from spherefed.personalization import Personalization, Place
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.tensors import non_finite, one_thread, prefixed, under
from spherefed.training import LocalTraining, effective_steps, phases, train
from spherefed.workbench import Workbench


@dataclass(frozen=True, kw_only=True, slots=True)
class Duties:
    """What every client of a federation does alike."""

    seed: int
    local: LocalTraining
    loss: Loss
    prox_mu: float = 0.0
    correction: Correction = field(default_factory=Uncorrected)
    personalization: Personalization | None = None
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
            self.bench.lay(request.model, under("private", memory) if memory else None)
            match request:
                case Train():
                    return self._train(request, memory or {})
                case Measure():
                    return self._measure(request), memory
                case Reestimate():
                    return self._reestimate(request), memory
                case Evaluate():
                    return self._evaluate(request), memory

    def _train(self, request: Train, memory: Memory) -> tuple[TrainReply, Memory | None]:
        bench, duties, remembered = self.bench, self.duties, under("correction", memory)
        bend = duties.correction.start(bench, request, remembered)
        # Where FedProx meets a private part, that part is anchored at its own start of the round.
        anchor = request.model.params if not bench.private else {**bench.read_private(), **request.model.params}
        order = stream(duties.seed, Purpose.BATCHES, request.round, self.id)
        with self._layers_stream(request.round):
            for local, params in phases(duties.local, bench):
                trained = train(
                    bench,
                    self.examples,
                    params=params,
                    local=local,
                    loss=duties.loss,
                    lr=request.lr,
                    order=order,
                    augment=duties.augment,
                    prox_mu=duties.prox_mu,
                    anchor=anchor,
                    bend=bend,
                )
        steps = effective_steps(trained.num_steps, momentum=duties.local.momentum, shrink=request.lr * duties.prox_mu)
        delta = bench.moved_from(request.model)
        work = Work(bench, delta, reach=request.lr * steps, prox_mu=duties.prox_mu)
        kept, extra = duties.correction.finish(work, request, remembered)
        memory = prefixed("private", bench.read_private()) | prefixed("correction", kept)
        if name := non_finite(memory):
            raise ClientError(f"training diverged: {name!r} is not finite; the memory of the round before is kept")
        reply = TrainReply(
            client=self.id,
            round=request.round,
            # With BatchNorm one example alone gives no step: that client counts as one without examples.
            num_examples=len(self.examples) if trained.num_steps else 0,
            effective_steps=steps,
            loss=trained.loss,
            delta=delta,
            buffers={n: b.clone() for n, b in bench.shared_buffers.items()},
            extra=extra,
        )
        return reply, memory or None

    def _layers_stream(self, round_index: int) -> AbstractContextManager[None]:
        """Where random layers draw from; nothing, for a model that has none."""
        if not self.bench.may_draw:
            return nullcontext()
        return torch_stream(self.duties.seed, Purpose.LAYERS, round_index, self.id, device=self.bench.device)

    def _measure(self, request: Measure) -> MeasureReply:
        calibration = self.duties.calibration
        if calibration is None:
            raise ClientError("asked to measure, but the experiment has no calibration")
        self._check_enough()
        batches = self.examples.in_order(BATCH_SIZE, device=self.bench.device)
        moments = calibration.measure(self.bench.classifier, batches)
        return MeasureReply(self.id, request.round, len(self.examples), moments)

    def _reestimate(self, request: Reestimate) -> ReestimateReply:
        """As in training, in random batches of the same size, but without augmentation, as in evaluation."""
        self._check_enough()
        bench, duties = self.bench, self.duties
        order = stream(duties.seed, Purpose.REESTIMATE, request.round, self.id)
        batches = self.examples.epoch(
            duties.local.batch_size, order, device=bench.device, smallest=bench.smallest_batch
        )
        moments = measure_moments(bench.classifier, batches, request.model.buffers)
        return ReestimateReply(self.id, request.round, len(self.examples), moments)

    def _check_enough(self) -> None:
        if 0 < len(self.examples) < self.duties.min_samples:
            raise ClientError(
                f"statistics of {len(self.examples)} examples would reveal their features and labels; "
                f"min_samples is {self.duties.min_samples}"
            )

    def _evaluate(self, request: Evaluate) -> EvaluateReply:
        if request.personalize:
            self._personalize(request)
        self.bench.set_training(False)
        counts = count(self.bench.classifier, self.held_out, self.bench.device)
        return EvaluateReply(self.id, request.round, num_examples=counts.total, correct=counts.correct)

    def _personalize(self, request: Evaluate) -> None:
        """Make the model on the bench the client's own; training streams of this round number are not used before."""
        duties, key = self.duties, (request.round, self.id)
        if duties.personalization is None:
            raise ClientError("asked to personalize, but the experiment has no personalization")
        place = Place(
            bench=self.bench,
            examples=self.examples,
            local=duties.local,
            loss=duties.loss,
            order=stream(duties.seed, Purpose.BATCHES, *key),
            augment=duties.augment,
        )
        with self._layers_stream(request.round):
            duties.personalization.apply(place, request.extra)
