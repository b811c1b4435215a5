"""Try every control and runtime route and many malicious requests on the open port of a server, while it trains.

python benchmarks/outside.py           prints the table
python benchmarks/outside.py --write   also writes it into docs/reliability.md, between its markers
"""

import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from sections import write_section

from spherefed.data.partition import Iid
from spherefed.deployment import control
from spherefed.experiment import experiment_to_json
from spherefed.runs.round_log import read_lines

ROOT = Path(__file__).parent.parent


def table() -> str:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.machines import deployment, until
    from support.methods_on_digits import spherefed
    from support.outside import OUTSIDE, attack
    from support.tricks import FORBIDDEN_PATHS, tricks

    names, routes = tricks(), len(FORBIDDEN_PATHS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, lines = folder / "e.json", folder / "run" / "rounds.jsonl"
        experiment = replace(spherefed(), deadline=60.0, partition=Iid(clients=2), rounds=200)
        file.write_text(experiment_to_json(experiment), encoding="utf-8")
        with deployment(folder / "d", num_sites=2, address=OUTSIDE) as real:
            real.start_all()
            operator = real.run(file, folder / "run")
            until(lambda: lines.exists() and len(read_lines(lines)) > 0, "the first round", 600)
            began = len(read_lines(lines))
            tried, reached = attack(real)
            until(lambda: len(read_lines(lines)) > began, "training to go on", 600)
            done = read_lines(lines)
            online = [row[2] for row in control.sites(real.path / "server")].count("online")
            operator.send_signal(signal.SIGINT)
            operator.communicate(timeout=120)
    complete = sum(line["clients"] == [0, 1] for line in done)
    rows = {
        "control and runtime routes": routes,
        "other malicious requests": len(names) - routes,
        "attempts: each without and with a site's signature, and one in plain text": tried,
        "**attempts that reached the SuperLink**": len(reached),
        "rounds of training before and during the attempts, all sites in each": f"{complete} of {len(done)}",
        "sites online for the operator on the server's machine": f"{online} of 2",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {number} |" for what, number in rows.items())])


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background, for the operator's process
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        write_section("reliability.md", "outside", text)


if __name__ == "__main__":
    main()
