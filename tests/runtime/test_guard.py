"""Nothing but its end ends a thread of ours in silence."""

import ast
import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import certificate_watch, guard, http_server, reload
from steadyhand.runtime import kept as kept_module
from steadyhand.runtime.certificate_watch import CertificateWatch, Watched
from steadyhand.runtime.chain import verify
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.guard import STANDS_S, Death, Deaths, Guarded
from steadyhand.runtime.http_server import HttpServer, Response
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.kept import Keeper, Kept, load_kept
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.notices import Notices
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.panel import server as panel_server
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.reload import Reload
from tests.support.panels import Stand
from tests.support.records import fresh_recorder, record_ticks

RUNTIME = Path(guard.__file__).parent


class Unexpected(BaseException):
    """What no `except Exception` catches."""


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end_s, "never happened"
        time.sleep(0.005)


@pytest.fixture
def told(monkeypatch) -> Iterator[list[Death]]:
    """Every death from here on; threads are begun again at once."""
    monkeypatch.setattr(guard, "PAUSE_S", 0.01)
    found: list[Death] = []
    with guard.deaths.listen(found.append):
        yield found


def once(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """`function`, whose first call raises `error` instead."""
    left = [error]

    def call(*arguments: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return function(*arguments, **named)

    return call


def test_an_orderly_end_is_no_death(told):
    thread = Guarded(lambda: None, "orderly", until=threading.Event())
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert told == []


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3), Unexpected("x"), ValueError("x")])
def test_a_death_is_told_mended_and_begun_again(told, error):
    until, mended, begun = threading.Event(), [], []

    def work() -> None:
        begun.append(1)
        if len(begun) < 3:
            raise error
        until.wait(10.0)

    thread = Guarded(work, "worker", until=until, mend=mended.append, pause_s=0.01)
    thread.start()
    eventually(lambda: len(begun) == 3)
    until.set()
    thread.join(5.0)
    assert mended == [error, error]
    assert [death.name for death in told] == ["worker", "worker"]
    assert type(error).__name__ in told[0].text
    assert told[0].text.endswith("begun again")
    assert "in work" in told[0].trace


def test_what_cannot_be_mended_is_told_and_tried_again(told):
    until = threading.Event()

    def broken(error: BaseException) -> None:
        raise RuntimeError from error

    thread = Guarded(once(lambda: None, OSError()), "w", until=until, mend=broken, pause_s=0.01)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert len(told) == 1


def test_after_the_end_of_the_work_it_is_not_begun_again(told):
    until = threading.Event()

    def work() -> None:
        until.set()
        raise Unexpected

    thread = Guarded(work, "ending", until=until)
    thread.start()
    thread.join(5.0)
    assert told[0].text.endswith("it is not begun again")


def test_how_long_an_alarm_stands():
    now = [100.0]
    deaths = Deaths(lambda: now[0])
    with deaths.listen(lambda death: None):
        deaths.tell("mended", ValueError("x"), again=True, lasting=True)
        deaths.tell("job", ValueError("x"), again=False)
        deaths.tell("gone", ValueError("x"), again=False, lasting=True)
        assert {fault.code for fault in deaths.faults()} == {ReasonCode.TASK_DIED}
        assert len([*deaths.faults()]) == 3
        now[0] += STANDS_S
        (stands,) = deaths.faults()
        assert stands.text.startswith("gone: ValueError: x")
    assert deaths.count == 3
    assert [*deaths.faults()] == [], "a service that ended takes its alarms along"


def test_without_a_listener_it_is_told_on_standard_error(capsys):
    Deaths().tell("alone", ValueError("why"), again=False)
    said = capsys.readouterr().err
    assert "TASK_DIED: alone: ValueError: why" in said
    assert "ValueError: why" in said.splitlines()[-1]


def test_a_listener_that_raises_ends_nothing():
    deaths, heard = Deaths(), []
    with deaths.listen(lambda death: 1 // 0), deaths.listen(heard.append):
        deaths.tell("x", ValueError(), again=True)
    assert len(heard) == 1


# -- each real thread ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["peek", "append", "dump_json"])
def test_the_journals_writer(tmp_path, told, monkeypatch, place):
    """No record is lost or doubled, and the chain holds."""
    recorder = fresh_recorder()
    limits = Limits(commit_every_s=0.002, retry_s=0.01)
    with Journal(tmp_path / "j", recorder, limits) as journal:
        record_ticks(recorder, 10)
        eventually(lambda: journal.status.ticks == 10)
        target = {
            "peek": (type(recorder.ticks), "peek"),
            "append": (type(journal._segment), "append"),
            "dump_json": (sys.modules[Journal.__module__], "_merge"),
        }[place]
        broken = once(getattr(*target), MemoryError("no more"))
        wrapped = staticmethod(broken) if place == "dump_json" else None
        monkeypatch.setattr(*target, wrapped or broken)
        record_ticks(recorder, 5)
        eventually(lambda: told)
        record_ticks(recorder, 5)
        eventually(lambda: journal.status.ticks == 20)
        assert journal.fault() is None, "it goes on"
    assert [death.name for death in told] == ["journal"]
    assert "MemoryError: no more" in told[0].text
    result = verify(tmp_path / "j", expected=journal.status.head)
    assert result.ok, result.problems
    assert [tick.sequence for tick in JournalReader(tmp_path / "j").ticks()] == list(range(20))
    events = [e for e in JournalReader(tmp_path / "j").events() if e.event == "JournalRecovered"]
    assert [event.data["code"] for event in events] == ["AUDIT_DEFECT"]


def test_a_writer_that_stays_broken_is_a_standing_fault(tmp_path, told, monkeypatch):
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, Limits(commit_every_s=0.002, retry_s=0.01)) as journal:

        def broken(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(type(journal._segment), "append", broken)
            record_ticks(recorder, 3)
            eventually(lambda: len(told) > 3)
            fault = journal.fault()
            assert fault is not None
            assert fault.code is ReasonCode.AUDIT_DEGRADED
            assert fault.text.startswith("AUDIT_DEFECT: MemoryError")
        eventually(lambda: journal.status.ticks == 3)
    assert verify(tmp_path / "j").ok


class Unwritable:
    """Nobody can make a text of it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_event_that_cannot_be_written_keeps_no_other_from_the_disk(tmp_path, told):
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, Limits(commit_every_s=0.002)) as journal:
        recorder.event({"event": "Odd", "what": Unwritable()})
        recorder.event({"event": "Sound"})
        record_ticks(recorder, 1)
        eventually(lambda: journal.status.ticks == 1)
    events = {e.event: e.data for e in JournalReader(tmp_path / "j").events()}
    assert events["EventMisfit"]["text"] == "Odd cannot be written: RuntimeError"
    assert "Sound" in events
    assert told == []


def test_the_watch_of_the_certificates(told, monkeypatch):
    monkeypatch.setattr(certificate_watch, "EVERY_S", 0.01)
    watch = CertificateWatch(Watched(), lambda event: None)
    looks: list[int] = []
    genuine = once(lambda: looks.append(1), Unexpected("the disk's library"))
    monkeypatch.setattr(watch, "refresh", genuine)
    watch.start()
    eventually(lambda: len(looks) > 2)
    watch.close()
    assert [death.name for death in told] == ["certificates"]


def test_the_http_server(told, monkeypatch):
    serve = once(HttpServer._serve, Unexpected("in a library"))
    monkeypatch.setattr(http_server.HttpServer, "_serve", serve)
    with HttpServer("metrics", "127.0.0.1:0", lambda request: Response(204)) as server:
        eventually(lambda: told)
        eventually(lambda: server.address is not None)
        connection = http.client.HTTPConnection(*server.address, timeout=10.0)
        connection.request("GET", "/")
        assert connection.getresponse().status == 204
        connection.close()
    assert [death.name for death in told] == ["metrics"]


def test_the_trends_of_the_panel(told, monkeypatch):
    monkeypatch.setattr(panel_server, "SAMPLE_EVERY_S", 0.01)
    stand = Stand()
    looks: list[int] = []
    monkeypatch.setattr(stand.panel, "sample", once(lambda: looks.append(1), Unexpected()))
    stand.panel.open()
    eventually(lambda: len(looks) > 2)
    stand.panel.close()
    assert [death.name for death in told] == ["panel-trends"]


def test_the_door_of_the_operators(tmp_path, told, monkeypatch):
    server = OperatorServer(OperatorSettings(tmp_path / "s"), Desk())
    tries: list[int] = []

    def admit(uid: int, gid: int) -> None:
        tries.append(1)
        raise Unexpected("the kernel's answer")

    monkeypatch.setattr(server, "_admit", admit)
    server.open()
    for number in (1, 2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(tmp_path / "s"))
            eventually(lambda number=number: len(tries) == number)
    server.close()
    assert {death.name for death in told} == {"operator"}


def test_the_keeper_of_what_people_did(tmp_path, told, monkeypatch):
    monkeypatch.setattr(kept_module, "save_kept", once(kept_module.save_kept, Unexpected()))
    file = tmp_path / "kept.json"
    keeper = Keeper(file, "north", lambda text: None, Kept())
    keeper.keep(Kept(asked=Mode.SHADOW), 1.0)
    eventually(lambda: told)
    keeper.keep(Kept(asked=Mode.ADVISORY), 2.0)
    eventually(lambda: load_kept(file, "north", 1.0).kept.asked is Mode.ADVISORY)
    keeper.close()
    assert [death.name for death in told] == ["kept"]


def test_the_lines_on_standard_error(tmp_path, told):
    file = (tmp_path / "log").open("wb")
    with Notices(file.fileno()) as notices:
        notices._lines.append(7)  # type: ignore[arg-type]  (no text: it cannot be joined)
        notices.say("first")
        eventually(lambda: told)
        notices.say("second")
        eventually(lambda: b"second" in (tmp_path / "log").read_bytes())
    assert [death.name for death in told] == ["notices"]
    file.close()


def test_a_look_at_the_configuration(tmp_path, told, monkeypatch):
    monkeypatch.setattr(reload, "_verdict", once(lambda file, digest: "sound", Unexpected()))
    events: list[dict[str, object]] = []
    reloads = Reload(tmp_path / "x", "", events.append)
    reloads.ask()
    reloads.begin()
    eventually(lambda: told)
    reloads.ask()
    eventually(lambda: reloads.begin() or events)
    assert events[0]["text"] == "sound"
    assert [death.name for death in told] == ["reload"]


def test_no_thread_of_the_runtime_is_begun_without_a_guard():
    bare = []
    for file in sorted(RUNTIME.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", ""))
            if name in ("Thread", "Timer", "start_new_thread"):
                bare.append(f"{file.name}:{node.lineno}")
    assert bare == []
