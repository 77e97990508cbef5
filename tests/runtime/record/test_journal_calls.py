"""The kernel fails the n-th system call on the journal's files, for n = 1, 2, 3 ... until none is
left to fail: once, and for ever from there on. The journal goes on or says why not; control does.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from steadyhand.runtime.chain import Head, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.journal_sick import TICKS
from tests.support.records import fresh_recorder, record_ticks

RESULTS = Path(__file__).parents[2] / "loop" / "results" / "failed_calls.json"
COMMAND = "python -m pytest -m slow tests/runtime/record/test_journal_calls.py"
CALLS = ("openat", "pwrite64", "ftruncate", "fdatasync", "fsync", "rename", "unlink")
DECLARED = {"AUDIT_FULL", "AUDIT_RO", "AUDIT_EIO", "AUDIT_TRUNC", "AUDIT_BUSY", "AUDIT_LAG"}
SEGMENTS = 16
DELAY_S = 1.0
MOST = 1000


@dataclass
class Told:
    """What the process said, and how many calls were tampered with."""

    said: dict[str, Any]
    injected: int


def sick(directory: Path, call: str, inject: str, patience_s: float = 20.0) -> Told:
    """Run a journal whose calls on its own files are tampered with."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    files = [directory, directory / "lock"]
    for index in range(1, SEGMENTS):
        for name in (f"{index:08d}.sqlite", f"{index:08d}.sqlite.new"):
            files += [directory / (name + end) for end in ("", "-wal", "-shm", "-journal")]
    out = directory.parent / f"{directory.name}.trace"
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(out),
         *(word for file in files for word in ("-P", str(file))),
         "-e", f"trace={call}", "-e", f"inject={call}:{inject}",
         sys.executable, "-m", "tests.support.journal_sick", str(directory), str(patience_s)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("may not trace processes")
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr.replace("strace: Requested path", "").count("Traceback"), done.stderr
    return Told(json.loads(done.stdout.splitlines()[-1]), out.read_text().count("(INJECTED)"))


def check(directory: Path, told: Told, for_ever: bool) -> str:
    """The invariants; returns what became of it in one word."""
    said = told.said
    if "refused" in said:
        assert "check space, owner and mode" in said["refused"]
        outcome = "refused"
    elif said["head"][0] == 0:  # nothing could be written from the start on: told, and run without
        assert for_ever, said
        assert said["cause"] in DECLARED, said
        assert (said["ticks"], said["lost"]) == (0, 0)
        outcome = "degraded"
    else:
        segment, records, digest = said["head"]
        found = verify(directory, expected=Head(segment, records, bytes.fromhex(digest)))
        assert found.ok, found.problems
        ticks = [tick.sequence for tick in JournalReader(directory).ticks()]
        assert ticks == list(range(ticks[0] if ticks else 0, TICKS))[: len(ticks)]
        assert set(said["causes"]) <= DECLARED
        outcome = "degraded" if said["causes"] else "unharmed"
        if said["ticks"] < TICKS:
            assert for_ever, said
            assert said["cause"], "records are missing and nothing is said"
        else:
            assert ticks[-1] == TICKS - 1
        assert said["lost"] == 0
    recorder = fresh_recorder()
    with Journal(directory, recorder, Limits(commit_every_s=0.001)):  # the disk is well again
        record_ticks(recorder, 2)
    found = verify(directory)
    assert found.ok, found.problems
    return outcome


@pytest.mark.parametrize(
    ("call", "n"),
    [("openat", 9), ("pwrite64", 30), ("fdatasync", 9), ("fsync", 2), ("rename", 2), ("unlink", 4)],
)
@pytest.mark.parametrize("for_ever", [False, True])
def test_a_call_fails(tmp_path, call, n, for_ever):
    directory = tmp_path / "j"
    told = sick(directory, call, f"error=EIO:when={n}{'+' * for_ever}", 0.3 if for_ever else 20.0)
    assert told.injected > 0
    check(directory, told, for_ever)


@pytest.mark.parametrize("call", ["openat", "pwrite64", "fdatasync", "fsync", "rename", "unlink"])
def test_control_never_waits_for_a_call(tmp_path, call):
    """Each call takes a second from the third on, twice: no tick takes half as long."""
    told = sick(tmp_path / "j", call, f"delay_enter={int(DELAY_S * 1e6)}:when=3..4")
    assert told.said["ticks"] == TICKS
    assert told.said["worst_s"] < 0.5 * DELAY_S, told.said
    check(tmp_path / "j", told, for_ever=False)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_fails_in_turn(tmp_path, call, for_ever):
    outcomes: dict[str, int] = {}
    n = 0
    for n in range(1, MOST):
        directory = tmp_path / "j"
        when = f"{n}+" if for_ever else str(n)
        told = sick(directory, call, f"error=EIO:when={when}", 0.3 if for_ever else 20.0)
        if not told.injected:
            break
        try:
            outcome = check(directory, told, for_ever)
        except BaseException as error:
            error.add_note(f"{call} number {n}: {told.said}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(directory)
    assert n < MOST - 1
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sweeps": {}}
    sweeps = known["sweeps"] | {f"{call} {'for ever' if for_ever else 'once'}": outcomes}
    text = "EIO from the n-th call on the journal's files, n = 1, 2 ... until a run needs fewer"
    result = {"command": COMMAND, "what": text, "sweeps": dict(sorted(sweeps.items()))}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
