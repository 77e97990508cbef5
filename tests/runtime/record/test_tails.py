"""What a kill cut off is seen in the files; what is whole is not taken for it."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from steadyhand.runtime.black_box import HEAD_BYTES, BlackBox
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.segment import TICK_HEAD
from tests.support.records import fresh_recorder, record_ticks
from tests.support.tails import Tails, acknowledged, lost, tails, uncommitted


@pytest.fixture
def database(tmp_path):
    """A file in WAL mode with one commit, written by a connection that stays open."""
    file = tmp_path / "j" / "00000001.sqlite"
    file.parent.mkdir()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA cache_size=1")  # pages go to the WAL before the commit
        connection.execute("CREATE TABLE record (body BLOB)")
        yield connection, file


def test_a_transaction_without_its_commit_is_a_tail(database, tmp_path):
    connection, file = database
    assert tails(file.parent) == Tails()
    connection.execute("BEGIN")
    for _ in range(50):
        connection.execute("INSERT INTO record VALUES (randomblob(5000))")
    copy = tmp_path / "copy"
    shutil.copytree(file.parent, copy)  # as a kill leaves it now
    connection.execute("COMMIT")
    wal = copy / "00000001.sqlite-wal"
    # 50 rows of 5000 bytes are more than 50 pages of 4096
    assert uncommitted(wal) > 50 * 4096
    assert tails(copy) == Tails(transactions=1)
    with closing(sqlite3.connect(copy / file.name)) as other:
        assert other.execute("SELECT count(*) FROM record").fetchone() == (0,)
    assert tails(file.parent) == Tails()


@pytest.mark.parametrize(("cut", "tail"), [(0, False), (1, True), (4096, True)])
def test_a_last_commit_that_is_cut_short_is_a_tail(database, tmp_path, cut, tail):
    connection, file = database
    connection.execute("INSERT INTO record VALUES (randomblob(10))")
    data = file.with_name(file.name + "-wal").read_bytes()
    wal = tmp_path / "x.sqlite-wal"
    wal.write_bytes(data[: len(data) - cut])
    assert (uncommitted(wal) > 0) is tail


def test_what_is_left_over_from_before_a_checkpoint_is_none(database):
    connection, file = database
    connection.execute("INSERT INTO record VALUES (randomblob(50000))")
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO record VALUES (randomblob(10))")  # over the begin of the file
    wal = file.with_name(file.name + "-wal")
    assert wal.stat().st_size > 50_000
    assert uncommitted(wal) == 0


def test_a_slot_that_was_being_written_is_a_tail(tmp_path):
    box = BlackBox(tmp_path / "box", {"run": "7-7"})
    for number in range(3):
        box.put(number, TICK_HEAD.pack(number, number) + bytes(30))
    assert tails(tmp_path, tmp_path / "box").slots == 0
    data = bytearray((tmp_path / "box").read_bytes())
    data[HEAD_BYTES + 20] ^= 1
    (tmp_path / "box").write_bytes(data)
    assert tails(tmp_path, tmp_path / "box") == Tails(slots=1)


def test_what_a_reader_saw_is_missed_when_it_is_gone(tmp_path):
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, Limits(commit_every_s=0.001)):
        record_ticks(recorder, 3)
    head = acknowledged(tmp_path)
    assert head is not None
    assert head.records == 5  # header, three ticks, the word that it is closed
    assert lost(tmp_path, [head]) == []
    assert lost(tmp_path, [replace(head, hash=bytes(32))]) != []
    assert lost(tmp_path, [replace(head, records=head.records + 1)]) != []
