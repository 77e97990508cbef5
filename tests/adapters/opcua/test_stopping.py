"""A link can be closed in whatever state it is, without waiting for a peer that says nothing.

All patience is set to minutes here, so a close that waits for any of it is told from one that
does not, on however busy a machine.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from steadyhand.adapters.opcua import link as link_module
from steadyhand.adapters.opcua.link import CLOSE_MOST_S
from steadyhand.controllers.frames import LinkState

PATIENCE_S = 120.0
SOON_S = CLOSE_MOST_S + 1.0
"""A peer that vanished unnoticed is waited for like one that is slow, so that a slow one hears that
it has its plant back; nobody else is waited for. The figure is recorded.
"""
PATIENT = {"request_timeout_s": PATIENCE_S, "connect_timeout_s": PATIENCE_S}


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "opcua"}


@pytest.fixture
def closes(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Close a link and see that it takes no time and leaves no thread."""

    def check(driver: Any, before: set[threading.Thread]) -> None:
        assert threads() > before
        started = time.monotonic()
        driver.link.close()
        took = time.monotonic() - started
        record_property("closed_after_s", took)
        print(f"closed within {took:.3f} s")
        assert took < SOON_S
        assert threads() == before
        driver.link.close()  # and again is nothing

    return check


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A socket that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted = []
        stop = threading.Event()
        listener.settimeout(0.05)

        def accept() -> None:
            while not stop.is_set():
                try:
                    accepted.append(listener.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener
        stop.set()
        thread.join()
        for connection in accepted:
            connection.close()


def endpoint_of(listener: socket.socket) -> str:
    return f"opc.tcp://127.0.0.1:{listener.getsockname()[1]}/plant"


def wait_state(opcua: Any, driver: Any, state: LinkState) -> None:
    opcua.until(lambda: driver.read().link is state, what=f"link {state}")


def test_a_peer_that_says_nothing(opcua, drive, silent, closes) -> None:
    before = threads()
    driver = drive(endpoint_of(silent), **PATIENT)
    wait_state(opcua, driver, LinkState.CONNECTING)
    time.sleep(0.2)  # the connection is accepted, and the greeting out
    closes(driver, before)


def test_a_host_that_does_not_answer_at_all(opcua, drive, closes) -> None:
    """The queue of a listener that accepts nobody is full: a connection is never made."""
    before = threads()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        driver = drive(f"opc.tcp://127.0.0.1:{port}/plant", **PATIENT)
        wait_state(opcua, driver, LinkState.CONNECTING)
        time.sleep(0.2)
        closes(driver, before)
        for filler in fillers:
            filler.close()


def test_a_name_server_that_does_not_answer(opcua, drive, closes, monkeypatch) -> None:
    before = threads()
    asked, answer = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def slow(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "plant.invalid":
            return real(host, *rest, **more)
        asked.set()
        answer.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    driver = drive("opc.tcp://plant.invalid:4840/plant", **PATIENT)
    assert asked.wait(15.0)
    closes(driver, before)
    answer.set()


def test_a_name_is_looked_up(opcua, drive) -> None:
    server = opcua.server()
    drive(server.endpoint.replace("127.0.0.1", "localhost")).up()


def test_a_name_that_does_not_exist_is_told(opcua, drive, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "unknown name")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    driver = drive("opc.tcp://plant.invalid:4840/plant")
    opcua.until(lambda: any("the host of" in f.text for f in driver.read().faults), what="told")


def test_a_pause_between_attempts(opcua, drive, closes) -> None:
    before = threads()
    port = opcua.free_port()
    driver = drive(
        f"opc.tcp://127.0.0.1:{port}/plant", backoff_first_s=PATIENCE_S, backoff_cap_s=PATIENCE_S
    )
    wait_state(opcua, driver, LinkState.DOWN)
    closes(driver, before)


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15])
def test_a_server_that_falls_silent_in_the_middle(opcua, drive, closes, pieces) -> None:
    """After so many pieces of data: in the greeting, the channel, the session, the browsing."""
    before = threads()
    proxy = opcua.proxy(opcua.server())
    proxy.hold_after = pieces
    driver = drive(proxy.endpoint, **PATIENT)
    opcua.until(lambda: proxy.holds or driver.read().link is LinkState.UP, what="silence")
    time.sleep(0.1)
    closes(driver, before)


def test_a_working_link(opcua, drive, closes) -> None:
    before = threads()
    server = opcua.server()
    driver = drive(server.endpoint, opcua.tag_map(opcua.full_handshake()), **PATIENT).up()
    driver.write(10.0)
    opcua.until(lambda: server.get("valve") == 10.0)
    closes(driver, before)
    assert server.get("request") is False


@pytest.mark.parametrize("subscribe", [False, True], ids=["read", "subscribe"])
def test_a_link_whose_peer_vanished_unnoticed(opcua, drive, closes, subscribe) -> None:
    before = threads()
    proxy = opcua.proxy(opcua.server())
    tags = opcua.tag_map(opcua.full_handshake())
    driver = drive(proxy.endpoint, tags, subscribe=subscribe, **PATIENT).up()
    driver.write(10.0)
    proxy.holds = True
    time.sleep(0.3)
    assert driver.read().link is LinkState.UP
    closes(driver, before)


def test_a_defect_of_the_links_own_thread(opcua, drive, closes, monkeypatch) -> None:
    """The pause after it is as long as that of a lost link."""
    before = threads()

    async def broken(_self: Any) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr("steadyhand.adapters.opcua.worker.Worker._main", broken)
    driver = drive("opc.tcp://127.0.0.1:1/plant", backoff_cap_s=PATIENCE_S)
    opcua.until(lambda: "TASK_DIED" in driver.codes(), what="the defect")
    closes(driver, before)


def test_closing_right_after_opening(drive, silent, closes) -> None:
    for _ in range(20):
        before = threads()
        closes(drive(endpoint_of(silent), **PATIENT), before)


def test_the_link_never_waits_for_its_thread_for_ever() -> None:
    assert link_module.RELEASE_S < link_module.JOIN_S < PATIENCE_S
