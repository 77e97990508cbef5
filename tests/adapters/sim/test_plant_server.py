"""The plant behind a real server: encrypted reads and writes, lock-step, shed, restart."""

import asyncio
import json
import time
from datetime import UTC, datetime

import pytest
from asyncua import ua

from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.adapters.sim.plants import GAUGE_NOISE, RunSpec, make_runner
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.adapters.sim.server import parser
from steadyhand.adapters.sim.side_client import SideChannel
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import Source

U32 = ua.VariantType.UInt32


@pytest.fixture(scope="module")
def lockstep(start_server, tmp_path_factory):
    log = tmp_path_factory.mktemp("lockstep") / "writes.jsonl"
    process = start_server("--lockstep", "--seed", "3", "--log", str(log))
    process.log = log
    return process


@pytest.fixture(autouse=True)
def undisturbed(request):
    """Every test leaves the shared server as it found it."""
    yield
    if "lockstep" in request.fixturenames:
        process = request.getfixturevalue("lockstep")
        process.side.clear()
        process.side.grant(True)


def on(process, body):
    """Run `body(nodes)` with a connected client."""

    async def go():
        async with process.client() as nodes:
            nodes.beat = process.side.truth()["heartbeat"]
            return await body(nodes)

    return asyncio.run(go())


def test_nodes_carry_units_and_ranges(lockstep):
    async def body(nodes):
        node = nodes.node("storage_energy_kwh")
        found = {}
        for prop in await node.get_properties():
            found[(await prop.read_browse_name()).Name] = await prop.read_value()
        kind = await node.read_type_definition()
        parent = await node.get_parent()
        return found, kind, parent.nodeid, await node.read_data_type()

    found, kind, parent, data_type = on(lockstep, body)
    assert kind == ua.NodeId(ua.ObjectIds.AnalogItemType)
    assert data_type == ua.NodeId(ua.ObjectIds.Double)
    assert parent.Identifier == "thermal_storage"
    energy = make_runner(RunSpec()).plant.observations.signals[0]
    assert (found["EURange"].Low, found["EURange"].High) == (energy.low, energy.high)
    unit = found["EngineeringUnits"]
    assert unit.DisplayName.Text == "kWh"
    assert unit.UnitId == 0x4B5748  # "KWH", UNECE Recommendation 20


def test_each_new_heartbeat_advances_exactly_one_period(lockstep):
    async def body(nodes):
        start = lockstep.side.truth()["tick"]
        await nodes.drive(25.0)
        first = lockstep.side.truth()
        await nodes.drive(25.0, beat=nodes.beat)  # the same beat again
        await nodes.write(storage_discharge_kw=ua.Variant(30.0, ua.VariantType.Double))
        await nodes.write(control_request=ua.Variant(1, U32))
        repeated = lockstep.side.truth()
        await nodes.drive(35.0, beat=nodes.beat + 7)  # a jump is one beat
        return start, first, repeated, lockstep.side.truth()

    start, first, repeated, last = on(lockstep, body)
    assert first["tick"] == start + 1
    assert first["controlled"] and first["source"] == Source.POLICY
    assert first["applied"]["storage_discharge_kw"] == 25.0
    assert repeated["tick"] == start + 1
    assert repeated["command"]["storage_discharge_kw"] == 30.0
    assert last["tick"] == start + 2
    assert last["applied"]["storage_discharge_kw"] == 35.0


def test_published_image_is_the_simulated_one(lockstep):
    """The wire shows what the same plant computes in process, for the same commands."""

    async def body(nodes):
        await nodes.drive(40.0)
        names = make_runner(RunSpec(seed=3)).plant.observations.names
        return names, await nodes.data(*names, "sequence", "plant_time_s"), lockstep.side.truth()

    names, data, truth = on(lockstep, body)
    shown = {name: cell.Value.Value for name, cell in zip(names, data, strict=False)}
    gauge = "storage_energy_kwh"  # the only one with noise of its own
    assert shown.pop(gauge) == pytest.approx(
        truth["measurements"].pop(gauge), abs=6 * GAUGE_NOISE[gauge]
    )
    assert shown == truth["measurements"]
    runner = make_runner(RunSpec(seed=3))
    w = runner.disturbances[truth["tick"] % len(runner.disturbances)]
    assert shown["cooling_load_kw"] == w[0]
    assert data[-2].Value.Value == truth["sequence"]
    assert data[-1].Value.Value == truth["time_s"]
    stamps = {cell.SourceTimestamp for cell in data}
    assert len(stamps) == 1  # one coherent image
    assert all(cell.StatusCode.is_good() for cell in data)
    assert all(cell.ServerTimestamp is not None for cell in data)


def test_reads_never_see_half_an_image(lockstep):
    async def body(nodes):
        torn = []

        async def watch(other):
            for _ in range(60):
                data = await other.data("time_of_day_h", "plant_time_s", "sequence")
                hour, seconds, _ = (cell.Value.Value for cell in data)
                same = len({cell.SourceTimestamp for cell in data}) == 1
                if not same or hour != pytest.approx(seconds / 3600.0 % 24.0):
                    torn.append((hour, seconds))

        async with lockstep.client() as other:
            reader = asyncio.create_task(watch(other))
            for _ in range(40):
                await nodes.drive(0.0)
            await reader
        return torn

    assert on(lockstep, body) == []


def test_hands_off_leaves_the_plant_to_itself(lockstep):
    async def body(nodes):
        await nodes.drive(33.0)
        await nodes.drive(44.0, source=Source.HANDS_OFF)
        shown = await nodes.value("storage_discharge_kw")
        return lockstep.side.truth(), shown, await nodes.value("controller_active")

    truth, shown, active = on(lockstep, body)
    assert not truth["controlled"] and not active
    applied = truth["applied"]["storage_discharge_kw"]
    assert applied not in (33.0, 44.0)
    assert shown == applied  # the set-point follows the plant


def test_without_a_grant_nothing_is_obeyed_and_writes_are_counted(lockstep):
    before = lockstep.side.truth()["writes"]["ungranted"]
    lockstep.side.grant(False)

    async def body(nodes):
        granted = await nodes.value("control_granted")
        await nodes.drive(37.0)
        return granted

    assert on(lockstep, body) is False
    truth = lockstep.side.truth()
    assert not truth["controlled"]
    assert truth["applied"]["storage_discharge_kw"] != 37.0
    assert truth["writes"]["ungranted"] == before + 1


def test_shed_hands_the_plant_to_its_local_control(lockstep):
    async def body(nodes):
        await nodes.drive(12.0)
        within = lockstep.side.call("advance", periods=1)
        after = lockstep.side.call("advance", periods=1)
        active = await nodes.value("controller_active")
        await nodes.drive(13.0)
        return within, after, active, lockstep.side.truth()

    within, after, active, back = on(lockstep, body)
    # Beat at t, shed after 1800 s: the last command acts for two periods, then no more.
    assert within["applied"]["storage_discharge_kw"] == 12.0
    assert after["applied"]["storage_discharge_kw"] != 12.0 and not after["controlled"]
    assert active is False
    assert back["controlled"] and back["applied"]["storage_discharge_kw"] == 13.0
    lockstep.side.call("shed")
    assert not lockstep.side.truth()["controlled"]
    lockstep.side.call("advance", periods=1)  # so long no heartbeat counts

    async def again(nodes):
        await nodes.drive(14.0)

    on(lockstep, again)
    assert lockstep.side.truth()["controlled"]


def test_wrong_types_are_refused_and_logged(lockstep):
    async def body(nodes):
        return await nodes.write(storage_discharge_kw=ua.Variant(5, ua.VariantType.Int64))

    (status,) = on(lockstep, body)
    assert status.value == ua.StatusCodes.BadTypeMismatch
    row = json.loads(lockstep.log.read_text().splitlines()[-1])
    assert row["status"] == "BadTypeMismatch"
    assert (row["name"], row["value"], row["user"]) == ("storage_discharge_kw", 5.0, "controller")


def test_nonfinite_writes_arrive_are_logged_and_not_obeyed(lockstep):
    """A server like this one accepts NaN: nothing between controller and plant stops it."""
    before = lockstep.side.truth()["writes"]["nonfinite"]

    async def body(nodes):
        await nodes.drive(21.0)
        await nodes.drive(float("nan"))

    on(lockstep, body)
    truth = lockstep.side.truth()
    assert truth["writes"]["nonfinite"] == before + 1
    assert truth["applied"]["storage_discharge_kw"] == 21.0
    rows = [json.loads(line) for line in lockstep.log.read_text().splitlines()]
    written = [row for row in rows if row["name"] == "storage_discharge_kw"]
    assert [row["value"] for row in written[-2:]] == [21.0, "nan"]
    assert written[-1]["source"] == 0 and written[-1]["sequence"] == truth["heartbeat"]


@pytest.mark.parametrize(
    ("status", "value_stays"),
    [("UncertainLastUsableValue", True), ("BadSensorFailure", True), ("GoodLocalOverride", True)],
)
def test_quality_and_value_reach_the_client_together(lockstep, status, value_stays):
    lockstep.side.set_value("storage_energy_kwh", 123.5)
    lockstep.side.set_quality("storage_energy_kwh", status)

    async def body(nodes):
        return await nodes.data("storage_energy_kwh", "cooling_load_kw")

    cell, other = on(lockstep, body)
    assert cell.StatusCode.value == getattr(ua.StatusCodes, status)
    assert (cell.Value.Value == 123.5) is value_stays
    assert other.StatusCode.is_good()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9, None, "hot", [1.0, 2.0]])
def test_any_value_can_be_shown(lockstep, value):
    if isinstance(value, str):
        lockstep.side.call("type", signal="cooling_load_kw", type="String")
    lockstep.side.set_value("cooling_load_kw", value)

    async def body(nodes):
        return (await nodes.data("cooling_load_kw"))[0]

    shown = on(lockstep, body).Value.Value
    assert shown == value or (value != value and shown != shown)


def test_stamps_can_be_late_missing_or_old(lockstep):
    async def body(nodes):
        found = []
        for rule in ({"source": -30.0}, {"source": "none", "server": "none"},
                     {"source": "1970-01-01T00:00:00+00:00"}, {"source": 3600.0}):  # fmt: skip
            lockstep.side.call("stamp", signal="cooling_load_kw", **rule)
            found.append(await nodes.data("cooling_load_kw", "storage_energy_kwh"))
            lockstep.side.clear()
        return found

    late, missing, old, future = on(lockstep, body)

    def lag(pair):
        return (pair[1].SourceTimestamp - pair[0].SourceTimestamp).total_seconds()

    assert lag(late) == pytest.approx(30.0)
    assert missing[0].SourceTimestamp is None and missing[0].ServerTimestamp is None
    assert missing[1].SourceTimestamp is not None
    assert old[0].SourceTimestamp.year == 1970
    assert lag(future) == pytest.approx(-3600.0)


def test_type_unit_access_and_removal_can_change(lockstep):
    async def body(nodes):
        name = "load_forecast_12_kw"
        lockstep.side.call("type", signal=name, type="Int16")
        lockstep.side.set_value(name, 12)
        (cell,) = await nodes.data(name)
        declared = await nodes.node(name).read_data_type()
        lockstep.side.call("unit", signal=name, unit="degC")
        unit = await nodes.client.get_node(
            ua.NodeId(f"{name}.EngineeringUnits", nodes.index)
        ).read_value()
        lockstep.side.call("unit", signal=name, unit="kW")
        lockstep.side.call("clear", signal=name)
        back = await nodes.node(name).read_data_type(), (await nodes.data(name))[0]
        lockstep.side.call("access", signal="storage_discharge_kw", writable=False)
        value = ua.Variant(1.0, ua.VariantType.Double)
        (denied,) = await nodes.write(storage_discharge_kw=value)
        lockstep.side.call("access", signal="storage_discharge_kw", writable=True)
        (allowed,) = await nodes.write(storage_discharge_kw=value)
        return cell, declared, unit, back, denied, allowed

    cell, declared, unit, (kind, cell_back), denied, allowed = on(lockstep, body)
    assert cell.Value.VariantType == ua.VariantType.Int16 and cell.Value.Value == 12
    assert declared == ua.NodeId(ua.ObjectIds.Int16)
    assert unit.DisplayName.Text == "degC" and unit.UnitId == 0x43454C
    assert kind == ua.NodeId(ua.ObjectIds.Double)
    assert cell_back.Value.VariantType == ua.VariantType.Double
    assert denied.value == ua.StatusCodes.BadUserAccessDenied
    assert allowed.is_good()


def test_frozen_nodes_keep_value_and_stamp(lockstep):
    async def body(nodes):
        lockstep.side.call("freeze", signal="time_of_day_h")
        (before, _) = await nodes.data("time_of_day_h", "sequence")
        await nodes.drive(0.0)
        (after, sequence) = await nodes.data("time_of_day_h", "sequence")
        lockstep.side.call("freeze")
        await nodes.drive(0.0)
        (_, frozen) = await nodes.data("time_of_day_h", "sequence")
        return before, after, sequence, frozen

    before, after, sequence, frozen = on(lockstep, body)
    assert after == before
    assert frozen == sequence  # all frozen: subscriptions and reads show the same old image


def test_injected_faults_show_on_the_wire_and_lower_the_service_level(lockstep):
    async def body(nodes):
        level = nodes.client.get_node(ua.NodeId(ua.ObjectIds.Server_ServiceLevel))
        healthy = await level.read_value()
        lockstep.side.inject(SignalFault("cooling_load_kw", FaultKind.OFF))
        delay = {"delay_s": 900.0}
        now = lockstep.side.truth()["time_s"]
        lockstep.side.inject(
            SignalFault("storage_energy_kwh", FaultKind.DELAYED, now, parameters=delay)
        )
        clamp = {"low": -10.0, "high": 20.0}
        lockstep.side.inject(
            SignalFault("storage_discharge_kw", FaultKind.CLAMPED, parameters=clamp)
        )
        (energy,) = await nodes.data("storage_energy_kwh")
        await nodes.drive(50.0)
        names = ("cooling_load_kw", "storage_energy_kwh", "storage_discharge_kw", "sequence")
        return healthy, await level.read_value(), energy, await nodes.data(*names)

    healthy, degraded, energy, (load, delayed, clamped, sequence) = on(lockstep, body)
    assert healthy == 255 and degraded < 200
    assert load.StatusCode.is_bad() and load.Value.Value is None
    assert delayed.Value.Value == energy.Value.Value  # what was true one period ago
    lag = (sequence.SourceTimestamp - delayed.SourceTimestamp).total_seconds()
    assert lag == pytest.approx(900.0)
    assert clamped.Value.Value == 20.0
    assert lockstep.side.truth()["applied"]["storage_discharge_kw"] == 20.0


def test_limits_latency_and_server_state(lockstep):
    async def body(nodes):
        side = lockstep.side
        side.call("limit", nodes=2)
        limit = nodes.client.get_node(
            ua.NodeId(ua.ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead)
        )
        told = await limit.read_value()
        with pytest.raises(ua.UaStatusCodeError) as too_many:
            await nodes.data("sequence", "time_of_day_h", "plant_time_s")
        side.call("limit", nodes=0)
        side.call("latency", read_s=0.3)
        begun = time.monotonic()
        await nodes.value("sequence")
        took = time.monotonic() - begun
        side.call("latency")
        side.call("server_state", state="Suspended")
        state = await nodes.client.nodes.server_state.read_value()
        side.call("server_state", state="Running")
        return told, too_many.value.code, took, state

    told, code, took, state = on(lockstep, body)
    assert told == 2 and code == ua.StatusCodes.BadTooManyOperations
    assert took >= 0.3
    assert state == ua.ServerState.Suspended


def test_busy_and_strict_servers_refuse(lockstep):
    async def body(nodes):
        lockstep.side.call("busy", probability=0.5)
        codes = []
        for _ in range(60):
            try:
                await nodes.value("sequence")
                codes.append(0)
            except ua.UaStatusCodeError as error:
                codes.append(error.code)
        lockstep.side.call("busy", probability=0.0)
        lockstep.side.call("strict")
        value = ua.Variant(3.0, ua.VariantType.Double)
        stamped = ua.DataValue(value, SourceTimestamp=datetime.now(UTC))
        with pytest.raises(ua.UaStatusCodeError) as refused:
            await nodes.node("storage_discharge_kw").write_value(stamped)
        await nodes.node("storage_discharge_kw").write_value(ua.DataValue(value))
        lockstep.side.call("strict", on=False)
        return codes, refused.value.code

    codes, refused = on(lockstep, body)
    assert set(codes) == {0, ua.StatusCodes.BadServerTooBusy}
    assert 12 < codes.count(0) < 48  # Binomial(60, 0.5): sd 3.9
    assert refused == ua.StatusCodes.BadWriteNotSupported


def test_a_reply_can_come_after_the_client_gave_up(lockstep):
    async def body(nodes):
        lockstep.side.call("latency", reply_s=1.0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(nodes.drive(23.0), 0.3)
        lockstep.side.call("latency")

    on(lockstep, body)
    assert lockstep.side.truth()["applied"]["storage_discharge_kw"] == 23.0  # it acted all the same


def test_two_measurements_can_be_swapped(lockstep):
    lockstep.side.call("swap", signal="cooling_load_kw", other="outdoor_temperature_degc")

    async def body(nodes):
        return await nodes.data("cooling_load_kw", "outdoor_temperature_degc")

    load, outdoor = (cell.Value.Value for cell in on(lockstep, body))
    truth = lockstep.side.truth()["measurements"]
    assert load == truth["outdoor_temperature_degc"]
    assert outdoor == truth["cooling_load_kw"]


def test_sessions_can_be_dropped(lockstep):
    async def go():
        client = await lockstep.make_client()
        client.set_user("controller")
        client.set_password(lockstep.pki.password)
        await client.connect()
        try:
            assert lockstep.side.call("drop_sessions")["dropped"] >= 1
            with pytest.raises((ua.UaError, ConnectionError)):
                await client.get_namespace_array()
        finally:
            client.disconnect_socket()

    asyncio.run(go())


def test_a_paused_plant_shows_nothing_new(lockstep):
    """Free time passes, neither heartbeat nor image changes."""

    async def body(nodes):
        lockstep.side.call("pause")
        before = await nodes.data("plant_heartbeat", "sequence")
        await asyncio.sleep(2.2)
        after = await nodes.data("plant_heartbeat", "sequence")
        lockstep.side.call("pause", on=False)
        await asyncio.sleep(2.2)
        return before, after, await nodes.data("plant_heartbeat", "sequence")

    before, after, later = on(lockstep, body)
    assert after == before
    assert later[0].Value.Value > before[0].Value.Value  # alive again
    assert later[1].Value.Value == before[1].Value.Value  # but in lock-step nothing new


def test_subscriptions_get_every_image(lockstep):
    class Handler:
        def __init__(self):
            self.seen = []

        def datachange_notification(self, node, value, data):
            self.seen.append(value)

    async def body(nodes):
        handler = Handler()
        subscription = await nodes.client.create_subscription(20, handler)
        await subscription.subscribe_data_change(nodes.node("sequence"), queuesize=100)
        first = await nodes.value("sequence")
        for _ in range(5):
            await nodes.drive(0.0)
        for _ in range(100):
            if handler.seen and handler.seen[-1] == first + 5:
                break
            await asyncio.sleep(0.05)
        lockstep.side.call("silence")
        await nodes.drive(0.0)
        await asyncio.sleep(0.2)
        lockstep.side.call("silence", on=False)
        read = await nodes.value("sequence")
        await subscription.delete()
        return first, handler.seen, read

    first, seen, read = on(lockstep, body)
    assert seen == list(range(first, first + 6))
    assert read == first + 6  # silenced: reads go on, the subscription hears nothing


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (("fly", {}), "there are: access, advance"),
        (("set", {"signal": "nothing", "value": 1}), "no node 'nothing'; there are: storage_"),
        (("set", {"signal": "sequence"}), "value"),
        (("quality", {"signal": "sequence", "status": "Splendid"}), "Splendid"),
        (("fault", {"fault": {"signal": "cooling_load_kw", "kind": "odd"}}), "odd"),
        (("fault", {"fault": {"signal": "nothing", "kind": "off"}}), "nothing"),
        (("type", {"signal": "sequence", "type": "Int7"}), "Int7"),
        (("stamp", {"signal": "sequence", "source": "yesterday"}), "yesterday"),
        (("limit", {"nodes": "many"}), "many"),
    ],
)
def test_side_channel_refuses_and_goes_on(lockstep, request_, says):
    with pytest.raises(LinkError) as caught:
        lockstep.side.call(request_[0], **request_[1])
    assert says in str(caught.value)
    assert lockstep.side.truth()["granted"]


def test_side_channel_of_nobody(tmp_path):
    with pytest.raises(LinkError, match="nobody"):
        SideChannel(tmp_path / "nobody.sock")


def test_free_running_plant_keeps_its_time_and_sheds(start_server, wait_until):
    # 3600 plant seconds per second, sub-steps of 300 s; shed after half an hour = 0.5 s
    server = start_server("--time-scale", "3600", "--shed-s", "1800")
    side = server.side
    start, begun = side.truth()["time_s"], time.monotonic()

    async def body(nodes):
        await nodes.drive(17.0)
        driven = wait_until(lambda: side.truth()["applied"]["storage_discharge_kw"] == 17.0)
        beats = [await nodes.value("plant_heartbeat")]
        shed = wait_until(lambda: not side.truth()["controlled"])
        gone = wait_until(lambda: side.truth()["applied"]["storage_discharge_kw"] != 17.0)
        beats.append(await nodes.value("plant_heartbeat"))
        return driven, shed, gone, beats, await nodes.value("time_scale")

    driven, shed, gone, beats, scale = on(server, body)
    assert driven and shed and gone
    assert beats[1] > beats[0]
    assert scale == 3600.0
    truth, took = side.truth(), time.monotonic() - begun
    passed = truth["time_s"] - start
    # Never ahead of the wall clock; behind it only by what the busy machine made slip.
    assert 0.0 < passed <= took * 3600.0 + 300.0
    assert passed + 300.0 * truth["slipped"] >= 0.5 * took * 3600.0


def test_killed_server_resumes_the_plant_with_namespaces_in_another_order(start_server, tmp_path):
    state = tmp_path / "state.json"
    common = ("--lockstep", "--seed", "9", "--state", str(state), "--dummy-namespaces", "2")
    fault = SignalFault("storage_energy_kwh", FaultKind.WRONG, parameters={"bias": 40.0})

    async def drive(nodes, values):
        for value in values:
            await nodes.drive(value)
        return nodes.index, await nodes.value("storage_energy_kwh")

    reference = make_runner(RunSpec(seed=9, faults=(fault,)))
    reference.requested, reference.source = True, Source.POLICY
    for beat, value in enumerate((20.0, 40.0, 60.0, 80.0), start=1):
        reference.write(0, value)
        reference.beat(beat)
        reference.advance()

    first = start_server(*common, "--namespace-order", "0")
    assert not first.ready["resumed"]
    first.side.inject(fault)
    index, _ = on(first, lambda nodes: drive(nodes, (20.0, 40.0)))
    before = first.side.truth()
    first.kill()

    second = start_server(*common, "--namespace-order", "2")
    assert second.ready["resumed"]
    after = second.side.truth()
    for same in ("state", "time_s", "tick", "cost", "heartbeat", "applied", "measurements"):
        assert after[same] == before[same], same
    assert not after["controlled"]

    async def stale_and_on(nodes):
        stale = nodes.client.get_node(ua.NodeId("storage_energy_kwh", index))
        wrong = await stale.read_value()  # no error: another variable answers
        return wrong, *await drive(nodes, (60.0, 80.0))

    wrong, new_index, energy = on(second, stale_and_on)
    assert new_index == index + 2
    energy_signal = reference.plant.observations.signals[0]
    assert wrong == 0.5 * (energy_signal.low + energy_signal.high)  # the decoy
    truth = second.side.truth()
    assert truth["state"] == reference.x.tolist()
    assert truth["cost"] == reference.cost
    assert energy == reference.image.values[0]  # the injected fault was resumed too


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"plant": "teapot", "beats": 0}', "'teapot', not 'thermal_storage'"),
        ('{"plant": "thermal_sto', "remove the file"),
        ('{"beats": 0}', "remove the file"),
    ],
)
def test_a_state_that_is_none_is_refused(start_server, tmp_path, content, says):
    state = tmp_path / "state.json"
    state.write_text(content)
    with pytest.raises(LinkError, match="did not start") as caught:
        start_server("--lockstep", "--state", str(state))
    assert says in str(caught.value)
    assert state.read_text() == content  # not overwritten: somebody may want to look at it


def test_terminated_process_ends_in_order(tmp_path):
    with PlantProcess(tmp_path / "plant", "--lockstep") as process:
        made = make_pki(tmp_path / "plant", "thermal_storage")
        assert process.pki == made  # what the process made is found again
        assert process.side.truth()["tick"] == 0
        assert process.stop() == 0
    assert process.errors.read_text() == ""
    assert not (tmp_path / "plant" / "side.sock").exists()


def test_stop_ends_the_process_in_order(start_server, tmp_path):
    state = tmp_path / "state.json"
    server = start_server("--lockstep", "--state", str(state))
    server.side.call("stop")
    assert server.child.wait(20) == 0
    assert server.errors.read_text() == ""
    assert json.loads(state.read_text())["plant"] == "thermal_storage"


def test_faults_can_come_from_a_file(start_server, tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"signal": "cooling_load_kw", "kind": "garbage"}]')
    server = start_server("--lockstep", "--faults", str(path))

    async def body(nodes):
        return await nodes.value("cooling_load_kw")

    value = on(server, body)
    assert value != value  # NaN, with good quality


def test_removed_node_is_gone_and_the_rest_lives(start_server):
    server = start_server("--lockstep")
    server.side.call("remove", signal="load_forecast_03_kw")

    async def body(nodes):
        await nodes.drive(5.0)
        return await nodes.data("load_forecast_03_kw", "sequence")

    gone, sequence = on(server, body)
    assert gone.StatusCode.value == ua.StatusCodes.BadNodeIdUnknown
    assert sequence.StatusCode.is_good() and sequence.Value.Value > 0


def test_help_names_every_option():
    text = parser().format_help()
    for option in ("--lockstep", "--time-scale", "--state", "--shed-s", "--dummy-namespaces"):
        assert option in text
