"""What reaches the plant, what does not, and what is told about it."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from asyncua import ua
from asyncua.common.utils import ServiceError

from steadyhand.adapters.opcua.tags import Handshake, OutputTag
from steadyhand.controllers.frames import LinkState, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet


def control(opcua, **outputs):
    return opcua.tag_map(opcua.full_handshake("sequence", "plant_time"), **outputs)


def test_a_command_carries_request_source_and_a_heartbeat_that_changes(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0, source=Source.FALLBACK)
    opcua.until(lambda: plant.get("valve") == 10.0)
    opcua.until(lambda: plant.get("source") == Source.FALLBACK)
    assert plant.get("request") is True
    first = plant.get("heartbeat")
    driver.write(10.0)
    opcua.until(lambda: plant.get("heartbeat") != first)


def test_with_hands_off_only_the_heartbeat_goes_out(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    plant.set("valve", 33.0)  # the plant has its own control
    before = plant.get("heartbeat")
    sent = driver.write(90.0, source=Source.HANDS_OFF)
    assert not sent.written
    opcua.until(lambda: plant.get("heartbeat") != before)
    assert plant.get("valve") == 33.0
    assert plant.get("source") == Source.HANDS_OFF
    opcua.until(lambda: driver.read().applied[0] == 33.0)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


def test_release_clears_the_request_and_stops_the_heartbeat(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True)
    driver.link.release()
    assert plant.get("request") is False
    assert plant.get("source") == Source.HANDS_OFF
    beat = plant.get("heartbeat")
    time.sleep(0.5)
    assert plant.get("heartbeat") == beat


def test_after_a_release_during_a_write_the_plant_may_move_its_outputs(plant, opcua, drive) -> None:
    """What the write remembers when it ends must not be held against the plant."""
    driver = drive(plant.endpoint, control(opcua), period_s=2.0).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("valve") == 10.0)
    slow = asyncio.Event()

    async def slowly(_event):
        slow.set()
        await asyncio.sleep(0.1)

    plant.before("PreWrite", slowly)
    driver.write(20.0)
    opcua.until(slow.is_set)
    driver.link.release()  # while the plant still thinks about the write
    opcua.until(lambda: plant.get("request") is False)
    assert plant.get("valve") == 20.0
    plant.set("valve", 33.0)
    opcua.until(lambda: driver.read().applied[0] == 33.0)
    time.sleep(0.3)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


class Busy:
    """A server that is too busy for some writes, and remembers those it took, in order."""

    def __init__(self, plant, name: str, times: int = 10**6) -> None:
        self.left, self.hits, self._name, self.taken = times, 0, name, []
        plant.before("PreWrite", self._refuse)
        plant.on_write(lambda event: self.taken.append(self._said(event)))

    @staticmethod
    def _said(event) -> dict:
        items = event.request_params.NodesToWrite
        return {item.NodeId.Identifier: item.Value.Value.Value for item in items}

    async def _refuse(self, event) -> None:
        said = self._said(event)
        if self._name in said and self.left > 0 and said.get("request") is not True:
            self.hits, self.left = self.hits + 1, self.left - 1
            raise ServiceError(ua.StatusCodes.BadServerTooBusy)


def test_no_command_from_before_a_release_is_sent_after_it(plant, opcua, drive) -> None:
    """A busy server is asked again, but not once the plant has been handed back."""
    driver = drive(plant.endpoint, control(opcua), command_life_s=30.0, request_timeout_s=10.0).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True and plant.get("valve") == 10.0)
    driver.link.release()
    assert plant.get("request") is False
    busy = Busy(plant, "valve")
    driver.write(20.0)
    opcua.until(lambda: busy.hits > 0)
    driver.link.release()
    busy.left = 0
    opcua.until(lambda: any(said.get("request") is False for said in busy.taken))
    time.sleep(0.5)  # a retry would come within a fraction of that
    assert plant.get("request") is False
    assert plant.get("valve") == 10.0
    assert all("valve" not in said for said in busy.taken)
    driver.write(30.0)  # whoever wants it again gets it again
    opcua.until(lambda: plant.get("valve") == 30.0 and plant.get("request") is True)


def test_a_release_that_is_refused_is_tried_again_and_told(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True)
    busy = Busy(plant, "request", times=3)
    driver.link.release()
    opcua.until(lambda: plant.get("request") is False)
    assert busy.hits == 3
    assert plant.get("source") == Source.HANDS_OFF
    opcua.until(lambda: driver.saw(ReasonCode.WRITE_FAILED))
    assert "handed back" in driver.fault(ReasonCode.WRITE_FAILED).text


def test_a_hand_back_that_is_refused_is_an_answer_and_stays_told(plant, opcua, drive) -> None:
    """The command that was withdrawn with it waits for nothing: the link is alive."""
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True)
    busy = Busy(plant, "request")
    driver.write(11.0, source=Source.HANDS_OFF)
    driver.link.release()
    opcua.until(lambda: busy.hits > 10, what="many attempts")
    link, worker = driver.link, driver.link._worker
    for _ in range(2):  # as long as it lasts, not once
        told = {one.text for one in link.read(0.0).faults if one.code is ReasonCode.WRITE_FAILED}
        assert len(told) == 1
        assert "handed back: the server was too busy" in told.pop()
        assert worker.owes
        assert worker.settled == link._put, "whatever was withdrawn is answered"
        hits = busy.hits
        opcua.until(lambda: busy.hits > hits)  # noqa: B023
    busy.left = 0
    opcua.until(lambda: plant.get("request") is False)
    opcua.until(lambda: ReasonCode.WRITE_FAILED not in driver.codes())


def test_the_end_waits_until_a_busy_plant_knows_that_it_is_handed_back(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True)

    reading = asyncio.Event()

    async def slowly(event) -> None:
        del event
        reading.set()
        await asyncio.sleep(0.7)

    plant.before("PreRead", slowly)
    opcua.until(reading.is_set)
    driver.link.close()
    assert plant.get("request") is False


def test_a_plant_that_was_away_is_told_first_of_all_that_it_is_handed_back(opcua, drive) -> None:
    server = opcua.server()
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: server.get("request") is True)
    proxy.holds = True
    opcua.until(lambda: driver.read().link is not LinkState.UP)
    driver.link.release()
    assert server.get("request") is True, "nothing gets through"
    proxy.cut()
    proxy.holds = False
    opcua.until(lambda: server.get("request") is False)
    assert server.get("source") == Source.HANDS_OFF
    assert driver.up().write(20.0).written
    opcua.until(lambda: server.get("request") is True and server.get("valve") == 20.0)


def test_an_end_without_a_plant_says_that_it_could_not_be_told(opcua, drive, caplog) -> None:
    proxy = opcua.proxy(opcua.server())
    driver = drive(proxy.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: driver.read().applied[0] == 10.0)
    proxy.holds = True
    opcua.until(lambda: driver.read().link is not LinkState.UP)
    driver.link.close()
    assert "could not be told that it is handed back" in caplog.text


def test_a_command_that_is_not_answered_in_time_is_told(opcua, drive) -> None:
    """Nobody knows then between which two images it arrives."""
    proxy = opcua.proxy(opcua.server())
    driver = drive(proxy.endpoint, request_timeout_s=3.0, command_life_s=0.6).up()
    driver.write(10.0)
    opcua.until(lambda: driver.read().applied[0] == 10.0)
    assert not driver.saw(ReasonCode.WRITE_LATE)
    proxy.holds = True
    driver.write(20.0)
    assert ReasonCode.WRITE_LATE not in {fault.code for fault in driver.read().faults}
    time.sleep(0.35)
    (late,) = (one for one in driver.read().faults if one.code == ReasonCode.WRITE_LATE)
    assert 0.3 <= late.value < 3.0
    assert late.limit == 0.6
    proxy.cut()  # what it held is gone
    proxy.holds = False
    opcua.until(lambda: driver.read().link is LinkState.UP)
    opcua.until(lambda: ReasonCode.WRITE_LATE not in {one.code for one in driver.read().faults})


def test_close_releases_and_is_idempotent(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(10.0)
    opcua.until(lambda: plant.get("request") is True)
    driver.link.close()
    driver.link.close()
    assert plant.get("request") is False
    assert not driver.write(20.0).written
    assert plant.get("valve") == 10.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_reaches_the_plant(plant, opcua, drive, bad) -> None:
    """Fact 3: client and server library would pass it on."""
    driver = drive(plant.endpoint).up()
    for valve, pump, name in ((bad, 0.0, "valve"), (0.0, bad, "pump")):
        sent = driver.write(valve, pump)
        assert not sent.written
        assert [(f.code, f.signal) for f in sent.faults] == [(ReasonCode.ACT_NONFINITE, name)]
    assert driver.write(1.0).written
    opcua.until(lambda: plant.get("valve") == 1.0)


def test_nothing_outside_its_limits_reaches_the_plant(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint).up()
    sent = driver.write(100.1)
    assert not sent.written
    assert sent.faults[0].code is ReasonCode.ACT_RANGE
    assert sent.faults[0].limit == 100.0
    sent = driver.write(np.nextafter(100.0, 200.0))  # one ulp of rounding is not an error
    assert sent.written
    assert sent.action[0] == 100.0
    assert not driver.write(-0.5).written


def test_sent_is_the_value_as_the_wire_type_holds_it(plant, opcua, drive) -> None:
    """F9, F11: Float32 rounding, inside the limits as stored."""
    driver = drive(plant.endpoint).up()
    sent = driver.write(50.0, 0.1)
    assert sent.action[1] == float(np.float32(0.1)) != 0.1
    opcua.until(lambda: plant.get("pump") == sent.action[1])
    time.sleep(0.3)
    assert not driver.saw(ReasonCode.WRITE_CLAMPED)


def test_every_declared_type_can_be_written(opcua, drive) -> None:
    """Fact 5 and F9: Int16, UInt32 and Boolean set-points, range-checked first."""
    for name, value, expected in (
        ("Int16", 41.6, 42),
        ("UInt32", 99.9, 100),
        ("SByte", 7.2, 7),
        ("Float", 12.5, 12.5),
    ):
        kind = ua.VariantType[name]
        server = opcua.server(types={"valve": kind})
        tags = opcua.tag_map(valve=OutputTag(address=opcua.node("valve"), wire_type=name))
        driver = drive(server.endpoint, tags).up()
        sent = driver.write(value)
        assert sent.action[0] == expected
        opcua.until(lambda s=server, e=expected: s.get("valve") == e)
        driver.link.close()
        server.stop()


def test_a_scaled_integer_and_a_boolean_are_written_and_read_back(opcua, drive) -> None:
    """Tenths in an Int16 with a feedback of its own type, and a pump that is on or off."""
    types = {"valve": ua.VariantType.Int16, "pump": ua.VariantType.Boolean}
    server = opcua.server(types=types)
    tags = opcua.tag_map(
        valve=OutputTag(address=opcua.node("valve"), wire_type="Int16", scale=0.1),
        pump=OutputTag(address=opcua.node("pump"), wire_type="Boolean", scale=10.0),
    )
    outputs = SignalSet((tags.output_signals.signals[0], Signal("pump", "%", 0.0, 10.0)))
    driver = drive(server.endpoint, replace(tags, output_signals=outputs)).up()
    for valve, pump, shown in ((41.64, 8.0, (416, True)), (0.04, 4.0, (0, False))):
        sent = driver.write(valve, pump)
        assert sent.action.tolist() == [shown[0] * 0.1, 10.0 * shown[1]]
        opcua.until(lambda s=shown: (server.get("valve"), server.get("pump")) == s)
        opcua.until(lambda a=sent.action: (driver.read().applied == a).all())
    told = {fault.code for fault in driver.read().faults}
    assert not told & {ReasonCode.WRITE_CLAMPED, ReasonCode.WRITE_CONTENTION}


def test_an_output_range_the_wire_type_cannot_hold_is_refused(opcua, drive) -> None:
    """40000 into an Int16: found while verifying, not while writing."""
    server = opcua.server(types={"valve": ua.VariantType.Int16})
    valve = OutputTag(address=opcua.node("valve"), wire_type="Int16", scale=0.001)
    driver = drive(server.endpoint, opcua.tag_map(valve=valve))
    assert "do not fit Int16" in driver.sees(ReasonCode.TAG_TYPE).text


def test_a_batch_that_half_succeeds_is_told_by_node(plant, opcua, drive) -> None:
    """Fact 4: the good one is written although the call as a whole looks failed."""
    driver = drive(plant.endpoint).up()

    async def forbid() -> None:
        node = plant.server.get_node(ua.NodeId("pump", plant.index))
        await node.set_read_only()

    plant.call(forbid())
    driver.write(60.0, 2.0)
    fault = driver.sees(ReasonCode.WRITE_PARTIAL)
    assert fault.text == "written: valve; refused: pump"
    assert driver.fault(ReasonCode.WRITE_DENIED).signal == "pump"
    opcua.until(lambda: plant.get("valve") == 60.0)
    assert plant.get("pump") == 0.0
    assert driver.read().applied[1] == 0.0


def test_rights_taken_away_are_told_and_forgiven(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint).up()
    nodes = [plant.server.get_node(ua.NodeId(n, plant.index)) for n in ("valve", "pump")]
    for node in nodes:
        plant.call(node.set_read_only())
    driver.write(60.0)
    assert driver.sees(ReasonCode.WRITE_DENIED).signal in ("valve", "pump")
    assert plant.get("valve") == 0.0
    for node in nodes:
        plant.call(node.set_writable())
    driver.write(60.0)
    driver.clears(ReasonCode.WRITE_DENIED)


def test_a_value_the_plant_changes_is_told_as_clamped_and_then_counts(plant, opcua, drive) -> None:
    """F3: internal state uses the real value, and it is not mistaken for a second writer."""

    async def clamp(event) -> None:
        for item in event.request_params.NodesToWrite:
            if item.NodeId.Identifier == "valve" and item.Value.Value.Value > 80.0:
                await plant._set("valve", 80.0)

    plant.on_write(clamp)
    driver = drive(plant.endpoint).up()
    driver.write(95.0)
    fault = driver.sees(ReasonCode.WRITE_CLAMPED)
    assert (fault.signal, fault.value, fault.limit) == ("valve", 80.0, 95.0)
    assert driver.read().applied[0] == 80.0
    time.sleep(0.5)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


def test_a_plant_that_took_its_outputs_back_after_our_silence_is_no_second_writer(
    plant, opcua, drive
) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(60.0)
    opcua.until(lambda: plant.get("valve") == 60.0)
    period_s = driver.link._settings.period_s
    time.sleep(1.7 * period_s)  # no heartbeat: the plant sheds us
    plant.set("valve", 33.0)
    opcua.until(lambda: driver.read().applied[0] == 33.0)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


def test_an_actuator_that_does_not_follow_is_told(plant, opcua, drive) -> None:
    valve = OutputTag(
        address=opcua.node("valve"),
        feedback=opcua.tag("valve_position"),
        follow_tolerance=1.0,
        follow_time_s=0.3,
    )
    driver = drive(plant.endpoint, opcua.tag_map(valve=valve)).up()
    assert driver.read().applied[0] == 0.0
    driver.write(40.0)
    fault = driver.sees(ReasonCode.ACT_NOFOLLOW)
    assert (fault.signal, fault.value) == ("valve", 40.0)
    assert driver.read().applied[0] == 0.0
    plant.set("valve_position", 39.5)
    driver.clears(ReasonCode.ACT_NOFOLLOW)
    assert driver.read().applied[0] == 39.5


def test_a_second_writer_is_seen(plant, opcua, drive) -> None:
    """F4: somebody else changes an output that we drive."""
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(40.0)
    opcua.until(lambda: driver.read().applied[0] == 40.0)
    plant.set("valve", 12.0)
    fault = driver.sees(ReasonCode.WRITE_CONTENTION)
    assert (fault.signal, fault.value, fault.limit) == ("valve", 12.0, 40.0)
    driver.write(40.0)
    driver.clears(ReasonCode.WRITE_CONTENTION)


def test_a_plant_that_withdraws_its_grant_may_move_its_outputs(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(40.0)
    opcua.until(lambda: driver.read().applied[0] == 40.0)
    driver.forget()
    plant.set("granted", False)
    plant.set("valve", 5.0)
    opcua.until(lambda: driver.read().applied[0] == 5.0)
    time.sleep(0.3)
    # seen in the same read as the withdrawal, or later: never a second writer
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


def test_the_newest_command_replaces_an_unsent_one(plant, opcua, drive) -> None:
    """Nothing queues: while the server is slow, only the last command waits."""
    driver = drive(plant.endpoint, command_life_s=5.0, request_timeout_s=5.0).up()
    seen: list[float] = []
    plant.on_write(
        lambda event: seen.extend(
            item.Value.Value.Value
            for item in event.request_params.NodesToWrite
            if item.NodeId.Identifier == "valve"
        )
    )

    async def slow(_event) -> None:
        await asyncio.sleep(0.3)

    plant.before("PreWrite", slow)
    for value in range(1, 11):
        driver.write(float(value))
        time.sleep(0.01)
    opcua.until(lambda: plant.get("valve") == 10.0)
    assert seen[-1] == 10.0
    assert len(seen) <= 3
    assert driver.link.overtaken >= 7


def test_a_command_past_its_life_is_dropped(plant, opcua, drive) -> None:
    """F7: the write before it blocks for longer than it may live."""
    driver = drive(plant.endpoint, command_life_s=0.2, request_timeout_s=5.0).up()
    hold = True

    async def slow(_event) -> None:
        while hold:
            await asyncio.sleep(0.02)

    plant.before("PreWrite", slow)
    driver.write(1.0)
    time.sleep(0.1)
    driver.write(2.0)
    time.sleep(0.6)
    hold = False
    fault = driver.sees(ReasonCode.WRITE_STALE_DROP)
    assert fault.value > 0.0
    time.sleep(0.3)
    assert plant.get("valve") == 1.0


def test_a_reply_that_is_lost_is_read_back_before_anything_else(plant, opcua, drive) -> None:
    """F8: the value was applied, the answer never came; nothing is repeated."""
    driver = drive(plant.endpoint, request_timeout_s=0.4).up()
    writes: list[float] = []

    async def lose_the_reply(event) -> None:
        writes.append(event.request_params.NodesToWrite[0].Value.Value.Value)
        if len(writes) == 1:
            await asyncio.sleep(1.5)

    plant.on_write(lose_the_reply)
    driver.write(70.0)
    assert "reading back" in driver.sees(ReasonCode.WRITE_UNKNOWN).text
    opcua.until(lambda: driver.read().applied[0] == 70.0)
    assert writes == [70.0]
    driver.up()
    driver.write(71.0)
    opcua.until(lambda: plant.get("valve") == 71.0)
    assert writes == [70.0, 71.0]


def test_writes_carry_a_value_and_nothing_else(plant, opcua, drive) -> None:
    """F10: servers may refuse written stamps and status."""
    extras: list[object] = []

    async def strict(event) -> None:
        for item in event.request_params.NodesToWrite:
            value = item.Value
            extras.append((value.SourceTimestamp, value.ServerTimestamp, value.Encoding))

    driver = drive(plant.endpoint).up()
    plant.before("PreWrite", strict)
    driver.write(5.0)
    opcua.until(lambda: len(extras) >= 2)
    assert {(source, server) for source, server, _ in extras} == {(None, None)}


def test_a_heartbeat_the_plant_does_not_take_is_told(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, control(opcua)).up()
    node = plant.server.get_node(ua.NodeId("heartbeat", plant.index))
    plant.call(node.set_read_only())
    driver.write(5.0)
    assert driver.sees(ReasonCode.WRITE_DENIED).signal == "heartbeat"


def test_only_configured_nodes_are_ever_written(plant, opcua, drive) -> None:
    """S10: whatever is asked, no other node is touched."""
    written: set[str] = set()
    plant.on_write(
        lambda event: written.update(
            str(item.NodeId.Identifier) for item in event.request_params.NodesToWrite
        )
    )
    driver = drive(plant.endpoint, opcua.tag_map(Handshake())).up()
    generator = np.random.default_rng(0)
    for _ in range(30):
        driver.write(*generator.uniform(-20.0, 120.0, 2), source=int(generator.integers(0, 5)))
        time.sleep(0.01)
    opcua.until(lambda: written)
    assert written <= {"valve", "pump"}


@pytest.mark.parametrize("refused", ["valve", "pump"])
@pytest.mark.parametrize("without", [(), ("source",)])
def test_a_plant_that_refuses_a_set_point_is_not_taken_over(
    plant, opcua, drive, refused, without
) -> None:
    """It would follow the set-points of another time; so it keeps its own control, and sees us."""
    order = []
    plant.on_write(
        lambda event: order.extend(
            (item.NodeId.Identifier, item.Value.Value.Value)
            for item in event.request_params.NodesToWrite
        )
    )
    driver = drive(plant.endpoint, opcua.tag_map(opcua.full_handshake(*without))).up()
    node = plant.server.get_node(ua.NodeId(refused, plant.index))
    plant.call(node.set_read_only())
    driver.write(60.0, 2.0)
    assert driver.sees(ReasonCode.WRITE_DENIED).signal == refused
    names = [name for name, _ in order]
    if without:
        assert names == ["valve", "pump"]
    else:
        assert names == ["valve", "pump", "request", "source", "heartbeat"]
        assert dict(order)["source"] == Source.HANDS_OFF
    # once it takes them it is taken over, set-points first; then all goes out together
    plant.call(node.set_writable())
    order.clear()
    driver.write(61.0, 2.0)
    opcua.until(lambda: "heartbeat" in [name for name, _ in order], what="a heartbeat")
    signs = ["request", *([] if without else ["source"]), "heartbeat"]
    assert [name for name, _ in order] == ["valve", "pump", *signs]
    assert dict(order).get("source", Source.POLICY) == Source.POLICY
    assert plant.get("valve") == 61.0


def test_a_plant_that_hears_no_heartbeat_may_move_its_outputs(plant, opcua, drive) -> None:
    """Set-points are taken, heartbeats are refused: it took itself back, and is no other writer."""
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(50.0)
    opcua.until(lambda: plant.get("valve") == 50.0)
    node = plant.server.get_node(ua.NodeId("heartbeat", plant.index))
    plant.call(node.set_read_only())
    for _ in range(4):
        driver.write(50.0)
        time.sleep(0.15)
    assert driver.saw(ReasonCode.WRITE_DENIED)
    plant.set("valve", 20.0)
    time.sleep(0.5)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)


@pytest.mark.parametrize("how", ["grant", "silence"])
def test_a_plant_that_had_itself_in_between_is_taken_over_anew(plant, opcua, drive, how) -> None:
    """Nobody told it hands off: it took the grant away for a moment, or heard nothing for long."""
    driver = drive(plant.endpoint, control(opcua)).up()
    driver.write(50.0)
    opcua.until(lambda: plant.get("valve") == 50.0)
    if how == "grant":
        plant.set("granted", False)
        opcua.until(lambda: not driver.read().granted, what="no grant")
        plant.set("granted", True)
        opcua.until(lambda: driver.read().granted, what="the grant")
    else:
        time.sleep(0.6)  # three periods
    plant.set("valve", 20.0)
    order = []
    plant.on_write(
        lambda event: order.append([n.NodeId.Identifier for n in event.request_params.NodesToWrite])
    )
    driver.write(51.0)
    opcua.until(lambda: len(order) == 2, what="two writes")
    assert order == [["valve", "pump"], ["request", "source", "heartbeat"]]
    driver.write(52.0)
    opcua.until(lambda: len(order) == 3, what="a third one")
    assert order[2] == ["valve", "pump", "request", "source", "heartbeat"]
