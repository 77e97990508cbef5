"""The link breaks, in every way it can; it says so, writes nothing, and comes back by itself."""

import time
from itertools import pairwise

import numpy as np
import pytest
from asyncua import ua

from steadyhand.adapters.opcua import worker
from steadyhand.adapters.opcua.tags import OutputTag
from steadyhand.controllers.frames import LinkState, Quality
from steadyhand.controllers.reasons import ReasonCode

BACK_S = 10.0
"""Generous bound for a busy machine; the aim is 2 s, the figure is printed."""
BOTH_WAYS = pytest.mark.parametrize("subscribe", [False, True], ids=["read", "subscribe"])


def came_back(driver, opcua, record_property) -> None:
    took = opcua.until(lambda: driver.read().link is LinkState.UP, BACK_S, "link up again")
    record_property("recovered_after_s", took)
    print(f"recovered {took:.2f} s after the server")


@BOTH_WAYS
def test_a_restarted_server_is_used_again(opcua, drive, record_property, subscribe) -> None:
    """A1: nothing is written while it is away, and new data is used once it is back."""
    server = opcua.server()
    driver = drive(server.endpoint, subscribe=subscribe).up()
    server.stop()
    driver.down()
    observation = driver.read()
    assert {fault.code for fault in driver.seen} & {
        ReasonCode.LINK_DOWN,
        ReasonCode.LINK_TIMEOUT,
    }
    assert not observation.granted
    np.testing.assert_array_equal(observation.quality, [Quality.BAD] * 3)
    sent = driver.write(50.0)
    assert not sent.written
    assert sent.faults[0].code is ReasonCode.LINK_DOWN
    time.sleep(0.5)
    age = driver.read().age_s
    assert age.min() > 0.4
    server.start()
    came_back(driver, opcua, record_property)
    server.set("level", 12.5)
    opcua.until(lambda: driver.read().values[0] == 12.5)
    assert server.get("valve") == 0.0
    assert driver.saw(ReasonCode.RECOVERED)


@BOTH_WAYS
def test_a_peer_that_vanishes_is_noticed_within_a_timeout(
    opcua, drive, record_property, subscribe
) -> None:
    """A2: no FIN, no RST; never "connected" for longer than the deadline."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, subscribe=subscribe, request_timeout_s=0.5).up()
    proxy.holds = True
    driver.down(5.0)
    assert driver.sees(ReasonCode.LINK_TIMEOUT)
    time.sleep(1.0)  # and every new attempt is held too
    assert driver.read().link is not LinkState.UP
    proxy.cut()
    proxy.holds = False
    came_back(driver, opcua, record_property)


def test_a_trickle_is_as_good_as_nothing(opcua, drive, record_property) -> None:
    """A5: one byte at a time never resets the deadline."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, request_timeout_s=0.5).up()
    proxy.trickle_s = 0.1
    driver.down(5.0)
    assert driver.sees(ReasonCode.LINK_TIMEOUT)
    proxy.trickle_s = 0.0
    proxy.cut()
    came_back(driver, opcua, record_property)


@pytest.mark.parametrize("at", [0, 5, 9, 13, 17, 21, 26, 40, 50, 60])
def test_a_corrupted_reply_ends_the_session_and_no_more(opcua, drive, at) -> None:
    """A19: whatever byte is hit, the link is good again afterwards."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, request_timeout_s=0.5).up()
    proxy.flip_at = at
    opcua.until(lambda: proxy.flip_at < 0)
    time.sleep(0.2)
    server.set("level", 31.0)
    opcua.until(lambda: driver.read().link is LinkState.UP and driver.read().values[0] == 31.0)
    driver.write(3.0)
    opcua.until(lambda: server.get("valve") == 3.0 or not driver.write(3.0).written)


@BOTH_WAYS
def test_reordered_namespaces_never_read_the_wrong_tag(opcua, drive, subscribe) -> None:
    """Fact 2 and A6: the old index reads another variable without any error."""
    server = opcua.server(namespaces=(opcua.PLANT_URI, opcua.OTHER_URI))
    driver = drive(server.endpoint, subscribe=subscribe).up()
    assert driver.read().values[0] == 1.0
    server.stop()
    driver.down()
    server.namespaces = (opcua.OTHER_URI, opcua.PLANT_URI)
    server.start()
    seen = set()
    opcua.until(
        lambda: seen.add(float(driver.read().values[0])) or driver.read().link is LinkState.UP
    )
    fault = driver.sees(ReasonCode.NS_REMAP)
    assert (fault.limit, fault.value) == (2.0, 3.0)
    assert seen == {1.0}
    driver.write(44.0)
    opcua.until(lambda: server.get("valve") == 44.0)
    other = server.server.get_node(ua.NodeId("valve", 2))
    assert server.call(other.read_value()) == 1000.0


def test_a_missing_namespace_or_node_keeps_the_link_down_and_is_named(opcua, drive) -> None:
    """A7."""
    server = opcua.server()
    driver = drive(server.endpoint).up()
    server.stop()
    server.leave_out = ("flow",)
    server.start()
    fault = driver.sees(ReasonCode.TAG_MISSING)
    assert fault.signal == "flow"
    assert driver.read().link is not LinkState.UP
    server.stop()
    server.namespaces = (opcua.OTHER_URI,)
    server.start()
    opcua.until(lambda: driver.saw(ReasonCode.TAG_MISSING) and "namespace" in driver.seen[-1].text)
    server.stop()
    server.namespaces, server.leave_out = (opcua.PLANT_URI,), ()
    server.start()
    driver.up()
    assert ReasonCode.TAG_MISSING not in driver.codes()


def test_a_node_that_disappears_while_running_is_told(opcua, drive) -> None:
    server = opcua.server()
    driver = drive(server.endpoint).up()
    node = server.server.get_node(ua.NodeId("flow", server.index))
    server.call(server.server.delete_nodes([node]))
    assert driver.sees(ReasonCode.TAG_MISSING).signal == "flow"


def test_a_node_of_another_type_is_refused(opcua, drive) -> None:
    """A8: Int16 where a Double was configured."""
    server = opcua.server()
    driver = drive(server.endpoint).up()
    server.stop()
    server.types = {"level": ua.VariantType.Int16}
    server.start()
    fault = driver.sees(ReasonCode.TAG_TYPE)
    assert fault.signal == "level"
    assert "declared Int16, configured is Double" in fault.text
    assert driver.read().link is not LinkState.UP


def test_a_type_left_to_the_server_is_pinned_the_first_time(opcua, drive) -> None:
    server = opcua.server()
    tags = opcua.tag_map(count=opcua.tag("count", wire_type="auto"))
    driver = drive(server.endpoint, tags).up()
    assert driver.read().values[2] == 3.0
    server.stop()
    server.types = {"count": ua.VariantType.Int32}
    server.start()
    assert "configured is Int16" in driver.sees(ReasonCode.TAG_TYPE).text


def test_a_read_only_output_is_found_while_verifying(opcua, drive) -> None:
    """A9."""
    server = opcua.server()
    tags = opcua.tag_map(valve=OutputTag(address=opcua.node("level")))
    driver = drive(server.endpoint, tags)
    assert driver.sees(ReasonCode.WRITE_DENIED).signal == "valve"
    assert driver.read().link is not LinkState.UP


def test_a_unit_that_is_not_the_configured_one_is_refused(opcua, drive) -> None:
    server = opcua.server()
    good = drive(server.endpoint, opcua.tag_map(level=opcua.tag("level", unit="m"))).up()
    good.link.close()
    driver = drive(server.endpoint, opcua.tag_map(level=opcua.tag("level", unit="cm")))
    assert "unit is 'm', configured is 'cm'" in driver.sees(ReasonCode.TAG_TYPE).text


def test_browse_paths_find_the_same_nodes(opcua, drive) -> None:
    from steadyhand.adapters.opcua.tags import Tag, parse_address

    server = opcua.server(namespaces=(opcua.OTHER_URI, opcua.PLANT_URI))
    address = parse_address(f"/nsu={opcua.PLANT_URI};Plant/level", "level")
    driver = drive(server.endpoint, opcua.tag_map(level=Tag(address=address))).up()
    assert driver.read().values[0] == 1.0


def test_one_node_that_is_written_as_two_things_is_refused(opcua, drive) -> None:
    """By a path and by its id: the addresses alone do not tell."""
    from steadyhand.adapters.opcua.tags import OutputTag, parse_address

    server = opcua.server()
    address = parse_address(f"/nsu={opcua.PLANT_URI};Plant/pump", "pump")
    tags = opcua.tag_map(valve=OutputTag(address=address, wire_type="Float"))
    driver = drive(server.endpoint, tags)
    text = driver.sees(ReasonCode.TAG_TYPE).text
    assert "is the node of valve" in text
    assert "both are written" in text
    assert driver.read().link is not LinkState.UP


def test_a_session_closed_by_the_server_is_made_anew(opcua, drive, record_property) -> None:
    """A10: the socket lives, the session does not."""
    server = opcua.server()
    driver = drive(server.endpoint).up()
    sessions = server.server.iserver._external_sessions

    async def forget() -> None:
        for session in list(sessions.values()):
            await session.close_session()

    connects = driver.link.connects
    server.call(forget())
    opcua.until(lambda: driver.link.connects > connects, BACK_S)
    came_back(driver, opcua, record_property)
    server.set("level", 6.0)
    opcua.until(lambda: driver.read().values[0] == 6.0)


def test_a_subscription_that_dies_silently_is_told_and_replaced(opcua, drive) -> None:
    """A21: reads work, nothing is published any more."""
    server = opcua.server()
    driver = drive(server.endpoint, subscribe=True).up()
    server.set("level", 2.5)
    opcua.until(lambda: driver.read().values[0] == 2.5)
    subscriptions = server.server.iserver.subscription_service.subscriptions

    async def silence() -> None:
        for subscription in subscriptions.values():
            if subscription._task is not None:
                subscription._task.cancel()

    server.call(silence())
    driver.sees(ReasonCode.SUB_STALE)
    assert driver.read().link is LinkState.UP
    server.set("level", 3.5)
    opcua.until(lambda: driver.read().values[0] == 3.5)  # read cyclically meanwhile
    driver.clears(ReasonCode.SUB_STALE)
    server.set("level", 4.5)
    opcua.until(lambda: driver.read().values[0] == 4.5)


def test_a_subscription_that_lies_is_found_out(opcua, drive) -> None:
    """Keep-alives go on, data does not: reads see the plant's number move, it does not."""
    server = opcua.server()
    driver = drive(server.endpoint, opcua.tag_map(opcua.full_handshake()), subscribe=True).up()
    opcua.until(lambda: driver.read().sequence >= 1)
    service = server.server.iserver.subscription_service

    async def deafen() -> None:
        for subscription in service.subscriptions.values():
            subscription.monitored_item_srv.delete_all_monitored_items()

    time.sleep(0.5)
    server.call(deafen())
    number = 2

    def stale() -> bool:
        nonlocal number
        server.image(number, level=float(number), flow=-float(number))
        number += 1
        time.sleep(0.05)
        return driver.saw(ReasonCode.SUB_STALE)

    opcua.until(stale)
    opcua.until(lambda: driver.read().values[0] >= number - 2)


def test_another_server_on_the_same_port_is_refused(opcua, drive) -> None:
    """A22."""
    server = opcua.server()
    driver = drive(server.endpoint).up()
    server.stop()
    server.server_uri = "urn:test:somebody-else"
    server.start()
    fault = driver.sees(ReasonCode.SERVER_ID)
    assert "urn:test:somebody-else" in fault.text
    assert driver.read().link is not LinkState.UP
    assert not driver.write(1.0).written
    server.stop()
    server.server_uri = opcua.SERVER_URI
    server.start()
    driver.up()


def test_a_flapping_link_is_told_once_and_not_written_over(opcua, drive) -> None:
    """A3."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, flap_count=3, flap_window_s=3.0).up()
    for _ in range(3):
        connects = driver.link.connects
        proxy.cut()
        opcua.until(lambda c=connects: driver.link.connects > c)
        driver.up()
    fault = driver.sees(ReasonCode.LINK_FLAP)
    assert fault.value == 3.0
    sent = driver.write(50.0)
    assert not sent.written
    driver.clears(ReasonCode.LINK_FLAP)
    opcua.until(lambda: driver.write(50.0).written)
    opcua.until(lambda: server.get("valve") == 50.0)


def test_no_command_survives_a_reconnect(opcua, drive) -> None:
    """F7: a command handed over just before the break is gone after it."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, request_timeout_s=0.5, command_life_s=30.0).up()
    proxy.holds = True
    driver.write(66.0)
    driver.down(5.0)
    proxy.cut()
    proxy.holds = False
    driver.up()
    time.sleep(0.5)
    assert server.get("valve") == 0.0


@pytest.fixture
def full_server(opcua):
    """A server without a session left, and when it was asked for one."""
    server = opcua.server()
    attempts: list[float] = []
    internals = server.server.iserver
    genuine = internals.create_session

    def refuse(*_args, **_kwargs):
        attempts.append(time.monotonic())
        raise ua.uaerrors.BadTooManySessions

    internals.create_session = refuse
    yield server, attempts
    internals.create_session = genuine


def test_a_server_with_no_session_left_is_not_hammered(
    full_server, opcua, drive, monkeypatch
) -> None:
    """A17: the next attempt waits, half a minute at least."""
    pauses, genuine = [], worker.wait

    async def noted(event, pause_s):
        pauses.append(pause_s)
        return await genuine(event, pause_s)

    monkeypatch.setattr(worker, "wait", noted)
    server, attempts = full_server
    driver = drive(server.endpoint)
    opcua.until(lambda: attempts)
    assert "TooManySessions" in driver.sees(ReasonCode.LINK_DOWN).text
    assert driver.saw(ReasonCode.NO_SESSION_SLOT)
    opcua.until(lambda: pauses)
    assert pauses == [worker.NO_SLOT_PAUSE_S]
    assert worker.NO_SLOT_PAUSE_S >= 30.0
    time.sleep(1.5)
    assert len(attempts) == 1


def test_every_attempt_at_a_full_server_waits_as_long(
    full_server, opcua, drive, monkeypatch
) -> None:
    """Not the first alone: the usual pauses, which grow from a tenth of a second, never count."""
    monkeypatch.setattr(worker, "NO_SLOT_PAUSE_S", 0.8)
    server, attempts = full_server
    drive(server.endpoint)
    opcua.until(lambda: len(attempts) >= 4)
    assert min(b - a for a, b in pairwise(attempts)) >= 0.8


def test_opening_and_closing_leaves_no_thread_and_no_socket(opcua, drive) -> None:
    import threading
    from pathlib import Path

    server = opcua.server()
    drive(server.endpoint).up().link.close()
    threads, sockets = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        drive(server.endpoint).up().link.close()
    opcua.until(lambda: threading.active_count() <= threads)
    opcua.until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= sockets + 2)


def test_closing_is_quick_although_the_server_is_gone(opcua, drive) -> None:
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, opcua.tag_map(opcua.full_handshake())).up()
    driver.write(1.0)
    proxy.holds = True
    started = time.monotonic()
    driver.link.close()
    assert time.monotonic() - started < 8.0


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 22, 25])
def test_no_step_waits_for_ever(opcua, drive, pieces) -> None:
    """The peer vanishes at every stage of connecting, verifying and working: all are bounded."""
    server = opcua.server()
    proxy = opcua.proxy(server)
    proxy.hold_after = pieces
    driver = drive(proxy.endpoint, subscribe=True, request_timeout_s=0.3, connect_timeout_s=1.0)
    opcua.until(lambda: proxy.holds, what="the wire is held")
    driver.sees(ReasonCode.LINK_TIMEOUT)
    assert driver.read().link is not LinkState.UP
    proxy.holds = False
    proxy.cut()
    driver.up()


def test_a_reply_larger_than_allowed_is_not_taken_in(opcua, drive) -> None:
    """A20, S11: the memory a hostile server can make us use is capped."""
    server = opcua.server()
    driver = drive(server.endpoint, max_message_bytes=200_000).up()
    connects = driver.link.connects
    server.set("level", "x" * 1_000_000, kind=ua.VariantType.String)
    driver.down()
    server.set("level", 1.0)
    driver.up()
    assert driver.link.connects > connects


def test_a_chunk_that_announces_gigabytes_is_not_waited_for(opcua, drive, base) -> None:
    """A header may claim 4 GiB and then trickle: the connection is dropped at the header."""
    import asyncio
    import struct

    closed = []

    async def serve(reader, writer) -> None:
        await reader.read(4096)
        writer.write(struct.pack("<4sI", b"ACKF", 0xFFFFFF00) + b"x" * 100)
        closed.append(await reader.read(1) == b"")

    port = opcua.free_port()
    server = base.call(asyncio.start_server(serve, "127.0.0.1", port))
    driver = drive(f"opc.tcp://127.0.0.1:{port}/x", request_timeout_s=5.0, connect_timeout_s=5.0)
    took = opcua.until(lambda: closed, 10.0)
    assert closed[0]
    assert took < 4.0
    assert driver.read().link is not LinkState.UP
    base.loop.call_soon_threadsafe(server.close)


def test_a_bug_in_the_thread_is_told_and_does_not_end_the_link(opcua, drive, monkeypatch) -> None:
    """The death of a task becomes an alarm and a restart, never silence."""
    from steadyhand.adapters.opcua import worker

    genuine = worker.Worker._main
    failures = [RuntimeError("broken on purpose")]

    async def breaks_once(self) -> None:
        if failures:
            raise failures.pop()
        await genuine(self)

    monkeypatch.setattr(worker.Worker, "_main", breaks_once)
    server = opcua.server()
    driver = drive(server.endpoint)
    assert "broken on purpose" in driver.sees(ReasonCode.TASK_DIED).text
    driver.up()
    driver.write(5.0)
    opcua.until(lambda: server.get("valve") == 5.0)


def test_a_cancelled_await_inside_the_library_is_a_lost_link(opcua, drive) -> None:
    """The library cancels what waits when it closes a channel: that must not end our thread."""
    import asyncio

    server = opcua.server()
    driver = drive(server.endpoint).up()
    connects = driver.link.connects
    loop = driver.link._worker._loop

    def cancel_readers() -> None:
        for task in asyncio.all_tasks(loop):
            if task.get_name() in ("read", "write"):
                task.cancel()

    loop.call_soon_threadsafe(cancel_readers)
    opcua.until(lambda: driver.link.connects > connects)
    driver.up()
