"""Everything that docs/performance.md says, measured here and now: `make bench`."""

import os
import platform
from pathlib import Path
from statistics import median

import torch
from compare import compare
from compare import table as ratios
from growth import by_clients, by_cohort, by_features, ffc_ratios
from growth import table as growth

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
REPETITIONS = 5


def main() -> None:
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    overhead = ratios(compare("overhead", ["bare", "default", "stacked 5", "stacked 10"], REPETITIONS))
    compute = ratios(compare("compute", ["bare", "default", "workers 2"], REPETITIONS))
    ffc, solve = ffc_ratios()
    studies = [
        growth("clients, 100 a round", "round", by_clients()),
        growth("cohort of 1,000 clients", "round", by_cohort()),
        growth("features, 2,000 examples", "measurement", by_features()),
    ]
    PAGE.write_text(
        f"""# Performance

Written by `make bench`; not edited by hand. {platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch
{torch.__version__}, one thread. Load average {before:.1f} at the start and {os.getloadavg()[0]:.1f} at the end: where
it is above the number of cores, others were using the machine, and wall times say little.

Ratios are to a bare PyTorch loop (`benchmarks/contestants.py`) that does the same work: same data, partition, cohorts,
steps and evaluation after every round. Contestants take turns, {REPETITIONS} each after a first that is not
counted; the table has the median of the ratios turn by turn, and the lowest and highest. `default` is `spherefed run`
with its run directory, checkpoints, admission checks and Eq. 2 and 3. The final loss on the training set is the proof
that the work was done; batches are drawn from other random streams, so it differs in the third digit. CPU time is that
of all processes, memory that of the first.

## Overhead-bound: digits, 100 clients, 10 a round, MLP 64-64-10

{overhead}

`stacked K` is `--set stack=K`: K clients train as one computation (equal up to rounding to one by one).

## Compute-bound: 2,000 images, 10 clients, all in every round, the paper's ConvNet

{compute}

## FFC

Exact statistics of 50,000 × 1,280 features, 100 classes, take **{median(ffc):.2f}** ({ffc[0]:.2f} – {ffc[-1]:.2f})
of the CPU time of a bare float64 `Z.T @ Z`; the solve takes {solve:.2f} s.

## Growth

{(chr(10) * 2).join(studies)}

## Not measured

Other libraries; `torch.compile`, channels-last and bf16, which are not offered yet; GPUs.
""",
        encoding="utf-8",
    )
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
