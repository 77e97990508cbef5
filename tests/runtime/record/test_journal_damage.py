"""Whatever is done to a journal, `verify` names the first bad record, and the service starts."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyhand.runtime import chain
from steadyhand.runtime.chain import Head, verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.records import edit, fresh_recorder, record_ticks, segment_files


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments: twice 22 records (header, 20 ticks, close), once 12."""
    directory = tmp_path_factory.mktemp("journal")
    for count in (20, 20, 10):
        recorder = fresh_recorder()
        with Journal(directory, recorder, Limits(commit_every_s=0.002)):
            record_ticks(recorder, count)
    assert verify(directory).ok
    return directory


@pytest.fixture
def journal(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def first(directory: Path) -> tuple[int, int]:
    result = verify(directory)
    assert not result.ok
    return result.problems[0].segment, result.problems[0].n


@pytest.mark.parametrize("n", [0, 1, 7, 20, 21])
def test_changed(journal, n):
    file = segment_files(journal)[1]
    edit(file, ("UPDATE record SET body = CAST(body || x'00' AS BLOB) WHERE n = ?", (n,)))
    assert first(journal) == (2, n)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    segment=st.integers(0, 2),
    n=st.integers(0, 11),
    place=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_any_flipped_bit_of_a_record_is_found(original, tmp_path_factory, segment, n, place, bit):
    copy = Path(shutil.copytree(original, tmp_path_factory.mktemp("flip") / "copy"))
    file = segment_files(copy)[segment]
    connection = sqlite3.connect(file)
    body = bytearray(connection.execute("SELECT body FROM record WHERE n = ?", (n,)).fetchone()[0])
    connection.close()
    body[place % len(body)] ^= 1 << bit
    edit(file, ("UPDATE record SET body = ? WHERE n = ?", (bytes(body), n)))
    assert first(copy) == (segment + 1, n)


def test_changed_hash_and_kind(journal):
    files = segment_files(journal)
    edit(files[2], ("UPDATE record SET kind = 2 WHERE n = 5", ()))
    assert first(journal) == (3, 5)
    edit(files[0], ("UPDATE record SET hash = zeroblob(32) WHERE n = 4", ()))
    assert first(journal) == (1, 4)


def test_changed_and_its_own_hash_computed_anew(journal):
    """One record forged with its hash: the next one no longer follows."""
    file = segment_files(journal)[0]
    connection = sqlite3.connect(file)
    before = connection.execute("SELECT hash FROM record WHERE n = 8").fetchone()[0]
    connection.close()
    forged = b"forged"
    digest = chain.link(before, 1, 9, 1, forged)
    edit(file, ("UPDATE record SET body = ?, hash = ? WHERE n = 9", (forged, digest)))
    assert first(journal) == (1, 10)


@pytest.mark.parametrize("n", [0, 3, 21])
def test_deleted(journal, n):
    edit(segment_files(journal)[1], ("DELETE FROM record WHERE n = ?", (n,)))
    assert first(journal)[0] == 2
    assert first(journal)[1] == (n if n else 0)


def test_deleted_and_numbers_closed_up(journal):
    edit(
        segment_files(journal)[1],
        ("DELETE FROM record WHERE n = 6", ()),
        ("UPDATE record SET n = -n WHERE n > 6", ()),
        ("UPDATE record SET n = -n - 1 WHERE n < 0", ()),
    )
    assert first(journal) == (2, 6)


def test_inserted(journal):
    edit(
        segment_files(journal)[0],
        ("UPDATE record SET n = -n - 1 WHERE n >= 5", ()),
        ("UPDATE record SET n = -n WHERE n < 0", ()),
        ("INSERT INTO record SELECT 5, kind, body, hash FROM record WHERE n = 4", ()),
    )
    assert first(journal) == (1, 5)


def test_swapped(journal):
    edit(
        segment_files(journal)[1],
        ("UPDATE record SET n = -1 WHERE n = 4", ()),
        ("UPDATE record SET n = 4 WHERE n = 5", ()),
        ("UPDATE record SET n = 5 WHERE n = -1", ()),
    )
    assert first(journal) == (2, 4)


def test_doubled_at_the_end(journal):
    edit(
        segment_files(journal)[2],
        ("INSERT INTO record SELECT 12, kind, body, hash FROM record WHERE n = 11", ()),
    )
    assert first(journal) == (3, 12)


def test_cut_tail_inside_the_journal(journal):
    edit(segment_files(journal)[1], ("DELETE FROM record WHERE n >= 15", ()))
    assert first(journal) == (2, 15)


def test_cut_tail_at_the_end_needs_the_head_told_outside(journal):
    head = verify(journal).head
    assert head == Head(3, 12, head.hash)
    edit(segment_files(journal)[2], ("DELETE FROM record WHERE n >= 9", ()))
    assert verify(journal).ok, "a shorter chain is a chain"
    result = verify(journal, expected=head)
    assert (result.problems[0].segment, result.problems[0].n) == (3, 11)
    assert "tail cut" in result.problems[0].text
    segment_files(journal)[2].unlink()
    assert not verify(journal, expected=head).ok


def test_an_older_copy_put_back_needs_the_head_told_outside(journal, tmp_path):
    """Rolled back as a whole it is sound in itself, also once a later start has gone on with it."""
    old = Path(shutil.copytree(journal, tmp_path / "old"))
    recorder = fresh_recorder()
    with Journal(journal, recorder, Limits(commit_every_s=0.002)):
        record_ticks(recorder, 8)
    head = verify(journal).head
    assert verify(journal, expected=head).ok
    shutil.rmtree(journal)
    shutil.copytree(old, journal)
    assert verify(journal).ok, "an older chain is a chain"
    result = verify(journal, expected=head)
    assert (result.problems[0].segment, result.problems[0].n) == (head.segment, head.records - 1)
    assert "older copy" in result.problems[0].text
    recorder = fresh_recorder()
    with Journal(journal, recorder, Limits(commit_every_s=0.002)):
        record_ticks(recorder, 20)  # as many records again, and more
    assert verify(journal).ok
    assert not verify(journal, expected=head).ok
    # the begin of the hash is enough, as the metrics tell it; another one is not
    short = Head(head.segment, head.records, head.hash[:6])
    assert not verify(journal, expected=short).ok
    now = verify(journal).head
    assert verify(journal, expected=Head(now.segment, now.records, now.hash[:6])).ok
    assert not verify(journal, expected=Head(now.segment, now.records, bytes(6))).ok


@pytest.mark.parametrize(
    "body",
    [b"[]", b'"JournalPurge"', b'{"event":"JournalPurge"}', b'{"event":"JournalPurge","data":3}',
     b"[" * 5000, b'{"event":"JournalPurge","data":{"last_segment":{},"last_hash":0}}'],
)  # fmt: skip
def test_a_forged_event_with_its_right_hash_is_named(journal, body):
    file = segment_files(journal)[2]
    connection = sqlite3.connect(file)
    before = connection.execute("SELECT hash FROM record WHERE n = 10").fetchone()[0]
    connection.close()
    digest = chain.link(before, 3, 11, 2, body)
    edit(file, ("UPDATE record SET body = ?, hash = ?, kind = 2 WHERE n = 11", (body, digest)))
    assert first(journal) == (3, 11)
    assert "not written by this program" in verify(journal).problems[0].text


@pytest.mark.parametrize("byte", [0xAB, 0xFF])
def test_a_damaged_name_in_the_file_itself_stops_no_start(journal, byte):
    """SQLite's message about it is no text then, which is an error of another kind."""
    file = segment_files(journal)[-1]
    content = bytearray(file.read_bytes())
    at = content.index(b"no_update")
    content[at + 3] = byte
    file.write_bytes(content)
    assert first(journal)[0] == 3
    recorder = fresh_recorder()
    with Journal(journal, recorder, Limits(commit_every_s=0.002)):
        record_ticks(recorder, 3)
    assert segment_files(journal)[-1] != file
    with JournalReader(journal) as reader:
        assert reader.unreadable


def test_segment_missing(journal):
    segment_files(journal)[1].unlink()
    result = verify(journal)
    assert (result.problems[0].segment, result.problems[0].n) == (3, 0)
    assert "segments between 1 and 3 are missing" in result.problems[0].text


def test_segment_replaced_by_one_of_another_journal(journal, tmp_path):
    """The other journal is sound in itself, but its chain does not fit in here."""
    other = tmp_path / "other"
    for count in (20, 20):
        recorder = fresh_recorder()
        with Journal(other, recorder, Limits(commit_every_s=0.002)):
            record_ticks(recorder, count)
    assert verify(other).ok
    shutil.copy(segment_files(other)[1], segment_files(journal)[1])
    assert first(journal) == (2, 0)
    shutil.copy(segment_files(other)[0], segment_files(journal)[1])
    assert first(journal) == (2, 0)


def test_segments_swapped(journal):
    a, b = segment_files(journal)[:2]
    a.rename(journal / "x")
    b.rename(a)
    (journal / "x").rename(b)
    assert first(journal) == (1, 0)


@pytest.mark.parametrize("damage", ["empty", "garbage", "half", "holes"])
def test_bit_rot_is_named_and_the_service_starts(journal, damage):
    file = segment_files(journal)[2]
    size = file.stat().st_size
    head = verify(journal).head
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "garbage":
        file.write_bytes(os.urandom(size))
    elif damage == "half":
        os.truncate(file, size // 2)
    else:
        with file.open("r+b") as handle:
            handle.seek(4096)
            handle.write(os.urandom(size - 8192))
    recorder = fresh_recorder()
    with Journal(journal, recorder, Limits(commit_every_s=0.002)):
        assert recorder.sequence >= 40
        record_ticks(recorder, 5)
    result = verify(journal, expected=head)
    assert result.problems[0].segment == 3, result.problems
    assert verify(journal).problems[0].segment == 3
    written = list(JournalReader(segment_files(journal)[-1]).ticks())
    assert len(written) == 5
    assert written == sorted(written, key=lambda tick: tick.sequence)
    assert [t.sequence for t in JournalReader(journal).ticks()][:40] == list(range(40))


def test_a_broken_tail_is_noted_at_the_next_start(journal):
    edit(segment_files(journal)[2], ("UPDATE record SET kind = 2 WHERE n = 5", ()))
    with Journal(journal, fresh_recorder(), Limits(commit_every_s=0.002)):
        pass
    header = JournalReader(segment_files(journal)[-1]).segments[0].header
    assert header["reason"] == "AUDIT_REPAIR"
    assert "segment 3 is broken at record 5" in header["text"]
    assert first(journal) == (3, 5)
    assert len(verify(journal).problems) == 1, "what follows is sound"


def test_a_leftover_of_a_segment_being_made_is_swept_away(journal):
    """Killed between making the file and giving it its name: nobody takes it for a segment."""
    for end in ("", "-wal", "-shm", "-journal"):
        (journal / f"00000004.sqlite.new{end}").write_bytes(b"half")
    assert verify(journal).ok
    with Journal(journal, fresh_recorder(), Limits(commit_every_s=0.002)) as started:
        assert started.status.head.segment == 4
    assert verify(journal).ok
    assert not list(journal.glob("*.new*"))


def test_rewriting_everything_needs_the_key(journal, tmp_path):
    """Who can write the files can make a new sound chain; only signatures tell."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    signed, forged = tmp_path / "signed", tmp_path / "forged"
    recorder = fresh_recorder()
    with Journal(signed, recorder, signer=key):
        record_ticks(recorder, 5)
    recorder = fresh_recorder()
    with Journal(forged, recorder, signer=Ed25519PrivateKey.generate()):
        record_ticks(recorder, 5)
    assert verify(forged).ok
    assert verify(signed, [key.public_key()]).ok
    assert not verify(forged, [key.public_key()]).ok


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_first_bad_record_among_a_million(tmp_path):
    """Figures: time to write and to verify; the bad record is behind the 900 000th tick."""
    import time

    recorder = fresh_recorder(ticks=65_536)
    limits = Limits(commit_every_s=0.001, segment_bytes=64 * 2**20)
    begun = time.monotonic()
    with Journal(tmp_path, recorder, limits) as journal:
        for _ in range(1_000):
            record_ticks(recorder, 1_000)
            while recorder.sequence - journal.status.ticks > 50_000:
                time.sleep(0.001)
    wrote_s, begun = time.monotonic() - begun, time.monotonic()
    result = verify(tmp_path, expected=journal.status.head)
    verified_s = time.monotonic() - begun
    assert (result.ok, result.ticks) == (True, 1_000_000)
    segment, tick = JournalReader(tmp_path).tick(900_000)
    assert tick.sequence == 900_000
    edit(segment.file, ("UPDATE record SET kind = 2 WHERE n = 1234", ()))
    begun = time.monotonic()
    assert first(tmp_path) == (segment.index, 1234)
    found_s = time.monotonic() - begun
    print(
        f"1 M ticks: written in {wrote_s:.1f} s, verified in {verified_s:.1f} s, "
        f"first bad record found in {found_s:.1f} s"
    )
    assert max(verified_s, found_s) < 30.0


def test_verify_tells_the_head_and_what_it_cannot_know(journal):
    found = verify(journal)
    assert found.head is not None
    place = f"{found.head.segment}:{found.head.records}:{found.head.hash.hex()}"
    assert place.startswith("3:12:")
    said = chain.describe_problem(found)
    assert f"head {place}" in said
    assert "only an end noted elsewhere tells" in said
    edit(segment_files(journal)[2], ("DELETE FROM record WHERE n >= ?", (5,)))
    assert verify(journal).ok  # nobody could tell, and it is said
    assert "only an end noted elsewhere tells" in chain.describe_problem(verify(journal))
    segment_files(journal)[2].unlink()
    assert verify(journal).ok
    missing = verify(journal, expected=found.head)
    assert "tail cut, or an older copy" in chain.describe_problem(missing, compared=True)
