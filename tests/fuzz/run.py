"""Fuzzing on demand: `python tests/fuzz/run.py --inputs 1000000` (shared out over the targets).

An uncaught error or an input that takes longer than a second, on the wall, is a finding: its bytes
are kept under out/fuzz/ and the exit status is 1. `--write` keeps the figures in
tests/fuzz/results/fuzz.json.
"""

import argparse
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.fuzz.limit import within  # noqa: E402
from tests.fuzz.mutate import apply, edits  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402
from tests.support.results import COMMIT  # noqa: E402

AFTER_S = 60.0
"""So long may it take to see that what was fuzzed is still well."""
RESULTS = ROOT / "tests" / "fuzz" / "results" / "fuzz.json"
SHARES = {
    # what is slow gets fewer; the rest is shared equally
    "config": 0.05, "opcua_link": 0.0005, "scada_bytes": 0.01, "scada_requests": 0.005,
    "panel_http": 0.02, "metrics_http": 0.03, "operator_socket": 0.02, "journal": 0.02,
    "quantity": 0.02,
}  # fmt: skip


def fuzz(name: str, inputs: int, seed: int, seconds: float) -> dict[str, Any]:
    """So many inputs into one target; what was found."""
    target = TARGETS[name]()
    source, findings, slowest_s, done = random.Random(f"{name}{seed}"), [], 0.0, 0
    started = time.monotonic()
    try:
        while done < inputs and time.monotonic() - started < seconds:
            which, wanted = source.randrange(1 << 16), edits(source)
            data = apply(target.seeds, target.words, which, wanted)
            begun = time.monotonic()
            try:
                within(target.run, data)
                slowest_s = max(slowest_s, time.monotonic() - begun)
                done += 1
                if done % target.every == 0:
                    within(lambda _: target.after(), b"", AFTER_S)
            except Exception as error:  # noqa: BLE001  (that is what is looked for)
                findings.append(_keep(name, data, error))
                if len(findings) >= 10:
                    break
        target.after()
    finally:
        target.close()
    found: dict[str, Any] = {
        "inputs": done,
        "seconds": round(time.monotonic() - started, 1),
        "slowest_s": round(slowest_s, 3),
        "findings": findings,
    }
    if hasattr(target, "broken"):
        found["broken_frames"] = target.broken()
    return found


def _keep(name: str, data: bytes, error: BaseException) -> str:
    folder = ROOT / "out" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{abs(hash(data)) % 16**8:08x}"
    file.write_bytes(data)
    traceback.print_exception(error, limit=-6)
    sys.stderr.write(f"{name}: {error!r}: {file}\n")
    return f"{type(error).__name__}: {str(error)[:200]} ({file.name})"


def main() -> int:
    """Share the inputs out and run the targets one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="over all targets")
    parser.add_argument("--seconds", type=float, default=1e9, help="most for one target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="repeatable")
    parser.add_argument("--replay", type=Path, help="one input that was kept, into --target")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS.name}")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    if given.replay is not None:
        for name in names:
            target = TARGETS[name]()
            target.run(given.replay.read_bytes())
            target.close()
        return 0
    fixed = sum(SHARES.get(name, 0.0) for name in names)
    rest = [name for name in names if name not in SHARES]
    equal = (1.0 - fixed) / len(rest) if rest else 0.0
    results, total = {}, 0
    for name in names:
        share = SHARES.get(name, equal) if len(names) > 1 else 1.0
        results[name] = fuzz(name, max(1, round(given.inputs * share)), given.seed, given.seconds)
        total += results[name]["inputs"]
        sys.stdout.write(f"{name}: {json.dumps(results[name])}\n")
        sys.stdout.flush()
    findings = sum(len(one["findings"]) for one in results.values())
    sys.stdout.write(f"{total} inputs, {findings} findings\n")
    if given.write:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
        kept["targets"] |= results
        for one in results.values():
            one["command"] = "python " + " ".join(["tests/fuzz/run.py", *sys.argv[1:]])
            one["commit"] = COMMIT
        kept["inputs"] = sum(one["inputs"] for one in kept["targets"].values())
        kept["findings"] = sum(len(one["findings"]) for one in kept["targets"].values())
        kept["cores"] = os.cpu_count()
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
