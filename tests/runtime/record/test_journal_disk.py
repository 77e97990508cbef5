"""Full, read-only, failing and slow disks: recording suffers, control never, and it is told."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import segment
from steadyhand.runtime.black_box import BlackBox
from steadyhand.runtime.chain import verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support import small_disks
from tests.support.records import fresh_recorder, record_ticks, segment_files
from tests.support.small_disks import fill, remount

QUICK = Limits(commit_every_s=0.005, retry_s=0.02)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)


def events(directory: Path) -> list[tuple[str, str]]:
    return [(e.event, str(e.data.get("code", ""))) for e in JournalReader(directory).events()]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of our own."""
    with small_disks.small_disk(tmp_path / "small", "size=1m") as mount:
        yield mount


def test_full_disk_then_space(small_disk):
    recorder = fresh_recorder(ticks=500)
    with Journal(small_disk / "j", recorder, QUICK) as journal:
        record_ticks(recorder, 20)
        eventually(lambda: journal.status.ticks == 20)
        ballast = fill(small_disk)
        record_ticks(recorder, 300)
        eventually(lambda: journal.status.cause != "")
        assert journal.status.cause == "AUDIT_FULL"
        fault = journal.fault()
        assert fault is not None
        assert fault.code is ReasonCode.AUDIT_DEGRADED
        assert fault.text.startswith("AUDIT_FULL")
        record_ticks(recorder, 1000)  # more than the ring holds: the control loop does not notice
        eventually(lambda: journal.status.lost_ticks > 0)
        ballast.unlink()
        eventually(lambda: journal.status.cause == "")
        assert journal.fault() is None
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks + journal.status.lost_ticks == 1325)
    lost = journal.status.lost_ticks
    result = verify(small_disk / "j", expected=journal.status.head)
    assert result.ok, result.problems
    reader = JournalReader(small_disk / "j")
    numbers = [tick.sequence for tick in reader.ticks()]
    assert numbers == sorted(set(numbers))
    assert numbers[:20] == list(range(20)), "what was on disk before stays"
    assert numbers[-505:] == list(range(820, 1325)), "the newest are kept, a whole ring of them"
    assert len(numbers) + lost == 1325
    told = events(small_disk / "j")
    for expected in [("JournalLost", "AUDIT_FULL"), ("JournalDegraded", "AUDIT_FULL"),
                     ("JournalRecovered", "AUDIT_FULL")]:  # fmt: skip
        assert expected in told, told
    assert sum(e.data["ticks"] for e in reader.events() if e.event == "JournalLost") == lost


def left_open(folder: Path, ticks: int) -> None:
    """A run of `ticks` ticks that is killed: its segment stays as it is, with its WAL."""
    code = textwrap.dedent("""
        import os, pathlib, sys, time
        from steadyhand.runtime.journal import Journal, Limits
        from tests.support.records import fresh_recorder, record_ticks
        recorder = fresh_recorder()
        journal = Journal(pathlib.Path(sys.argv[1]), recorder, Limits(commit_every_s=0.005)).start()
        record_ticks(recorder, int(sys.argv[2]))
        while journal.status.ticks < int(sys.argv[2]):
            time.sleep(0.005)
        os._exit(9)
    """)
    done = subprocess.run([sys.executable, "-c", code, str(folder), str(ticks)], check=False)
    assert done.returncode == 9


@pytest.mark.parametrize("before", ["closed", "killed"])
@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_start_on_a_disk_that_takes_nothing(small_disk, trouble, before):
    """It starts, tells, numbers go on, and everything stands in the journal once there is room."""
    folder = small_disk / "j"
    if before == "killed":
        left_open(folder, 30)
    else:
        recorder = fresh_recorder()
        with Journal(folder, recorder, QUICK):
            record_ticks(recorder, 30)
    if trouble == "full":
        ballast = fill(small_disk)
    else:
        remount(small_disk, "ro")
    recorder = fresh_recorder(ticks=500)
    with Journal(folder, recorder, QUICK) as journal:
        fault = journal.fault()
        assert fault is not None, "known before the first tick"
        assert fault.code is ReasonCode.AUDIT_DEGRADED
        cause = "AUDIT_FULL" if trouble == "full" else "AUDIT_RO"
        assert fault.text.startswith(cause)
        assert recorder.sequence == 30, "numbers go on where the run before ended"
        with pytest.raises(JournalError, match="one writer only"):
            Journal(folder, fresh_recorder(), QUICK).start()
        record_ticks(recorder, 40)
        time.sleep(0.1)
        assert journal.status.ticks == 0
        if trouble == "full":
            ballast.unlink()
        else:
            remount(small_disk, "rw")
        eventually(lambda: journal.status.ticks == 40)
        assert journal.fault() is None
    result = verify(folder, expected=journal.status.head)
    assert result.ok, result.problems
    assert [tick.sequence for tick in JournalReader(folder).ticks()] == list(range(70))
    told = events(folder)
    assert ("JournalDegraded", cause) in told
    assert ("JournalRecovered", cause) in told
    assert ("JournalLost", cause) not in told


def test_a_start_on_a_read_only_disk_without_the_index_of_its_wal(small_disk):
    """As a power cut leaves it: what stands in the WAL cannot be read, no number comes twice."""
    folder = small_disk / "j"
    left_open(folder, 30)
    for index in folder.glob("*-shm"):
        index.unlink()
    remount(small_disk, "ro")
    recorder = fresh_recorder()
    with Journal(folder, recorder, QUICK) as journal:
        first = recorder.sequence
        assert first >= 30
        record_ticks(recorder, 5)
        remount(small_disk, "rw")
        eventually(lambda: journal.status.ticks == 5)
    assert verify(folder, expected=journal.status.head).ok
    numbers = [tick.sequence for tick in JournalReader(folder).ticks()]
    assert numbers == [*range(30), *range(first, first + 5)]


def test_what_a_kill_left_is_carried_over_once_there_is_room(small_disk, tmp_path):
    """The new run has a black box of its own by then, in the same place."""
    folder, box = small_disk / "j", tmp_path / "box"
    first = fresh_recorder()
    with Journal(folder, first, QUICK, black_box=box):
        record_ticks(first, 10)
    killed = BlackBox(box, {"layout": first.layout.schema(), "run": "killed"})
    first.black_box = killed
    record_ticks(first, 6)  # numbers 10 to 15: nobody writes them any more
    ballast = fill(small_disk)
    recorder = fresh_recorder()
    with Journal(folder, recorder, QUICK, black_box=box) as journal:
        assert recorder.sequence == 16
        record_ticks(recorder, 4)
        ballast.unlink()
        eventually(lambda: journal.status.ticks == 4)
    result = verify(folder, expected=journal.status.head)
    assert result.ok, result.problems
    assert [tick.sequence for tick in JournalReader(folder).ticks()] == list(range(20))
    assert not box.exists()


def test_without_a_lock_from_before_a_full_disk_refuses(small_disk):
    """Two runtimes could not tell of each other: whoever sets a plant up is there and sees it."""
    (small_disk / "j").mkdir()
    remount(small_disk, "ro")
    with pytest.raises(JournalError, match="check space, owner and mode"):
        Journal(small_disk / "j", fresh_recorder(), QUICK).start()


def test_no_inodes_left_for_the_next_segment(tmp_path):
    with small_disks.small_disk(tmp_path / "inodes", "size=8m,nr_inodes=9") as mount:
        recorder = fresh_recorder()
        limits = Limits(commit_every_s=0.002, segment_bytes=20_000)
        with Journal(mount / "j", recorder, limits) as journal:
            for number in range(300):
                record_ticks(recorder, 1)
                if number % 20 == 0:
                    time.sleep(0.01)
            eventually(lambda: journal.status.ticks == 300)
        assert verify(mount / "j").ticks == 300
        assert any(name == "RotateFailed" for name, _ in events(mount / "j"))


def test_file_size_limit(tmp_path):
    """RLIMIT_FSIZE makes writes fail in the middle; in a process of its own."""
    code = textwrap.dedent("""
        import pathlib, resource, signal, sys, time
        from steadyhand.runtime.journal import Journal, Limits
        from tests.support.records import fresh_recorder, record_ticks
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        recorder = fresh_recorder()
        with Journal(pathlib.Path(sys.argv[1]), recorder, Limits(commit_every_s=0.005)) as journal:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            seen = set()
            for number in range(400):
                record_ticks(recorder, 1)
                time.sleep(0.002)
                seen.add(journal.status.cause)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            end = time.monotonic() + 20
            while journal.status.ticks < 400 and time.monotonic() < end:
                time.sleep(0.01)
        print(sorted(seen - {""}), journal.status.ticks, journal.status.lost_ticks)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "'AUDIT_" in done.stdout
    assert done.stdout.split("]")[1].split() == ["400", "0"]
    result = verify(tmp_path)
    assert result.ok, result.problems
    assert [t.sequence for t in JournalReader(tmp_path).ticks()] == list(range(400))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


class Failing:
    """Stands before `Segment.append` and fails the n-th and the following `count` calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: sqlite3.Error, late: bool) -> None:
        self.calls = 0
        self.fail_at = 10**9
        self.count = 1
        original = segment.Segment.append

        def append(made: segment.Segment, batch: object) -> None:
            self.calls += 1
            if self.fail_at <= self.calls < self.fail_at + self.count:
                if late:  # the disk took it and reported an error all the same
                    before, size = made.head, made.bytes
                    original(made, batch)  # type: ignore[arg-type]
                    made.head, made.bytes = before, size
                raise error
            original(made, batch)  # type: ignore[arg-type]

        monkeypatch.setattr(segment.Segment, "append", append)


def io_error() -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_nth_write_fails_for_every_n(tmp_path, monkeypatch, late, count):
    """Fail the first, second, third ... write until a run gets through without one."""
    failing = Failing(monkeypatch, io_error(), late)
    for n in range(1, 9):
        directory = tmp_path / str(n)
        failing.calls, failing.fail_at, failing.count = 0, n, count
        recorder = fresh_recorder()
        with Journal(directory, recorder, Limits(commit_every_s=0.002, retry_s=0.0)) as journal:
            for k in range(1, 6):
                record_ticks(recorder, 2)
                eventually(lambda k=k: journal.status.ticks == 2 * k)
        result = verify(directory)
        assert result.ok, (n, result.problems)
        assert [t.sequence for t in JournalReader(directory).ticks()] == list(range(10)), n
        reasons = [item.header["reason"] for item in JournalReader(directory).segments]
        if n <= 5:
            assert reasons[1] == "AUDIT_EIO", "a segment that failed is never written again"
            assert bool(result.notes) == late


TRACED = textwrap.dedent("""
    import pathlib, sys, time
    from steadyhand.controllers.errors import JournalError
    from steadyhand.runtime.journal import Journal, Limits
    from tests.support.records import fresh_recorder, record_ticks
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.005, retry_s=0.01, segment_bytes=20_000)
    try:
        journal = Journal(pathlib.Path(sys.argv[1]), recorder, limits).start()
    except JournalError as error:
        sys.exit(f"refused: {error}")
    for number in range(30):
        record_ticks(recorder, 1)
        time.sleep(0.01)
    end = time.monotonic() + 20
    while journal.status.ticks < 30 and time.monotonic() < end:
        time.sleep(0.01)
    journal.close()
    print(journal.status.ticks)
""")


def run_injected(directory: Path, call: str, error: str, when: str) -> str:
    """Let the kernel fail some system calls of a recording process; returns what it said."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}",
         "-e", f"inject={call}:error={error}:when={when}",
         sys.executable, "-c", TRACED, str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("may not trace processes")
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("call", "error", "when", "reason"),
    [
        ("fdatasync,fsync", "EIO", "12", "AUDIT_EIO"),
        ("pwrite64", "EROFS", "40..80", "AUDIT_EIO"),
        ("pwrite64", "ENOSPC", "40..80", ""),
    ],
)
def test_kernel_reports_errors(tmp_path, call, error, when, reason):
    """A failing sync or write makes the segment suspect; a full disk does not."""
    assert run_injected(tmp_path, call, error, when) == "30"
    result = verify(tmp_path)
    assert result.ok, result.problems
    assert [t.sequence for t in JournalReader(tmp_path).ticks()] == list(range(30))
    reasons = [item.header["reason"] for item in JournalReader(tmp_path).segments]
    assert not reason or reason in reasons


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "call", ["pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "rename"]
)
@pytest.mark.parametrize("persistent", [False, True])
def test_nth_system_call_fails_for_every_n(tmp_path, call, persistent):
    """Fail the n-th operation for n = 1, 2, 3 ...: once, and for twenty calls on end."""
    for n in range(1, 60, 2 if persistent else 1):
        directory = tmp_path / str(n)
        when = f"{n}..{n + 19}" if persistent else str(n)
        said = run_injected(directory, call, "EIO", when)
        if said.startswith("refused"):
            continue
        assert said == "30", (n, said)
        result = verify(directory)
        assert result.ok, (n, result.problems)
        assert [t.sequence for t in JournalReader(directory).ticks()] == list(range(30)), n
        shutil.rmtree(directory)


def another_journal(folder, lives):
    """Somebody took the folder away, and another runtime made it anew and wrote there."""
    folder.rename(folder.with_name("away"))
    recorder = fresh_recorder()
    other = Journal(folder, recorder, QUICK).start()
    record_ticks(recorder, 3)
    eventually(lambda: other.status.ticks == 3)
    if not lives:
        other.close()
    return other


@pytest.mark.parametrize(
    ("lives", "why"), [(True, "is written by process"), (False, "is another folder now")]
)
def test_a_folder_that_another_runtime_has_now_is_left_alone(tmp_path, lives, why):
    recorder, folder = fresh_recorder(), tmp_path / "journal"
    with Journal(folder, recorder, QUICK) as journal:
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 5)
        other = another_journal(folder, lives)
        record_ticks(recorder, 5)
        eventually(lambda: journal.taken_over)
        assert why in journal.taken_over
        assert journal.status.cause == "AUDIT_LOCK"
    other.close()
    assert verify(folder).ok
    with JournalReader(folder) as reader:
        assert len(list(reader.ticks())) == 3


def test_a_folder_that_comes_back_is_used_again(tmp_path):
    recorder, folder = fresh_recorder(), tmp_path / "journal"
    with Journal(folder, recorder, QUICK) as journal:
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 5)
        folder.rename(tmp_path / "away")
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.cause)
        assert not folder.exists()
        (tmp_path / "away").rename(folder)
        eventually(lambda: journal.status.ticks == 10)
        assert journal.taken_over == ""
    assert verify(folder).ok


@pytest.mark.parametrize("how", ["deleted", "cut", "replaced", "wal deleted"])
def test_file_taken_away_by_something_else(tmp_path, how):
    """An external logrotate: noticed at the next write, and the chain goes on."""
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, QUICK) as journal:
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 5)
        file = segment_files(tmp_path)[0]
        if how == "deleted":
            file.unlink()
        elif how == "cut":
            os.truncate(file, 0)
        elif how == "replaced":
            shutil.copy(file, tmp_path / "copy")
            (tmp_path / "copy").rename(file)
        else:
            file.with_name(file.name + "-wal").unlink()
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 10)
        assert journal.status.head.segment == 2
    last = JournalReader(segment_files(tmp_path)[-1])
    assert last.segments[0].header["reason"] == "AUDIT_TRUNC"
    assert [tick.sequence for tick in last.ticks()] == list(range(5, 10))
    result = verify(tmp_path)
    if how == "deleted":
        assert "does not continue any segment" not in str(result.problems[0])
        assert not result.ok
    else:  # SQLite writes back what it still holds when the file is given up
        assert result.ok, result.problems
        assert [t.sequence for t in JournalReader(tmp_path).ticks()] == list(range(10))


def test_slow_disk_is_told_and_control_goes_on(tmp_path, monkeypatch):
    release = threading.Event()
    original = segment.Segment.append

    def slow(made: segment.Segment, batch: object) -> None:
        release.wait(20.0)
        original(made, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(segment.Segment, "append", slow)
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.002, lag_alarm_s=0.05)
    with Journal(tmp_path, recorder, limits) as journal:
        record_ticks(recorder, 3000)
        eventually(lambda: journal.fault() is not None)
        fault = journal.fault()
        assert fault is not None
        assert (fault.code, fault.limit) == (ReasonCode.AUDIT_DEGRADED, 0.05)
        assert fault.value > 0.05
        assert "AUDIT_LAG" in fault.text
        release.set()
        eventually(lambda: journal.status.ticks == 3000)
        assert journal.fault() is None
    assert verify(tmp_path).ticks == 3000
