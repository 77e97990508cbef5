"""The journal: nothing lost, nothing written twice, one writer, readable while it is written."""

import io
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import chain
from steadyhand.runtime.chain import Head, Kind, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.purge import own_event
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.record import TickRecord
from steadyhand.runtime.segment import Segment
from tests.support.records import (
    LAYOUT,
    fresh_recorder,
    record_ticks,
    segment_files,
    tick_arguments,
)

QUICK = Limits(commit_every_s=0.005, retry_s=0.01)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)


def write(directory: Path, count: int, limits: Limits = QUICK, **more: Any) -> Journal:
    recorder = fresh_recorder()
    with Journal(directory, recorder, limits, **more) as journal:
        for _ in range(count):
            record_ticks(recorder, 1)
            if recorder.sequence % 50 == 0:
                target = journal.status.ticks
                eventually(lambda target=target: journal.status.ticks > target)
    return journal


def test_ticks_and_events_come_back_in_order(tmp_path):
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, QUICK):
        record_ticks(recorder, 5)
        recorder.event({"event": "Command", "method": "acknowledge", "weight": float("nan")})
        record_ticks(recorder, 5)
    reader = JournalReader(tmp_path / "j")
    kinds = [
        item.sequence if isinstance(item, TickRecord) else item.event for _, item in reader.items()
    ]
    assert kinds == [0, 1, 2, 3, 4, "Command", 5, 6, 7, 8, 9, "JournalClosed"]
    command = next(iter(reader.events()))
    assert command.tick == 5
    assert command.data == {"method": "acknowledge", "weight": None}
    assert verify(tmp_path / "j").ok


def test_a_restart_goes_on_with_chain_and_numbers(tmp_path):
    for run in range(3):
        write(tmp_path, 10)
        assert verify(tmp_path).ok, run
    reader = JournalReader(tmp_path)
    assert [tick.sequence for tick in reader.ticks()] == list(range(30))
    assert len(reader.runs) == 3
    assert [tick.sequence for tick in reader.ticks(run=reader.runs[1])] == list(range(10, 20))
    assert [segment.header["text"] for segment in reader.segments] == [
        "first segment",
        "clean restart",
        "clean restart",
    ]
    assert reader.segments[1].header["previous"] == {
        "segment": 1,
        "records": 12,
        "hash": chain_end(segment_files(tmp_path)[0]),
    }


def chain_end(file: Path) -> str:
    connection = sqlite3.connect(file)
    row = connection.execute("SELECT hash FROM record ORDER BY n DESC LIMIT 1").fetchone()
    connection.close()
    return row[0].hex()


def test_hash_is_the_documented_one(tmp_path):
    """Worked with hashlib alone, as an auditor would."""
    import hashlib
    import struct

    write(tmp_path, 3)
    connection = sqlite3.connect(segment_files(tmp_path)[0])
    digest = bytes(32)
    for n, kind, body, stored in connection.execute("SELECT n, kind, body, hash FROM record"):
        digest = hashlib.sha256(digest + struct.pack("<IQB", 1, n, kind) + body).digest()
        assert digest == stored
    connection.close()
    assert n == 4


def test_rotation_loses_nothing(tmp_path):
    journal = write(tmp_path, 400, Limits(commit_every_s=0.002, segment_bytes=20_000))
    assert len(segment_files(tmp_path)) > 5
    assert [tick.sequence for tick in JournalReader(tmp_path).ticks()] == list(range(400))
    result = verify(tmp_path, expected=journal.status.head)
    assert (result.ok, result.ticks) == (True, 400)
    assert {file.name[8:] for file in tmp_path.iterdir()} >= {".sqlite"}
    assert not list(tmp_path.glob("*-wal")), "closed segments are one file each"


def test_rotation_by_age(tmp_path):
    recorder, clock = fresh_recorder(), [1000.0]
    limits = Limits(commit_every_s=0.002, segment_age_s=60.0)
    with Journal(tmp_path, recorder, limits, monotonic=lambda: clock[0]) as journal:
        for expected in (2, 3):
            clock[0] += 61.0
            record_ticks(recorder, 1)
            eventually(lambda expected=expected: journal.status.head.segment == expected)
    reasons = [segment.header["reason"] for segment in JournalReader(tmp_path).segments]
    assert reasons == ["start", "age", "age"]


def test_a_segment_that_cannot_be_made_is_no_loss(tmp_path):
    """Rotation fails: recording goes on in the old segment, and the failure is recorded."""
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.002, segment_bytes=10_000)
    with Journal(tmp_path, recorder, limits) as journal:
        (tmp_path / "00000002.sqlite").mkdir()
        record_ticks(recorder, 200)
        eventually(lambda: journal.status.ticks == 200)
        eventually(lambda: recorder.events.head > 0)  # it has told so
        assert journal.status.head.segment == 1
        (tmp_path / "00000002.sqlite").rmdir()
    events = [event.event for event in JournalReader(tmp_path).events()]
    assert "RotateFailed" in events
    assert verify(tmp_path).ok


def test_old_segments_are_purged_and_the_purge_is_recorded(tmp_path):
    limits = Limits(commit_every_s=0.002, segment_bytes=20_000, keep_bytes=150_000)
    journal = write(tmp_path, 800, limits)
    files = segment_files(tmp_path)
    assert files[0].name != "00000001.sqlite"
    result = verify(tmp_path, expected=journal.status.head)
    assert result.ok, result.problems
    assert any("purged" in note for note in result.notes)
    files[0].unlink()  # one more, without a record of it
    result = verify(tmp_path)
    assert not result.ok
    assert "missing and no purge is recorded" in result.problems[0].text


def test_a_purge_that_was_cut_short_is_no_damage(tmp_path):
    """Its record names three segments, the power went after the first was removed."""
    write(tmp_path, 300, Limits(commit_every_s=0.002, segment_bytes=20_000))
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK) as journal:
        with sqlite3.connect(segment_files(tmp_path)[2]) as third:
            digest = chain.last_rows(third, 0)[-1][3].hex()
        data = {"last_segment": 3, "last_hash": digest, "count": 3}
        assert journal._write([(Kind.EVENT, own_event("JournalPurge", data))])
    for left in (2, 1, 0):
        segment_files(tmp_path)[0].unlink()
        result = verify(tmp_path)
        assert result.ok, (left, result.problems)
        assert any("purged" in note for note in result.notes)
    segment_files(tmp_path)[0].unlink()  # the fourth was never named
    assert "no purge is recorded" in verify(tmp_path).problems[0].text


def test_a_segment_left_open_by_a_cut_is_sealed_by_the_next_start(tmp_path):
    """Killed between the new segment and the sealing of the old one: its records are in a WAL."""
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK) as journal:
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 5)
        old = journal._segment
        assert old is not None
        journal._open(2, old.carried(), "size", "")
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 10)
        shutil.copytree(tmp_path, tmp_path / "cut", ignore=lambda *_: ["cut"])
    cut = tmp_path / "cut"
    assert (cut / "00000001.sqlite-wal").stat().st_size > 0
    with Journal(cut, fresh_recorder(), QUICK):
        assert not list(cut.glob("00000001.sqlite-*"))
    assert verify(cut).ok
    assert [tick.sequence for tick in JournalReader(cut).ticks()] == list(range(10))


def test_a_segment_given_up_as_it_was_made_does_not_break_the_chain(tmp_path):
    """Its name came back with a power cut, after the one before it had been written on."""
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK) as journal:
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 5)
        assert journal._segment is not None
        Segment(tmp_path, 2, journal._segment.carried(), journal._about).abandon()
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 10)
    assert not verify(tmp_path).ok
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK):
        record_ticks(recorder, 2)
    result = verify(tmp_path)
    assert result.ok, result.problems
    assert [tick.sequence for tick in JournalReader(tmp_path).ticks()] == list(range(12))


def test_second_writer_is_refused_and_the_first_unharmed(tmp_path):
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK):
        with pytest.raises(JournalError, match=f"process {os.getpid()}.*one writer only"):
            Journal(tmp_path, fresh_recorder()).start()
        code = (
            "import sys, pathlib; from tests.support.records import fresh_recorder\n"
            "from steadyhand.runtime.journal import Journal\n"
            "Journal(pathlib.Path(sys.argv[1]), fresh_recorder()).start()"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert other.returncode == 1
        assert "one writer only" in other.stderr
        record_ticks(recorder, 5)
    assert verify(tmp_path).ticks == 5
    with Journal(tmp_path, fresh_recorder(), QUICK):
        pass  # the lock is free again


def test_append_only_also_for_sql(tmp_path):
    write(tmp_path, 3)
    connection = sqlite3.connect(segment_files(tmp_path)[0])
    for statement in ("DELETE FROM record", "UPDATE record SET kind = 2"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_files_are_private_and_links_are_not_followed(tmp_path):
    write(tmp_path / "j", 3)
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700
    for file in (tmp_path / "j").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "00000001.sqlite").symlink_to(victim)
    (tmp_path / "k" / "lock").symlink_to(victim)
    with pytest.raises(JournalError):
        Journal(tmp_path / "k", fresh_recorder()).start()
    assert victim.read_text() == "precious"


def test_reading_while_writing(tmp_path):
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK) as journal:
        for round_ in range(1, 6):
            record_ticks(recorder, 20)
            eventually(lambda round_=round_: journal.status.ticks == 20 * round_)
            assert len(list(JournalReader(tmp_path).ticks())) == 20 * round_
            assert verify(tmp_path, expected=journal.status.head).ok
    assert journal.fault() is None


def test_lookup_by_number_agrees_with_a_scan(tmp_path):
    for _ in range(2):
        write(tmp_path, 120, Limits(commit_every_s=0.002, segment_bytes=30_000))
    reader = JournalReader(tmp_path)
    for sequence in range(240):
        assert reader.tick(sequence)[1].sequence == sequence
    assert reader.span() == (0, 239)
    with pytest.raises(JournalError, match="no tick 240 in the journal: it holds 0 to 239"):
        reader.tick(240)


def test_export_is_strict_json_with_names(tmp_path):
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK):
        record_ticks(recorder, 2)
        recorder.event({"event": "Note", "text": "line\nbreak \x1b[31m \u2028", "x": float("inf")})
    out = io.StringIO()
    count = JournalReader(tmp_path).export_json_lines(out)
    lines = out.getvalue().splitlines()
    assert len(lines) == count == 4
    assert out.getvalue().isascii()
    tick = chain.load_json(lines[1].encode())
    assert tick["observation"]["values"] == {
        "energy_kwh": 501.0,
        "load_kw": 250.0,
        "flow_kw": 100.0,
    }
    assert tick["certified"]["action"] == {"discharge_kw": 100.0}
    assert tick["certified"]["report"]["active"] == ["energy_low"]
    assert tick["certified"]["report"]["multiplier"] == {"energy_low": 0.3, "energy_high": 0.0}
    assert tick["verdict"]["scores"] == {"confidence": 0.2, "novelty": 0.4}
    assert tick["source"] == "POLICY"
    assert tick["timings"]["propose"] == 0.003
    note = json.loads(lines[2])
    assert note["data"] == {"text": "line\nbreak \x1b[31m \u2028", "x": "inf"}


def test_signed_checkpoints_cover_the_closed_journal(tmp_path):
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    journal = write(tmp_path, 30, Limits(commit_every_s=0.002, segment_bytes=10_000), signer=key)
    result = verify(tmp_path, [key.public_key()])
    assert result.ok, result.problems
    assert result.signed is not None
    assert result.signed.segment == journal.status.head.segment
    assert result.unsigned == 1, "that it was closed is told after the last signature"
    assert abs(time.time() - (result.signed_ns or 0) / 1e9) < 60.0
    refused = verify(tmp_path, [other.public_key()])
    assert "not signed by this key" in refused.problems[0].text
    unsigned = tmp_path / "unsigned"
    write(unsigned, 3)
    assert verify(tmp_path, [other.public_key(), key.public_key()]).ok, "one of them is enough"
    assert verify(unsigned).unsigned == verify(unsigned).records
    assert "no checkpoint" in verify(unsigned, [key.public_key()]).problems[0].text


def test_events_of_any_kind_never_stop_the_writer(tmp_path):
    class Odd:
        def __str__(self) -> str:
            return "odd" * 5000

    recorder = fresh_recorder()
    loop: dict[str, Any] = {"event": "Loop"}
    loop["self"] = loop
    with Journal(tmp_path, recorder, QUICK) as journal:
        for event in (
            Odd(), {"event": "E", "x": Odd(), 3: {1, 2}, "b": b"\x00\xff"}, loop, None, "\ud800",
            Fault(ReasonCode.ACK, value=float("nan")), {"event": "x" * 10_000},
        ):  # fmt: skip
            recorder.event(event)
        record_ticks(recorder, 1)
        eventually(lambda: journal.status.ticks == 1)
    result = verify(tmp_path)
    assert result.ok
    assert max(len(entry.body) for _, entry in JournalReader(tmp_path).entries()
               if entry.kind is Kind.EVENT) < 50_000  # fmt: skip


def test_a_ring_that_wraps_is_told(tmp_path):
    """Before the writer can look, more ticks than the ring holds: the oldest go, counted."""
    recorder = fresh_recorder(ticks=50)
    record_ticks(recorder, 200)
    with Journal(tmp_path, recorder, QUICK) as journal:
        eventually(lambda: journal.status.ticks == 50)
    assert journal.status.lost_ticks == 150
    reader = JournalReader(tmp_path)
    assert [tick.sequence for tick in reader.ticks()] == list(range(150, 200))
    lost = next(event for event in reader.events() if event.event == "JournalLost")
    assert (lost.data["ticks"], lost.data["events"]) == (150, 0)


def test_layout_travels_with_the_journal(tmp_path):
    write(tmp_path, 1)
    segment = JournalReader(tmp_path).segments[0]
    assert segment.layout.schema() == LAYOUT.schema()
    assert segment.header["pid"] == os.getpid()


def test_nowhere_to_write_is_a_refusal_to_start(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(JournalError, match="check space, owner and mode"):
        Journal(file / "j", fresh_recorder()).start()
    with pytest.raises(JournalError, match="no journal at"):
        JournalReader(tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_ticks_that_do_not_fit_degrade_the_record_until_the_end(tmp_path, count):
    """They are not on disk, so status, metrics and event must say that the record has holes."""
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, QUICK) as journal:
        record_ticks(recorder, 2)
        assert journal.fault() is None
        assert journal.report == journal.status
        for _ in range(count):
            recorder.tick(**tick_arguments(wanted=np.zeros(2)))
        record_ticks(recorder, 2)
        eventually(lambda: journal.status.ticks == 4)
        fault = journal.fault()
        assert fault is not None
        assert fault.code is ReasonCode.AUDIT_DEGRADED
        assert fault.value == count
        assert f"AUDIT_MISFIT: {count} ticks do not fit the record, first tick 2: " in fault.text
        assert "wanted" in fault.text
        assert (journal.report.cause, journal.report.lost_ticks) == ("AUDIT_MISFIT", count)
        page = Metrics(Identity("l", "p"), 900.0, journal=lambda: journal.report).render().decode()
        assert "steadyhand_journal_degraded 1\n" in page
        assert f"steadyhand_journal_lost_ticks_total {count}\n" in page
    events = [event.data for event in JournalReader(tmp_path / "j").events()]
    (told,) = [data for data in events if data.get("code") == "AUDIT_MISFIT"]
    assert told["tick"] == 2


def test_a_journal_without_ticks_says_so(tmp_path):
    with Journal(tmp_path / "j", fresh_recorder(), QUICK):
        pass
    with pytest.raises(JournalError, match="there is no tick in the journal yet"):
        JournalReader(tmp_path / "j").tick(0)


# -- a wall clock that runs back, and the head for others ------------------------------------------

YEAR_NS = 365 * 86_400 * 10**9


def test_a_restart_with_the_clock_back_one_year(tmp_path, monkeypatch):
    """The order is that of the numbers; both clocks stand in each record."""
    genuine = time.time_ns
    for run in (0, 1, 2):  # the second run a year back, the third right again
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda run=run: genuine() - YEAR_NS * (run == 1))
            recorder = fresh_recorder()
            with Journal(tmp_path, recorder, QUICK) as journal:
                assert recorder.sequence == 10 * run
                record_ticks(recorder, 5)
                eventually(lambda journal=journal: journal.status.ticks == 5)
                if run == 1:  # and forward again while it runs
                    patched.setattr(time, "time_ns", genuine)
                record_ticks(recorder, 5)
                eventually(lambda journal=journal: journal.status.ticks == 10)
    result = verify(tmp_path, expected=journal.status.head)
    assert result.ok, result.problems
    with JournalReader(tmp_path) as reader:
        ticks = list(reader.ticks())
        told = [event.event for event in reader.events()]
        assert reader.tick(12)[1].sequence == 12
    assert [tick.sequence for tick in ticks] == list(range(30))
    wall_ns = [tick.wall_ns for tick in ticks]
    assert max(wall_ns[10:15]) < min(wall_ns[:10]) - YEAR_NS // 2, "the wrong clock is kept, too"
    assert min(wall_ns[15:]) > max(wall_ns[:10]) - 10**9
    monotonic_ns = [tick.monotonic_ns for tick in ticks]
    assert monotonic_ns == sorted(monotonic_ns)
    assert "JournalLost" not in told
    assert "JournalResumed" not in told


def test_the_head_is_told_when_a_segment_is_closed(tmp_path):
    """For a place that whoever writes the journal cannot write."""
    heads: list[str] = []
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.002, segment_bytes=20_000)
    with Journal(tmp_path, recorder, limits, on_head=heads.append):
        while len(heads) < 2:
            record_ticks(recorder, 5)
            time.sleep(0.005)
    assert len(heads) == len(segment_files(tmp_path))
    for i, head in enumerate(heads):
        segment, records, digest = head.split(":")
        assert int(segment) == i + 1
        place = Head(int(segment), int(records), bytes.fromhex(digest))
        assert verify(tmp_path, expected=place).ok
    other = Head(place.segment, place.records, bytes(32))
    assert not verify(tmp_path, expected=other).ok
