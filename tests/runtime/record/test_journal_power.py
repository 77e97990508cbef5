"""Power cuts: whatever the disk had not been told to keep is gone, torn or out of order.

Two lives of a real journal are traced, the first ended by `kill -9`, the second by its owner, with
rotation and purging under way. The trace is cut at seeded random steps, in the middle of a write of
which 1, 2, 3 ... 512 bytes got through, and what may then lie on the disk is given to the reader
and to the next start.
"""

import json
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime.chain import Head, segment_paths, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.disk_model import SECTOR, Act, Disk, NoTracing, Step, record
from tests.support.records import fresh_recorder, record_ticks

RESULTS = Path(__file__).parents[2] / "loop" / "results" / "power_cuts.json"
COMMAND = "python -m pytest -m slow tests/runtime/record/test_journal_power.py"
RESTART_S = 2.0


@dataclass(frozen=True)
class Story:
    """What a journal did, and what it was in the end."""

    folder: Path
    steps: list[Step]
    hashes: dict[tuple[int, int], bytes]
    """By segment and number of the record; purged ones are missing."""


def lives(home: Path, *each: tuple[str, ...]) -> Story:
    """Trace one journal through its lives."""
    folder = home / "journal"
    steps = []
    for number, words in enumerate(each):
        command = [sys.executable, "-m", "tests.support.journal_traced", str(folder), *words]
        try:
            steps += record(command, folder, home / f"{number}.trace")
        except NoTracing as error:
            pytest.skip(str(error))
    with JournalReader(folder) as reader:
        hashes = {(e.segment, e.n): e.hash for _, e in reader.entries()}
    return Story(folder, steps, hashes)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    made = lives(tmp_path_factory.mktemp("traced"), ("90", "kill"), ("90", "close"))
    acts = [step.act for step in made.steps]
    assert acts.count(Act.REMOVE) > 5
    assert acts.count(Act.RENAME) > 5
    assert [step for step in made.steps if step.act is Act.TOLD][-1].data.startswith(b"synced")
    return made


def told(steps: list[Step]) -> tuple[Head | None, int]:
    """The head that was told to be safe, and the last tick that was handed over."""
    safe, handed = None, -1
    for words in (step.data.decode().split() for step in steps if step.act is Act.TOLD):
        if words[0] == "handed":
            handed = int(words[1])
        else:
            safe = Head(int(words[1]), int(words[2]), bytes.fromhex(words[3]))
    return safe, handed


def lay_out(directory: Path, contents: dict[str, bytes]) -> None:
    directory.mkdir(mode=0o700)
    for path, content in contents.items():
        (directory / Path(path).name).write_bytes(content)


def ticks_of(directory: Path) -> list[int]:
    try:
        return [tick.sequence for tick in JournalReader(directory).ticks()]
    except JournalError:
        assert not list(directory.glob("*.sqlite")), "there is a segment that nobody can read"
        return []


def cut(story: Story, rng: random.Random, tear: int, directory: Path) -> tuple[float, int]:
    """One power cut; returns how long the next start took and how many ticks were lost."""
    disk = Disk(story.folder)
    at = rng.choice(
        [i for i, s in enumerate(story.steps) if s.act is Act.WRITE and len(s.data) > tear]
        if rng.random() < 0.75
        else range(len(story.steps))
    )
    for step in story.steps[:at]:
        disk.do(step)
    now = story.steps[at]
    during = now if now.act is Act.WRITE else None
    safe, handed = told(story.steps[:at])
    lay_out(directory, disk.cut(rng, during, tear))

    before = ticks_of(directory)
    first = before[0] if before else 0
    assert before == list(range(first, first + len(before))), "a hole, a double or out of order"
    last = before[-1] if before else -1
    assert last <= handed + 1
    if safe is not None:
        found = verify(directory, expected=safe)
        assert found.ok, found.problems
        assert found.head is not None
        same = story.hashes.get((found.head.segment, found.head.records - 1), found.head.hash)
        assert same == found.head.hash, "not the record that was written"

    recorder = fresh_recorder()
    begun = time.monotonic()
    journal = Journal(directory, recorder, Limits(commit_every_s=0.001)).start()
    took = time.monotonic() - begun
    record_ticks(recorder, 3)
    journal.close()
    after = ticks_of(directory)
    assert after == [*before, last + 1, last + 2, last + 3]
    found = verify(directory, expected=safe)
    assert found.ok, found.problems
    assert found.notes == () or all("purged" in note for note in found.notes)
    names = {path.name for path in directory.iterdir()}
    segments = {path.name for _, path in segment_paths(directory)}
    assert names == segments | {"lock"}, "something is left behind"
    return took, handed - last


def campaign(story: Story, tears: list[int], seed: int, home: Path) -> list[tuple[float, int]]:
    results = []
    for number, tear in enumerate(tears):
        directory = home / "cut"
        rng = random.Random(seed * 1_000_003 + number)
        try:
            results.append(cut(story, rng, tear, directory))
        except BaseException as error:
            error.add_note(f"cut {number}, {tear} bytes of the last write, seed {seed}")
            raise
        shutil.rmtree(directory)
    assert max(took for took, _ in results) < RESTART_S
    return results


def test_twenty_five_power_cuts(story, tmp_path):
    tears = [1, SECTOR, *random.Random(3).sample(range(2, SECTOR), 23)]
    campaign(story, tears, 1, tmp_path)


def test_a_journal_that_does_not_sync_is_found_out(tmp_path):
    """What is promised above is seen to be broken where it is."""
    careless = lives(tmp_path, ("30", "kill", "careless"))
    with pytest.raises(AssertionError):
        campaign(careless, [100] * 25, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_power_cut_for_every_torn_length(story, tmp_path):
    """The last write torn after 1, 2, 3 ... 512 bytes."""
    results = campaign(story, list(range(1, SECTOR + 1)), 2, tmp_path)
    starts = sorted(took for took, _ in results)
    result = {
        "command": COMMAND,
        "what": "a traced journal cut at seeded random steps, un-synced writes lost or torn, then "
        "read and started again",
        "cuts": len(results),
        "torn_after_bytes": [1, SECTOR],
        "steps_traced": len(story.steps),
        "acknowledged_records_lost": 0,
        "broken_chains": 0,
        "unacknowledged_ticks_lost": {
            "p50": sorted(lost for _, lost in results)[len(results) // 2],
            "worst": max(lost for _, lost in results),
        },
        "next_start_s": {
            "p50": round(starts[len(starts) // 2], 4),
            "worst": round(starts[-1], 4),
        },
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def test_the_model_forgets_what_is_not_synced(tmp_path):
    """Hand-worked, so that the cuts above can fail: an unsynced write, name and removal."""
    root = tmp_path / "root"

    def path(name: str) -> str:
        return str(root / name)

    disk = Disk(root)
    for step in (
        Step(Act.FOLDER, str(root)),
        Step(Act.SYNC, str(tmp_path)),
        Step(Act.MAKE, path("a")),
        Step(Act.WRITE, path("a"), data=b"kept", at=0),
        Step(Act.SYNC, path("a")),
    ):
        disk.do(step)
    fates = {frozenset(disk.cut(random.Random(seed), None, 1).items()) for seed in range(50)}
    assert fates == {frozenset(), frozenset({(path("a"), b"kept")})}, "its name is not safe yet"
    for step in (
        Step(Act.SYNC, str(root)),
        Step(Act.WRITE, path("a"), data=b"+one", at=4),
        Step(Act.WRITE, path("a"), data=b"+two", at=8),
    ):
        disk.do(step)
    found = {disk.cut(random.Random(seed), None, 1)[path("a")] for seed in range(200)}
    assert found == {b"kept", b"kept+one", b"kept+one+two", b"kept\0\0\0\0+two"}
    torn = Step(Act.WRITE, path("a"), data=b"abcd", at=0)
    assert b"abpt" in {disk.cut(random.Random(s), torn, 2)[path("a")] for s in range(50)}
    disk.do(Step(Act.RENAME, path("a"), other=path("b")))
    assert {tuple(disk.cut(random.Random(seed), None, 1)) for seed in range(50)} == {
        (path("a"),), (path("b"),),
    }  # fmt: skip
    disk.do(Step(Act.SYNC, str(root)))
    assert list(disk.cut(random.Random(0), None, 1)) == [path("b")]
