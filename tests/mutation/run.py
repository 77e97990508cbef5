"""Mutation testing of the safety part: does a test fail for every small fault?

    python tests/mutation/run.py [--files limits.py ...] [--sample N --seed S] [--budget-min M]

Works on a copy in a temporary folder; the tree is only read, but for results.json beside this
file (and only when the whole set is run, or with --out). One process at a time.

A maintained tool would be better than this runner. mutmut 3 leaves alone every decorated function
(all numba kernels), all of a module outside functions, and has no flipped comparison and no
removed branch; those are the faults that matter here.

How: numba is off, so the kernels are their Python source. The tests are collected once; one pass
under coverage tells which of them reach which line. For every mutant a forked child gets the
changed code of one function and runs the tests that reach its line, quickest first, until one
fails. A mutant of the module itself (a constant, a default) is written to the copy and tested in
a fresh process. A child that hangs for ten times as long as its tests is killed and counted.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PART = "steadyhand.controllers.safety"
SUITE = "tests/controllers/safety"
CONFIG = """
[tool.pytest.ini_options]
addopts = "--import-mode=importlib -p no:cacheprovider -p no:timeout -q --capture=no"
markers = ["slow: not run here"]
"""
SLOWER, PATIENCE_S = 10.0, 5.0
FAMILIES_OF_LIMITS = ("comparison", "boundary")


def make_copy(folder: Path) -> None:
    """The package under its own name, and its tests."""
    ignore = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    shutil.copytree(ROOT / "controllers", folder / "steadyhand" / "controllers", ignore=ignore)
    shutil.copytree(ROOT / SUITE, folder / SUITE, ignore=ignore)
    shutil.copytree(HERE, folder / "mutation", ignore=ignore)
    (folder / "pyproject.toml").write_text(CONFIG)


def environment(folder: Path) -> dict[str, str]:
    """Of everything that runs in the copy."""
    here = f"{folder}:{folder / 'mutation'}"
    return {
        **os.environ, "PYTHONPATH": here, "NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip


def select(argv: argparse.Namespace, folder: Path) -> tuple[list[Any], int]:
    """The mutants to try and how many there are in all."""
    from mutants import mutants_of

    part = folder / Path(*PART.split("."))
    everything = [
        mutant
        for path in sorted(part.glob("*.py"))
        if not argv.files or path.name in argv.files
        for mutant in mutants_of(path.name, path.read_text())
    ]
    if argv.sample and argv.sample < len(everything):
        chosen = random.Random(argv.seed).sample(range(len(everything)), argv.sample)
        return [everything[i] for i in sorted(chosen)], len(everything)
    return everything, len(everything)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: survived, or killed by a test, an error or the clock."""

    survived: bool
    by: str = ""


class Runner:
    """A pytest plugin in place of its loop: the collected tests, run as often as needed."""

    def __init__(self, argv: argparse.Namespace, folder: Path) -> None:
        self.argv, self.folder = argv, folder
        self.reach: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.taken_s: dict[str, float] = {}
        self.failed = False

    def pytest_runtestloop(self, session: Any) -> bool:
        """Baseline, then every mutant."""
        self.items = {item.nodeid: item for item in session.items}
        self.baseline()
        if self.failed:
            return True
        mutants, total = select(self.argv, self.folder)
        started, told, verdicts = time.monotonic(), 0.0, []
        for mutant in mutants:
            passed_s = time.monotonic() - started
            if self.argv.budget_min and passed_s > 60 * self.argv.budget_min:
                break
            verdicts.append((mutant, self.try_out(mutant)))
            if passed_s - told > 20:
                told = passed_s
                left = sum(verdict.survived for _, verdict in verdicts)
                print(f"{len(verdicts)} of {len(mutants)}, {left} survive", flush=True)
        report(self.argv, self.folder, verdicts, total, time.monotonic() - started)
        return True

    def baseline(self) -> None:
        """All tests pass on the copy; which lines each reaches, and how long it takes."""
        import coverage

        part = self.folder / Path(*PART.split("."))
        watch = coverage.Coverage(data_file=None, include=[f"{part}/*"], branch=False)
        watch.start()
        for name, item in self.items.items():
            watch.switch_context(name)
            started = time.monotonic()
            if not passes(item):
                print(f"fails without any mutant: {name}")
                self.failed = True
            self.taken_s[name] = time.monotonic() - started
        watch.stop()
        data = watch.get_data()
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                self.reach[Path(file).name, line] |= {name for name in names if name in self.items}

    def tests_of(self, mutant: Any) -> list[Any]:
        """Tests that reach the mutant's statement, quickest first."""
        names: set[str] = set()
        for line in range(mutant.line, max(mutant.line - 12, 0), -1):
            # A statement over several lines is told by its first.
            names = self.reach.get((mutant.file, line), set())
            if names:
                break
        if not mutant.owner:
            names = set(self.items)
        return [self.items[name] for name in sorted(names, key=lambda n: (self.taken_s[n], n))]

    def try_out(self, mutant: Any) -> Verdict:
        """Run the tests against one mutant."""
        tests = self.tests_of(mutant)
        if not tests:
            return Verdict(True, "no test reaches it")
        limit_s = SLOWER * sum(self.taken_s[item.nodeid] for item in tests) + PATIENCE_S
        if not mutant.owner:
            return self.in_a_fresh_process(mutant, limit_s)
        function, code = live_function(mutant), new_code(mutant)
        if code.co_freevars != function.__code__.co_freevars:
            return Verdict(False, "does not fit its class")
        return self.in_a_child(function, code, tests, limit_s)

    def in_a_child(self, function: Any, code: Any, tests: list[Any], limit_s: float) -> Verdict:
        """Fork, change the function, run; the child says which test failed."""
        read, write = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            silence()
            function.__code__ = code
            for item in tests:
                if not passes(item):
                    os.write(write, item.nodeid.encode())
                    os._exit(1)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            by = told.read()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return Verdict(False, f"signal {os.WTERMSIG(status)}")
        return Verdict(os.WEXITSTATUS(status) == 0, by)

    def in_a_fresh_process(self, mutant: Any, limit_s: float) -> Verdict:
        """Write the mutant into the copy and run the whole suite until a test fails."""
        path = self.folder / Path(*PART.split(".")) / mutant.file
        before = path.read_text()
        path.write_text(mutant.source)
        try:
            command = [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "-k", "compiled or "
                       "not source", SUITE]  # fmt: skip
            done = subprocess.run(
                command, cwd=self.folder, env=environment(self.folder), timeout=limit_s + 60,
                capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Verdict(False, "time")
        finally:
            path.write_text(before)
        return Verdict(done.returncode == 0, "suite")


def silence() -> None:
    """Nothing a child prints is of interest."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def passes(item: Any) -> bool:
    """Run one test with its fixtures."""
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=None)
    return not any(one.failed for one in reports)


def live_function(mutant: Any) -> FunctionType:
    """The function object that every importer shares."""
    found: Any = sys.modules[f"{PART}.{mutant.file.removesuffix('.py')}"]
    for name in mutant.owner.split("."):
        found = vars(found)[name]
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def new_code(mutant: Any) -> Any:
    """The mutated function's code."""
    from mutants import function_code

    code = function_code(mutant.code, mutant.owner)
    if code is None:
        raise LookupError(f"{mutant.file}: no function {mutant.owner}")
    return code


def reasons() -> dict[tuple[str, str, str], str]:
    """(file, stripped source line, change) -> why this survivor is one."""
    path = HERE / "reasons.toml"
    known = tomllib.loads(path.read_text()) if path.exists() else {}
    return {
        (entry["file"], entry["line"], entry["change"]): entry["reason"]
        for entry in known.get("survivor", [])
    }


def share(killed: int, tried: int) -> float:
    """Killed of tried in percent, two digits; 100 where nothing was tried."""
    return round(100.0 * killed / tried, 2) if tried else 100.0


def tally(verdicts: list[tuple[Any, Verdict]], key: Any) -> dict[str, dict[str, float]]:
    """Killed and survived by some property."""
    killed, tried = Counter(), Counter()
    for mutant, verdict in verdicts:
        tried[key(mutant)] += 1
        killed[key(mutant)] += not verdict.survived
    return {
        name: {
            "mutants": tried[name],
            "killed": killed[name],
            "survived": tried[name] - killed[name],
            "score": share(killed[name], tried[name]),
        }
        for name in sorted(tried)
    }


def report(
    argv: argparse.Namespace,
    folder: Path,
    verdicts: list[tuple[Any, Verdict]],
    total: int,
    took_s: float,
) -> None:
    """Print the score and write the record."""
    known, survivors = reasons(), []
    for mutant, verdict in verdicts:
        if not verdict.survived:
            continue
        path = folder / Path(*PART.split(".")) / mutant.file
        line = path.read_text().split("\n")[mutant.line - 1]
        reason = known.get((mutant.file, line.strip(), mutant.change), "not yet killed")
        survivors.append(
            {
                "where": f"controllers/safety/{mutant.file}:{mutant.line}",
                "function": mutant.owner,
                "line": line.strip(),
                "family": mutant.family,
                "change": mutant.change,
                "reason": reason if verdict.by == "" else f"{reason} ({verdict.by})",
            }
        )
    files = tally(verdicts, lambda mutant: mutant.file)
    limits = [
        (mutant, verdict)
        for mutant, verdict in verdicts
        if mutant.file == "limits.py" and mutant.family in FAMILIES_OF_LIMITS
    ]
    killed = sum(not verdict.survived for _, verdict in verdicts)
    equivalent = sum(one["reason"].startswith("equivalent") for one in survivors)
    record = {
        "command": " ".join(["python", "tests/mutation/run.py", *sys.argv[3:]]),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "pytest", "coverage", "daqp")},
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "took_s": round(took_s, 1),
        "tests": SUITE,
        "mutants_in_all": total,
        "mutants_tried": len(verdicts),
        "sample_seed": argv.seed if len(verdicts) < total and argv.sample else None,
        "killed": killed,
        "score": share(killed, len(verdicts)),
        "score_without_equivalent": share(killed, len(verdicts) - equivalent),
        "limits_comparison_and_boundary": tally(limits, lambda mutant: mutant.family),
        "files": files,
        "families": tally(verdicts, lambda mutant: mutant.family),
        "survivors": survivors,
    }
    for name, row in files.items():
        print(f"{name:16} {row['killed']:5} killed {row['survived']:4} survived {row['score']:7}%")
    print(
        f"{killed} of {len(verdicts)} killed ({record['score']} %, {total} in all), "
        f"{equivalent} of {len(survivors)} survivors equivalent, {took_s:.0f} s"
    )
    out = Path(argv.out)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {out}")


def git(*words: str) -> str:
    """A word of git's, or nothing."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def arguments(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Mutation testing of controllers/safety")
    parser.add_argument("--files", nargs="*", default=[], help="only these, such as limits.py")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget-min", type=float, default=0.0, help="stop after so many minutes")
    parser.add_argument("--out", default="", help="results.json here for a full run")
    argv = parser.parse_args(words)
    if not argv.out:
        whole = not (argv.files or argv.sample or argv.budget_min)
        argv.out = str(HERE / "results.json" if whole else ROOT / "out" / "mutation.json")
    Path(argv.out).parent.mkdir(parents=True, exist_ok=True)
    return argv


def main() -> int:
    """Make the copy and go there, or be there already."""
    if sys.argv[1:2] == ["--in-copy"]:
        import pytest

        folder = Path(sys.argv[2])
        os.chdir(folder)
        runner = Runner(arguments(sys.argv[3:]), folder)
        chosen = ["-m", "not slow", "-k", "compiled or not source", SUITE]
        code = pytest.main([*chosen, "-p", "no:cov"], plugins=[runner])
        return int(code) or int(runner.failed)
    arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        make_copy(folder)
        command = [sys.executable, str(HERE / "run.py"), "--in-copy", name, *sys.argv[1:]]
        return subprocess.run(command, env=environment(folder), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
