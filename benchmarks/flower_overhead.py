"""Seconds per trivial round on a real loopback deployment: TLS, authentication, 4 sites, hardly any work.

python benchmarks/flower_overhead.py [--sites 4] [--rounds 12]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

BIN = Path(sys.executable).parent
SETTINGS = ["data.examples=80", "local.epochs=1", "partition.kind=iid", "calibration=none", "model.encoder.widths=[8]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    from spherefed.deployment.folder import init
    from spherefed.deployment.programs import free_port

    with tempfile.TemporaryDirectory(prefix="spherefed-overhead-") as scratch:
        place = Path(scratch) / "d"
        names = [f"site-{number}" for number in range(given.sites)]
        init(place, names, address="127.0.0.1", port=free_port())
        roles = [place / "server", *(place / "sites" / name for name in names)]
        started = []
        try:
            for folder in roles:
                log = (folder / "log.txt").open("wb")
                started.append(subprocess.Popen([folder / "start.sh"], stdout=log, stderr=log))
                while folder.name == "server" and "\nready" not in (folder / "log.txt").read_text():
                    time.sleep(0.2)
            settings = [*SETTINGS, f"rounds={given.rounds}", f"partition.clients={given.sites}"]
            command = [BIN / "spherefed", "deploy", "run", place / "server", "digits", "--out", place / "run"]
            command += [word for setting in settings for word in ("--set", setting)]
            load = os.getloadavg()[0]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            lines = (place / "run" / "rounds.jsonl").read_text().splitlines()
            seconds = sorted(json.loads(line)["seconds"] for line in lines[1:])
            print(
                f"{given.sites} sites, {len(seconds)} rounds: median {median(seconds):.2f} s, "
                f"{seconds[0]:.2f} to {seconds[-1]:.2f}; load average {load:.1f} before, {os.getloadavg()[0]:.1f} after"
            )
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(timeout=40)


if __name__ == "__main__":
    main()
