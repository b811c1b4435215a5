"""Everything that docs/performance.md says, measured here and now: `make bench`.

python benchmarks/report.py --only overhead --contestants bare,default,fedlab

prints a part of it, and leaves the page alone.
"""

import argparse
import os
import platform
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from compare import NotMeasured, Outcome, contest
from compare import table as ratios
from contestants import NAMES, PEERS, check
from environments import version
from growth import by_clients, by_cohort, by_features, ffc_ratios
from growth import table as growth

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PARTS = ["overhead", "compute", "ffc", "growth"]
REPETITIONS = {"overhead": 9, "compute": 7}
TAKING_PART = {
    "overhead": ["bare", "default", "one by one", "stacked 5", "stacked 10", *PEERS],
    "compute": ["bare", "default", "compile", "bf16", "workers 1", "workers 2", *PEERS],
}


def main() -> None:
    given = _arguments()
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    outcomes: dict[str, dict[str, Outcome]] = {}
    sections = []
    for part in given.only:
        if part in TAKING_PART:
            names = given.contestants or TAKING_PART[part]
            outcomes[part] = contest(part, names, given.repetitions or REPETITIONS[part])
        sections.append(_section(part, outcomes.get(part, {})))
    page = "\n\n".join([_opening(before), *sections, _not_measured(outcomes)]) + "\n"
    print(page)
    if given.whole:
        PAGE.write_text(page, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_split, default=PARTS, help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument(
        "--contestants",
        type=_split,
        help=f"comma-separated, of {', '.join(NAMES)}; the first is what the others are compared with",
    )
    parser.add_argument("--repetitions", type=int, help=f"turns of each contestant (default {REPETITIONS})")
    given = parser.parse_args()
    unknown = [part for part in given.only if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(map(repr, unknown))}; there are {', '.join(PARTS)}")
    check(given.contestants or [])
    given.whole = given.only == PARTS and given.contestants is None and given.repetitions is None
    return given


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _opening(load_before: float) -> str:
    machine, load = _processor(), os.getloadavg()[0]
    many, few = REPETITIONS.values()
    return f"""# Performance

`make bench` writes this page; do not edit it by hand.
{machine}, {os.cpu_count()} cores, torch {torch.__version__}, one thread.
Load average {load_before:.1f} at the start and {load:.1f} at the end: if it is above the number of cores, other
processes used the machine, and wall times are not reliable.

Ratios are to a bare PyTorch loop (`benchmarks/bare.py`) that does the same work: FedAvg with a learned head on the same
data, partition, cohorts, initial net, steps and evaluation after every round. Programs are timed in turns, {many}
on the first workload and {few} on the second; each turn begins with rounds that are not timed. The table has the
median, lowest and highest of the ratios per turn. The final loss on the training set shows that the work was done; it
differs in the third digit, because batches come from other random streams. CPU time and memory are those of the whole
process tree (pages that processes share count once for each). Start-up is reported separately: the time from the
start of the process to the end of the first round, minus a steady round.

`default` is `spherefed run` with its run directory, checkpoints, validation of replies and Eq. 2 and 3. Our processes
configure the C library to keep freed memory ([why](decisions/0013-freed-memory.md)); the bare loop and the other
libraries run with their defaults. Other libraries run in their own environments, in one process (Flower: with one Ray
worker), by `benchmarks/peers/`; each file there states what was added to the library to make the work equal:
{", ".join(version(name) for name in PEERS)}."""


def _processor() -> str:
    """What the ratios of compiled and bf16 runs depend on most."""
    with suppress(OSError):
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        summary = {name.strip(): value.strip() for name, _, value in lines}
        widest = [flag for flag in ("avx512_bf16", "avx512f", "avx2") if flag in summary.get("flags", "").split()]
        return ", ".join([summary.get("model name", platform.machine()), *widest])
    return platform.processor() or platform.machine()


def _section(part: str, outcomes: dict[str, Outcome]) -> str:
    match part:
        case "overhead":
            return f"""## Overhead-bound: digits, 100 clients, 10 a round, MLP 64-64-10

{ratios(outcomes)}

By default, ten clients of such a small model train as one computation (equal up to rounding to one by one), and every
round is saved to disk, which no other library here does. `one by one` is `--set stack=0` and `stacked K` is
`--set stack=K`, both with `--checkpoint-every 100`. For the time of each part of a round see [speed](speed.md).
{_times_slower(outcomes)}"""
        case "compute":
            return f"""## Compute-bound: 2,000 images, 10 clients, all in every round, the paper's ConvNet

{ratios(outcomes)}

`compile` is `--compile`; its start-up includes the compilation. `bf16` is `--precision bf16`; `workers N` is
`--workers N`.{_two_workers(outcomes)}
{_times_slower(outcomes)}"""
        case "ffc":
            ffc, solve = ffc_ratios()
            return f"""## FFC

Exact statistics of 50,000 × 1,280 features, 100 classes, take **{median(ffc):.2f}** ({ffc[0]:.2f} – {ffc[-1]:.2f})
of the CPU time of a bare float64 `Z.T @ Z`; the solve takes {solve:.2f} s."""
        case _:
            studies = [
                growth("clients, 100 a round", "round", by_clients()),
                growth("cohort of 1,000 clients", "round", by_cohort()),
                growth("features, 2,000 examples", "measurement", by_features()),
            ]
            return "\n\n".join(["## Growth", *studies])


def _times_slower(outcomes: dict[str, Outcome]) -> str:
    """The other libraries against our default, turn by turn."""
    ours = outcomes.get("default")
    if ours is None or isinstance(ours, NotMeasured):
        return ""
    slower = {
        title: median(a.cpu / b.cpu for a, b in zip(other.turns, ours.turns, strict=True))
        for name, title in PEERS.items()
        if (other := outcomes.get(name)) is not None and not isinstance(other, NotMeasured)
    }
    told = ", ".join(f"{title} **{ratio:.2f}**" for title, ratio in slower.items())
    return f"\nCPU time of the other libraries divided by that of `default`: {told}." if told else ""


def _two_workers(outcomes: dict[str, Outcome]) -> str:
    one, two = outcomes.get("workers 1"), outcomes.get("workers 2")
    if one is None or two is None or isinstance(one, NotMeasured) or isinstance(two, NotMeasured):
        return ""
    faster = sorted(a.wall / b.wall for a, b in zip(one.turns, two.turns, strict=True))
    return f"\n\nTwo workers are **{median(faster):.2f}** ({faster[0]:.2f} – {faster[-1]:.2f}) times as fast as one."


def _not_measured(outcomes: dict[str, dict[str, Outcome]]) -> str:
    failed = [
        f"- {PEERS.get(name, name)}, {part}-bound: {outcome.cause}"
        for part, contestants in outcomes.items()
        for name, outcome in contestants.items()
        if isinstance(outcome, NotMeasured)
    ]
    general = "GPUs. For channels last, and for bf16 of other networks, see [speed](speed.md)."
    return "\n\n".join(["## Not measured", *(["\n".join(failed)] if failed else []), general])


if __name__ == "__main__":
    main()
