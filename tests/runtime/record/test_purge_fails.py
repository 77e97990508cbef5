"""A purge that fails is told; recording goes on without a restart, and it is done later."""

import time
from pathlib import Path

from steadyhand.runtime.chain import verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.records import fresh_recorder, record_ticks, segment_files

LIMITS = Limits(commit_every_s=0.002, retry_s=0.01, segment_bytes=20_000, keep_bytes=100_000)


def record(recorder, journal, until) -> int:
    """Ticks, until it is so; how many they were."""
    end_s, count = time.monotonic() + 60.0, 0
    while not until():
        assert time.monotonic() < end_s, "never happened"
        before = journal.status.ticks
        record_ticks(recorder, 50)
        count += 50
        while journal.status.ticks < before + 50:
            assert time.monotonic() < end_s, "recording stopped"
            time.sleep(0.002)
    return count


def test_recording_outlives_a_purge_that_fails(tmp_path, monkeypatch):
    genuine, refused = Path.unlink, []

    def denied(self, missing_ok=False):
        if self.suffix == ".sqlite":
            refused.append(self.name)
            raise PermissionError(13, "Permission denied", str(self))
        genuine(self, missing_ok=missing_ok)

    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, LIMITS) as journal:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", denied)
            count = record(recorder, journal, lambda: len(refused) >= 3)
        assert segment_files(tmp_path)[0].name == "00000001.sqlite", "nothing could be deleted"
        oldest = refused[0]
        count += record(recorder, journal, lambda: not (tmp_path / oldest).exists())
    assert (journal.status.ticks, journal.status.lost_ticks) == (count, 0)
    result = verify(tmp_path, expected=journal.status.head)
    assert result.ok, result.problems
    with JournalReader(tmp_path) as reader:
        told = [event for event in reader.events() if event.event == "PurgeFailed"]
    assert told
    assert "Permission denied" in told[0].data["text"]
    assert sum(file.stat().st_size for file in segment_files(tmp_path)) < 2 * LIMITS.keep_bytes
