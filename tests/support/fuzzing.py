"""Random malformed input: `python -m support.fuzzing AREA CASES SEED [FIRST]` prints what it led to, as JSON.

Every case must end in a result or a typed error, within a second of processor time and 500 MB. The areas: settings
(`--set`), files (TOML and JSON experiments), runs (run directories), messages (records of the codec) and data (files of
data sets). A case depends on area, seed and number only, so any failure can be repeated alone.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spherefed.errors import SpherefedError
from support import fuzzed_areas

MAX_SECONDS = 1.0
MAX_BYTES = 500 * 10**6
ALARM = 20


class TooSlowError(Exception):
    """A case takes far too long."""


def run_case(act: Callable[[], object]) -> tuple[str, str]:
    """How a case ended: accepted, the name of a typed error, or a fault with its traceback."""
    try:
        act()
    except SpherefedError as error:
        return ("typed", type(error).__name__) if len(str(error)) < 20_000 else ("fault", "a message of over 20 kB")
    except fuzzed_areas.UndecodableError:
        return "typed", "not decoded"
    except OSError as error:  # the command line prints these as one line too
        return "typed", f"OSError {error.errno}"
    except BaseException:
        return "fault", traceback.format_exc()[-2000:]
    return "accepted", ""


def limit_memory() -> None:
    """From here on, so much may be allocated beside what the process has already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fuzz(area: str, cases: range, seed: int, folder: Path) -> dict[str, Any]:
    """Run cases of one area; counts, the slowest case, and all faults."""
    make = fuzzed_areas.AREAS[area](folder)
    run_case(make(random.Random("warm up"))[1])
    limit_memory()

    def alarm(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, alarm)
    counts: dict[str, int] = {}
    faults, slowest = [], 0.0
    for number in cases:
        text, act = make(random.Random(f"{area} {seed} {number}"))
        signal.alarm(ALARM * 10)
        began = time.process_time()
        how, what = run_case(act)
        seconds = time.process_time() - began
        signal.alarm(0)
        counts[what or how] = counts.get(what or how, 0) + 1
        slowest = max(slowest, seconds)
        if how == "fault" or seconds > MAX_SECONDS:
            faults.append({"number": number, "case": text[:300], "seconds": seconds, "what": what})
            counts["fault"] = counts.get("fault", 0) + (how == "fault")
            counts.pop(what, None) if how == "fault" else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"area": area, "cases": len(cases), "counts": counts, "slowest": slowest, "peak": peak, "faults": faults}


def main() -> None:
    area, cases, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="spherefed-fuzz-"))
    here = Path.cwd()
    os.chdir(folder)
    try:
        found = fuzz(area, range(first, first + cases), seed, folder)
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
