"""A wall clock that is set while the journal is written: the order is that of the numbers, both
times are kept, and nothing of the chain depends on either.
"""

import time
from itertools import pairwise

import pytest

from steadyhand.runtime.chain import verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.records import fresh_recorder, record_ticks

YEAR_NS = 31_557_600_000_000_000
QUICK = Limits(commit_every_s=0.005, retry_s=0.01)
TICKS = 40


@pytest.fixture
def wall(monkeypatch):
    """A clock on the wall with an offset in ns that a test may set."""
    offset_ns = [0]
    genuine_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: genuine_ns() + offset_ns[0])
    monkeypatch.setattr(time, "time", lambda: 1e-9 * (genuine_ns() + offset_ns[0]))
    return offset_ns


@pytest.mark.parametrize("step_ns", [-YEAR_NS, -3_600_000_000_000, -1_000_000_000, YEAR_NS])
def test_the_order_is_that_of_the_numbers_and_both_times_are_kept(tmp_path, wall, step_ns):
    recorder = fresh_recorder()
    with Journal(tmp_path / "journal", recorder, QUICK):
        record_ticks(recorder, TICKS)
        recorder.event({"event": "Before"})
        wall[0] = step_ns
        recorder.event({"event": "After"})
        record_ticks(recorder, TICKS)
    with JournalReader(tmp_path / "journal") as journal:
        ticks, events = list(journal.ticks()), list(journal.events())
    numbers = [tick.sequence for tick in ticks]
    assert numbers == list(range(numbers[0], numbers[0] + 2 * TICKS))
    assert all(one.monotonic_ns <= two.monotonic_ns for one, two in pairwise(ticks))
    steps = [
        (two.wall_ns - one.wall_ns) - (two.monotonic_ns - one.monotonic_ns)
        for one, two in pairwise(ticks)
    ]
    assert max(range(len(steps)), key=lambda i: abs(steps[i])) == TICKS - 1
    assert steps[TICKS - 1] == pytest.approx(step_ns, abs=0.2e9)
    names = [event.event for event in events]
    assert names.index("Before") < names.index("After")
    assert verify(tmp_path / "journal").ok


@pytest.mark.parametrize("step_ns", [-YEAR_NS, YEAR_NS])
def test_a_restart_a_year_away_goes_on_with_the_next_number(tmp_path, wall, step_ns):
    folder = tmp_path / "journal"
    for offset_ns in (0, step_ns):
        wall[0] = offset_ns
        recorder = fresh_recorder()
        with Journal(folder, recorder, QUICK):
            record_ticks(recorder, TICKS)
    with JournalReader(folder) as journal:
        ticks = list(journal.ticks())
        runs = journal.runs
    numbers = [tick.sequence for tick in ticks]
    assert numbers == list(range(numbers[0], numbers[0] + 2 * TICKS))
    assert len(runs) == 2
    assert (ticks[-1].wall_ns - ticks[0].wall_ns) * step_ns > 0
    assert verify(folder).ok
