"""Killed at any moment: what was told to be on disk is there, in order, and the chain verifies.

A kill leaves the page cache alive, so this does not stand for a power cut; that a commit is synced
before it is told is checked by failing the sync itself (`test_journal_disk.py`).
"""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyhand.runtime.chain import Head, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.records import fresh_recorder, record_ticks


@dataclass
class Killed:
    """What a killed process had told."""

    handed: dict[int, float]
    """Monotonic time by number of the tick."""
    synced: Head | None
    died_s: float


def run_and_kill(directory: Path, after_s: float, segment_bytes: int) -> Killed:
    command = [sys.executable, "-m", "tests.support.journal_child", str(directory)]
    child = subprocess.Popen(
        [*command, "0.001", str(segment_bytes)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdout is not None
    lines = [child.stdout.readline()]  # it lives; the clock of the kill starts here
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    died_s = time.monotonic()
    lines += child.stdout.readlines()
    child.wait()
    handed: dict[int, float] = {}
    synced = None
    for words in (line.split() for line in lines if line.endswith("\n")):
        if words[0] == "handed":
            handed[int(words[1])] = float(words[2])
        else:
            synced = Head(int(words[1]), int(words[2]), bytes.fromhex(words[3]))
    return Killed(handed, synced, died_s)


def check(directory: Path, killed: Killed) -> float:
    """Check the invariants; returns how many seconds of ticks were lost."""
    result = verify(directory, expected=killed.synced)
    assert result.ok, result.problems
    reader = JournalReader(directory)
    ticks = [tick.sequence for tick in reader.ticks()]
    assert ticks == list(range(len(ticks))), "a hole or a double"
    last = ticks[-1] if ticks else -1
    assert last <= max(killed.handed) + 1
    lost = [time_s for number, time_s in killed.handed.items() if number > last]
    return max(lost) - min(lost) if lost else 0.0


def campaign(directory: Path, kills: int, seed: int) -> list[float]:
    """Kill again and again on the same journal, with rotation under way."""
    rng = random.Random(seed)
    losses = []
    for number in range(kills):
        killed = run_and_kill(directory, rng.uniform(0.0, 0.3), rng.choice([20_000, 10**9]))
        losses.append(check(directory, killed))
        if number % 5 == 4:  # the service comes up after it, and goes on in the same chain
            before = len(list(JournalReader(directory).ticks()))
            recorder = fresh_recorder()
            with Journal(directory, recorder, Limits(commit_every_s=0.002)):
                record_ticks(recorder, 3)
            after = [tick.sequence for tick in JournalReader(directory).ticks()]
            assert after == list(range(before + 3))
    return losses


def test_twenty_kills(tmp_path):
    losses = campaign(tmp_path, 20, seed=1)
    # The writer commits 20 times a second; a machine busy with other things may delay it.
    assert sorted(losses)[len(losses) // 2] < 0.5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_kills(tmp_path):
    losses = []
    for seed in range(10):
        losses += campaign(tmp_path / str(seed), 20, seed=100 + seed)
    losses.sort()
    print(f"ticks lost per kill, seconds: median {losses[100]:.3f}, max {losses[-1]:.3f}")
    assert len(losses) == 200


def test_killed_while_it_starts(tmp_path):
    """Kill in the first milliseconds: the journal is there or not, never half."""
    for delay_ms in range(0, 600, 60):
        command = [sys.executable, "-m", "tests.support.journal_child", str(tmp_path)]
        child = subprocess.Popen([*command, "0.001", "1000000"], stdout=subprocess.DEVNULL)
        time.sleep(delay_ms / 1000)
        child.kill()
        child.wait()
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, Limits(commit_every_s=0.002)):
        record_ticks(recorder, 3)
    result = verify(tmp_path)
    assert result.ok, result.problems
    assert result.ticks >= 3


def test_lock_is_free_after_a_kill_though_its_file_remains(tmp_path):
    run_and_kill(tmp_path, 0.05, 10**9)
    number = int((tmp_path / "lock").read_text())
    assert number != os.getpid()
    with Journal(tmp_path, fresh_recorder(), Limits()):
        assert int((tmp_path / "lock").read_text()) == os.getpid()
