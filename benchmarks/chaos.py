"""Random faults for 15 minutes on a deployment of four sites on loopback, while it trains.

python benchmarks/chaos.py                          prints what happened
python benchmarks/chaos.py --minutes 15 --write     also writes it into docs/reliability.md, between its markers
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from sections import write_section

ROOT = Path(__file__).parent.parent
ROUNDS, DEADLINE = 10, 20.0


def table(minutes: float, seed: int) -> str:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.chaos import SITES, unleash

    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        report = unleash(Path(folder), 60 * minutes, rounds=ROUNDS, seed=seed, deadline=DEADLINE)
    print("\n".join(report.events), file=sys.stderr)
    lines = ["| fault | times |", "|---|---|"]
    lines += [f"| {name} | {report.faults[name]} |" for name in sorted(report.faults)]
    lines.append(
        f"\n{report.seconds / 60:.1f} minutes, {SITES} sites, seed {seed}, load average {before:.1f} before. "
        f"Runs of {ROUNDS} rounds that finished: {report.runs} of {report.runs} ({report.rounds} rounds, "
        f"{report.incomplete} of them without at least one site; resumed {report.resumed} times). The weights and "
        "statistics of each run equal those of a local run with the clients that counted, to the bit. No process and "
        "no temporary file was left."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = table(options.minutes, options.seed)
    print(text)
    if options.write:
        write_section("reliability.md", "chaos", text)


if __name__ == "__main__":
    main()
