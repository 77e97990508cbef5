"""What is kept, and what goes: by the configuration, by hand, and never in silence."""

import json
from pathlib import Path

import pytest

from steadyhand.controllers.errors import FileError, JournalError
from steadyhand.runtime.chain import verify
from steadyhand.runtime.cli import complete
from steadyhand.runtime.config import Loaded, load_config
from steadyhand.runtime.exits import Exit, guarded
from steadyhand.runtime.journal import Journal, Limits, purge
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import SHIPPED, until
from tests.support.records import fresh_recorder, record_ticks, segment_files
from tests.support.small_disks import fill, small_disk

SMALL = Limits(commit_every_s=0.002, segment_bytes=20_000)


def written(folder: Path, ticks: int, limits: Limits = SMALL) -> None:
    recorder = fresh_recorder()
    with Journal(folder, recorder, limits) as journal:
        for _ in range(0, ticks, 20):
            before = journal.status.ticks
            record_ticks(recorder, 20)
            until(lambda before=before: journal.status.ticks == before + 20)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in segment_files(folder))


def test_by_hand_the_oldest_go_and_the_chain_stays(tmp_path):
    written(tmp_path, 300)
    before = segment_files(tmp_path)
    last = list(JournalReader(tmp_path).ticks())[-1].sequence
    done = purge(tmp_path, 60_000)
    assert done.segments > 2
    assert [file.name for file in segment_files(tmp_path)[:-1]] == [
        file.name for file in before[done.segments :]
    ]
    assert sum(file.stat().st_size for file in segment_files(tmp_path)[:-2]) <= 60_000
    result = verify(tmp_path, expected=done.head)
    assert result.ok, result.problems
    assert any("purged, as recorded" in note for note in result.notes)
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, SMALL):
        assert recorder.sequence == last + 1, "the next run goes on"
        record_ticks(recorder, 3)
    assert verify(tmp_path).ok
    told = [event.event for event in JournalReader(tmp_path).events()]
    assert "JournalResumed" not in told, "nothing looks like a crash"


def test_where_nothing_is_too_much_nothing_is_touched(tmp_path):
    written(tmp_path, 60)
    before = {file: file.read_bytes() for file in segment_files(tmp_path)}
    done = purge(tmp_path, 1e9)
    assert (done.segments, done.size) == (0, 0)
    assert {file: file.read_bytes() for file in segment_files(tmp_path)} == before
    assert verify(tmp_path, expected=done.head).ok


def test_a_journal_that_is_written_is_left_alone(tmp_path):
    written(tmp_path, 200)
    with Journal(tmp_path, fresh_recorder(), SMALL):
        before = segment_files(tmp_path)
        with pytest.raises(JournalError, match="is written by process"):
            purge(tmp_path, 0.0)
        assert segment_files(tmp_path) == before


def test_of_somebody_else_it_is_left_alone(tmp_path, monkeypatch):
    written(tmp_path, 200)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with pytest.raises(JournalError, match=r"belongs to .*: do it as that user"):
        purge(tmp_path, 0.0)


def test_on_a_full_disk_the_oldest_makes_the_room(tmp_path):
    limits = Limits(commit_every_s=0.002, segment_bytes=150_000)
    with small_disk(tmp_path / "small", "size=2m") as mount:
        written(mount / "j", 1000, limits)
        fill(mount)
        done = purge(mount / "j", 30_000)
        assert done.segments > 2
        result = verify(mount / "j", expected=done.head)
        assert result.ok, result.problems


def test_an_end_that_cannot_be_read_is_no_time_to_delete(tmp_path):
    written(tmp_path, 200)
    segment_files(tmp_path)[-1].write_bytes(b"damaged")
    before = segment_files(tmp_path)
    with pytest.raises((JournalError, FileError), match="cannot be read"):
        purge(tmp_path, 0.0)
    assert segment_files(tmp_path) == before


def test_a_start_purges_what_is_too_much_by_now(tmp_path):
    """Whoever lets the journal keep less restarts, and has the room at once."""
    written(tmp_path, 300)
    much = size(tmp_path)
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.002, segment_bytes=10**9, keep_bytes=60_000)
    with Journal(tmp_path, recorder, limits):
        record_ticks(recorder, 1)
        until(lambda: size(tmp_path) < much / 2)
    assert verify(tmp_path).ok


# -- the configuration and the command -------------------------------------------------------------


def configured(folder: Path, keep: str) -> Path:
    text = SHIPPED.read_text("utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("  keep: 20 GB")]
    file = folder / "steadyhand.yaml"
    file.write_text(text.replace(line, keep), "utf-8")
    return file


def command(*words: str) -> int:
    return guarded(lambda: complete()(["journal", "purge", *words], standalone_mode=False))


def test_the_shipped_configuration_keeps_a_bounded_journal():
    loaded = load_config(SHIPPED)
    assert isinstance(loaded, Loaded)
    assert loaded.config.journal.keep == 20e9
    assert loaded.config.journal.required is False


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("  keep: 100 MB", "less than one file"),
        ("  keep: 20", "no unit"),
        ("  keep: 400 d", "another dimension"),
        ("  keep: 1 kB", "out of bounds"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, keep, said):
    problems = load_config(configured(tmp_path, keep))
    assert isinstance(problems, list)
    assert any(said in problem.message for problem in problems)


def test_the_command_keeps_what_the_configuration_says(tmp_path, capsys):
    file = configured(tmp_path, "  keep: 300 MB")
    written(tmp_path / "var" / "journal", 300)
    assert command(str(file), "--json") == Exit.DONE
    assert json.loads(capsys.readouterr().out)["files"] == 0
    assert command(str(file), "--keep", "60 kB", "--json") == Exit.DONE
    done = json.loads(capsys.readouterr().out)
    assert done["files"] > 2
    assert done["bytes"] > 60_000
    words = ["journal", "verify", str(tmp_path / "var" / "journal"), "--head", done["head"]]
    with pytest.raises(SystemExit) as ended:
        complete()(words)
    assert ended.value.code == Exit.DONE


@pytest.mark.parametrize(
    ("keep", "words", "said"),
    [
        ("", (), "say --keep"),
        ("", ("--keep", "5"), "has no unit"),
        ("", ("--keep", "5 kg"), "another dimension"),
        ("", ("--keep", "-1 MB"), "less than nothing"),
    ],
)
def test_a_size_that_is_none(tmp_path, capsys, keep, words, said):
    file = configured(tmp_path, keep)
    assert command(str(file), *words) == Exit.USAGE
    assert said in capsys.readouterr().err
