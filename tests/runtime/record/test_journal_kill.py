"""Killed at any moment: what was told to be on disk is there, in order, and the chain verifies.

A kill leaves the page cache alive, so this does not stand for a power cut: `test_journal_power.py`
does.
"""

import json
import multiprocessing
import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from steadyhand.runtime.chain import Head, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support import journal_child
from tests.support.records import fresh_recorder, record_ticks

RESULTS = Path(__file__).parents[2] / "loop" / "results" / "journal_kills.json"
COMMAND = "python -m pytest -m slow tests/runtime/record/test_journal_kill.py"
KILLS = 2000
RESTART_S = 2.0
NEVER = 10**9
BEFORE_START_S = 0.02
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.journal_child"])


@dataclass
class Killed:
    """What a killed process had told."""

    handed: dict[int, float] = field(default_factory=dict)
    """Monotonic time by number of the tick."""
    synced: Head | None = None
    started_s: float | None = None
    """How long its start took; None when it died before."""


def run_and_kill(directory: Path, after_s: float, segment_bytes: int, keep: float) -> Killed:
    """Kill a recording process so long after it began to start."""
    read, write = PROCESSES.Pipe(duplex=False)
    child = PROCESSES.Process(
        target=begin, args=(directory, segment_bytes, keep, write), daemon=True
    )
    child.start()
    write.close()
    chunks = [os.read(read.fileno(), 65_536)]  # it lives; the clock of the kill starts here
    end = time.monotonic() + after_s
    while (left := end - time.monotonic()) > 0:
        if read.poll(left):
            chunks.append(os.read(read.fileno(), 65_536))
    child.kill()
    while chunk := os.read(read.fileno(), 65_536):
        chunks.append(chunk)
    child.join()
    assert child.exitcode == -9, b"".join(chunks)[-500:]
    read.close()
    killed = Killed()
    for line in b"".join(chunks).decode().splitlines(keepends=True):
        words = line.split()
        if not line.endswith("\n"):
            continue
        if words[0] == "handed":
            killed.handed[int(words[1])] = float(words[2])
        elif words[0] == "started":
            killed.started_s = float(words[1])
        elif words[0] == "synced":
            killed.synced = Head(int(words[1]), int(words[2]), bytes.fromhex(words[3]))
    return killed


def begin(directory, segment_bytes, keep, write):
    journal_child.run(directory, 0.001, segment_bytes, keep, write.fileno())


def ticks_of(directory: Path) -> list[int]:
    if not list(directory.glob("*.sqlite")):  # killed before there was a journal
        return []
    return [tick.sequence for tick in JournalReader(directory).ticks()]


def check(directory: Path, killed: Killed) -> float:
    """Check the invariants; returns how many seconds of ticks were lost."""
    if not list(directory.glob("*.sqlite")):  # killed before there was a journal
        assert killed.synced is None
        return 0.0
    result = verify(directory, expected=killed.synced)
    assert result.ok, result.problems
    ticks = ticks_of(directory)
    first = ticks[0] if ticks else 0
    assert ticks == list(range(first, first + len(ticks))), "a hole or a double"
    last = ticks[-1] if ticks else -1
    if killed.handed:
        assert last <= max(killed.handed) + 1
    lost = [time_s for number, time_s in killed.handed.items() if number > last]
    return max(lost) - min(lost) if lost else 0.0


@dataclass
class Campaign:
    """What came of the kills."""

    lost_s: list[float] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    before_start: int = 0
    records: int = 0


def campaign(directory: Path, kills: int, seed: int, found: Campaign) -> None:
    """Kill again and again on the same journal, with rotation and purging under way."""
    rng = random.Random(seed)
    for number in range(kills):
        after_s = rng.uniform(0.0, BEFORE_START_S if number % 4 == 0 else 0.3)
        sizes = rng.choice([(12_000, 120_000.0), (20_000, float("inf")), (NEVER, float("inf"))])
        killed = run_and_kill(directory, after_s, *sizes)
        try:
            found.lost_s.append(check(directory, killed))
        except BaseException as error:
            error.add_note(f"kill {number}, seed {seed}, {after_s} s, {sizes}: {killed.synced}")
            raise
        if killed.started_s is None:
            found.before_start += 1
        else:
            found.started_s.append(killed.started_s)
        if number % 5 == 4:  # the service comes up after it, and goes on in the same chain
            before = ticks_of(directory)
            recorder = fresh_recorder()
            with Journal(directory, recorder, Limits(commit_every_s=0.002)):
                record_ticks(recorder, 3)
            last = before[-1] if before else -1
            assert ticks_of(directory) == [*before, last + 1, last + 2, last + 3]
    found.records += verify(directory).records
    assert max(found.started_s) < RESTART_S


def test_twenty_kills(tmp_path):
    found = Campaign()
    campaign(tmp_path, 20, 1, found)
    # The writer commits 30 times a second; a machine busy with other things may delay it.
    assert sorted(found.lost_s)[10] < 0.5
    assert found.started_s


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_thousand_kills(tmp_path):
    found = Campaign()
    for seed in range(KILLS // 20):
        campaign(tmp_path / "j", 20, 100 + seed, found)
        shutil.rmtree(tmp_path / "j")
        write_down(found)
    assert len(found.lost_s) == KILLS


def write_down(found: Campaign) -> None:
    lost, started = sorted(found.lost_s), sorted(found.started_s)
    result = {
        "command": COMMAND,
        "what": "kill -9 of a process that writes a journal, rotates and purges, at seeded random "
        "moments of its start and its work; read, and started again on the same journal",
        "planned": KILLS,
        "kills": len(lost),
        "killed_before_the_start_was_over": found.before_start,
        "records_read_back": found.records,
        "acknowledged_records_lost": 0,
        "broken_chains": 0,
        "ticks_lost_s": {"p50": round(lost[len(lost) // 2], 4), "worst": round(lost[-1], 4)},
        "start_s": {"p50": round(started[len(started) // 2], 4), "worst": round(started[-1], 4)},
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def test_lock_is_free_after_a_kill_though_its_file_remains(tmp_path):
    killed = run_and_kill(tmp_path, 0.2, NEVER, float("inf"))
    assert killed.handed
    number = int((tmp_path / "lock").read_text())
    assert number != os.getpid()
    with Journal(tmp_path, fresh_recorder(), Limits()):
        assert int((tmp_path / "lock").read_text()) == os.getpid()
