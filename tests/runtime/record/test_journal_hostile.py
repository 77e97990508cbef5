"""Segments that somebody else made: nothing waits, computes for ever or ends in a trace."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime import chain
from steadyhand.runtime.chain import verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.command import steadyhand
from tests.support.records import fresh_recorder, record_ticks, segment_files

ENDLESS = (
    "WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t) "
    "SELECT n, 2 AS kind, x'00' AS body, x'00' AS hash FROM t"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of 22 records: header, 20 ticks, close."""
    directory = tmp_path_factory.mktemp("journal")
    for _ in range(2):
        recorder = fresh_recorder()
        with Journal(directory, recorder, Limits(commit_every_s=0.002)):
            record_ticks(recorder, 20)
    return directory


@pytest.fixture
def journal(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def remade(*statements: str) -> Callable[[Path], None]:
    """A spoiler: the file is a new database with these statements."""

    def spoil(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            header = connection.execute("SELECT * FROM record WHERE n = 0").fetchone()
        file.unlink()
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement, header if "?" in statement else ())

    return spoil


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def pipe_beside(file: Path) -> None:
    os.mkfifo(file.with_name(file.name + "-wal"))


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def chained(kind: object, body: object) -> Callable[[Path], None]:
    """A spoiler: one more record, with the right hash where there is one."""

    def spoil(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            n, _, _, digest = chain.last_rows(connection, 0)[-1]
            good = isinstance(kind, int) and 0 <= kind < 256 and isinstance(body, bytes)
            new = chain.link(digest, int(file.stem), n + 1, kind, body) if good else b"x"
            connection.execute("INSERT INTO record VALUES (?,?,?,?)", (n + 1, kind, body, new))

    return spoil


NO_TABLE = {
    "a pipe": pipe,
    "a pipe beside it": pipe_beside,
    "a folder": folder,
    "an endless view": remade(f"CREATE VIEW record AS {ENDLESS}"),
    "a computed column": remade(
        "CREATE TABLE record (n INTEGER PRIMARY KEY, kind, hash, "
        "body AS (hex(zeroblob(500000000))))"
    ),
    "a virtual table": remade("CREATE VIRTUAL TABLE record USING fts5(n, kind, body, hash)"),
    "no table": remade("CREATE TABLE other (n)"),
}
RECORDS = {
    "the largest kind": chained(2**63 - 1, b"x"),
    "an unknown kind": chained(200, b"x"),
    "a negative kind": chained(-1, b"x"),
    "text for a body": chained(2, "text"),
    "an event of nothing": chained(2, b""),
    "an event of a list": chained(2, b"[1]"),
    "a deep event": chained(2, b"[" * 100_000),
    "a short tick": chained(1, b"x"),
    "a purge of nonsense": chained(2, b'{"event":"JournalPurge","data":{"last_segment":[]}}'),
}


@pytest.mark.parametrize("name", NO_TABLE)
def test_what_is_no_segment_is_named_at_once(journal, name):
    NO_TABLE[name](segment_files(journal)[1])
    found = verify(journal)
    assert (found.problems[0].segment, found.problems[0].n) == (2, 0)
    with JournalReader(journal) as reader:
        assert list(reader.unreadable) == [2]
        assert reader.span() == (0, 19)
        assert len(list(reader.items())) == 21


@pytest.mark.parametrize("name", NO_TABLE)
def test_the_service_goes_on_in_a_new_segment(journal, name):
    NO_TABLE[name](segment_files(journal)[1])
    recorder = fresh_recorder()
    with Journal(journal, recorder, Limits(commit_every_s=0.002)):
        assert recorder.sequence == 20
        record_ticks(recorder, 3)
    assert len(list(journal.glob("00000003.sqlite"))) == 1


@pytest.mark.parametrize("name", RECORDS)
def test_a_foreign_record_is_named(journal, name):
    RECORDS[name](segment_files(journal)[1])
    found = verify(journal)
    if name not in {"an unknown kind", "a short tick"}:  # the chain itself is sound
        assert (found.problems[0].segment, found.problems[0].n) == (2, 22)
    with (
        JournalReader(journal) as reader,
        pytest.raises(JournalError, match=r"segment 2, record 2[12]"),
    ):
        list(reader.items())


@pytest.mark.parametrize(
    "previous", [b"[]", b'"x"', b"3", b'{"records":"9","hash":"00"}', b'{"records":1,"hash":7}']
)
def test_a_header_of_nonsense_is_named(journal, previous):
    file = segment_files(journal)[1]
    body = b'{"format":1,"segment":2,"reason":"AUDIT_EIO","previous":' + previous + b"}"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER no_update")
        connection.execute("UPDATE record SET body = ? WHERE n = 0", (body,))
    found = verify(journal)
    assert str(found.problems[0]).startswith("segment 2, record 0: header makes no sense")
    with JournalReader(journal) as reader:
        assert list(reader.unreadable) == [2]


@pytest.mark.parametrize("words", [("journal", "verify"), ("journal", "show"), ("explain",)])
@pytest.mark.parametrize("name", ["a pipe", "an endless view"])
def test_the_commands_neither_hang_nor_trace(journal, name, words):
    for file in segment_files(journal):
        NO_TABLE[name](file)
    done = steadyhand(*words, journal)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "segment" in done.stdout + done.stderr


def test_pages_that_lead_back_to_themselves_end(original):
    """Bounds go with the bytes: a question that takes more steps is given up."""
    with closing(chain.open_readonly(segment_files(original)[0])) as connection:
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            connection.execute(f"SELECT count(*) FROM ({ENDLESS})").fetchone()
        with pytest.raises((sqlite3.DataError, sqlite3.OperationalError)):
            connection.execute(f"SELECT zeroblob({chain.MAX_BODY_BYTES + 1})").fetchone()
