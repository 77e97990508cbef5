"""What is read from the plant, and how good it is said to be."""

import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from asyncua import ua

from steadyhand.adapters.opcua.tags import Freshness, Handshake
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.freshness import Freshness as ImageJudge

BOTH_WAYS = pytest.mark.parametrize("subscribe", [False, True], ids=["read", "subscribe"])


@BOTH_WAYS
def test_bad_uncertain_null_and_wrong_type_are_seen_and_the_others_stay_usable(
    plant, opcua, drive, subscribe
) -> None:
    """Fact 1: a bulk read of bare values hides a Bad status as None and Uncertain as good."""
    driver = drive(plant.endpoint, subscribe=subscribe).up()
    opcua.until(lambda: driver.read().values[1] == 2.0)

    plant.set("level", None, status=ua.StatusCodes.BadCommunicationError)
    fault = driver.sees(ReasonCode.SAMPLE_BAD)
    assert fault.signal == "level"
    assert "BadCommunicationError" in fault.text
    observation = driver.read()
    assert np.isnan(observation.values[0])
    np.testing.assert_array_equal(observation.quality, [Quality.BAD, Quality.GOOD, Quality.GOOD])
    np.testing.assert_array_equal(observation.values[1:], [2.0, 3.0])

    plant.set("level", 7.0, status=ua.StatusCodes.UncertainLastUsableValue)
    assert "UncertainLastUsableValue" in driver.sees(ReasonCode.SAMPLE_UNCERTAIN).text
    observation = driver.read()
    assert observation.quality[0] == Quality.UNCERTAIN
    assert observation.values[0] == 7.0

    for wrong in (
        {"value": None},
        {"value": "7.0", "kind": ua.VariantType.String},
        {"value": [], "kind": ua.VariantType.Double},
        {"value": [7.0], "kind": ua.VariantType.Double},
        {"value": 7, "kind": ua.VariantType.Int16},
        {"value": 7.0, "kind": ua.VariantType.Float},
    ):
        plant.set("level", 8.0)
        driver.clears(ReasonCode.SAMPLE_TYPE)
        plant.set("level", **wrong)
        driver.forget()
        assert driver.sees(ReasonCode.SAMPLE_TYPE).signal == "level", wrong
        observation = driver.read()
        assert observation.quality[0] == Quality.BAD
        assert np.isnan(observation.values[0])

    plant.set("level", 9.0)
    driver.clears(ReasonCode.SAMPLE_TYPE)
    assert driver.read().values[0] == 9.0
    assert driver.read().quality[0] == Quality.GOOD


FORCED = ("GoodLocalOverride", "GoodEdited", "GoodFaultStateActive", "GoodInitiateFaultState")


@BOTH_WAYS
def test_a_value_that_somebody_forces_is_told_and_not_taken_for_a_measurement(
    plant, opcua, drive, subscribe
) -> None:
    """Good is what the two upper bits say; the rest says that the process did not put it there."""
    driver = drive(plant.endpoint, subscribe=subscribe).up()
    judge = ImageJudge(opcua.tag_map().observation_signals)
    for name in FORCED:
        plant.set("level", 7.0)
        driver.clears(ReasonCode.TAG_FORCED)
        plant.set("level", 8.0, status=getattr(ua.StatusCodes, name))
        driver.forget()
        fault = driver.sees(ReasonCode.TAG_FORCED)
        assert (fault.signal, fault.text) == ("level", f"level: {name}")
        observation = driver.read()
        assert observation.values[0] == 8.0
        expected = [Quality.UNCERTAIN, Quality.GOOD, Quality.GOOD]
        np.testing.assert_array_equal(observation.quality, expected)
        judged = judge.check(observation)
        assert [(f.code, f.signal) for f in judged] == [(ReasonCode.TAG_FORCED, "level")]


@pytest.mark.parametrize("name", ["GoodClamped", "GoodOverload", "GoodSubNormal", "Good"])
def test_other_words_of_good_are_good(plant, opcua, drive, name) -> None:
    driver = drive(plant.endpoint).up()
    plant.set("level", 8.0, status=getattr(ua.StatusCodes, name))
    opcua.until(lambda: driver.read().values[0] == 8.0)
    assert driver.read().quality[0] == Quality.GOOD
    assert not {f.code for f in driver.read().faults} & {ReasonCode.TAG_FORCED}


def test_a_forced_value_is_used_where_the_configuration_says_so_and_told_all_the_same(
    plant, opcua, drive
) -> None:
    tags = opcua.tag_map(level=opcua.tag("level", use_forced=True))
    driver = drive(plant.endpoint, tags).up()
    plant.set("level", 8.0, status=ua.StatusCodes.GoodLocalOverride)
    fault = driver.sees(ReasonCode.TAG_FORCED_USED)
    assert fault.text == "level: GoodLocalOverride"
    observation = driver.read()
    assert (observation.values[0], observation.quality[0]) == (8.0, Quality.GOOD)
    assert ImageJudge(tags.observation_signals).check(observation) == ()
    # also with the bits of a limit beside it, which are no part of the code
    plant.set("level", 9.0, status=ua.StatusCodes.GoodLocalOverride | 0x0700)
    opcua.until(lambda: driver.read().values[0] == 9.0)
    assert driver.read().quality[0] == Quality.GOOD
    assert driver.saw(ReasonCode.TAG_FORCED_USED)
    plant.set("level", 9.5)
    driver.clears(ReasonCode.TAG_FORCED_USED)


@BOTH_WAYS
def test_a_steady_signal_stays_fresh_while_the_server_lives(plant, opcua, drive, subscribe) -> None:
    """Report by exception: the stamps stand still, and nothing is wrong."""
    driver = drive(plant.endpoint, subscribe=subscribe).up()
    time.sleep(1.5)
    observation = driver.read()
    assert observation.age_s.max() < 1.2
    assert ReasonCode.SUB_STALE not in {fault.code for fault in observation.faults}


@BOTH_WAYS
@pytest.mark.parametrize(
    "stamps",
    [
        {"source": None, "server": None},
        {"source": datetime(1601, 1, 1, tzinfo=UTC)},
        {"source": datetime(1970, 1, 1, tzinfo=UTC)},
        {"source": datetime.now(UTC) + timedelta(hours=1)},
        {"server": datetime.now(UTC) + timedelta(hours=1)},
    ],
    ids=["missing", "1601", "1970", "source ahead", "server ahead"],
)
def test_a_stamp_that_cannot_be_true_makes_nothing_fresh(
    plant, opcua, drive, subscribe, stamps
) -> None:
    driver = drive(plant.endpoint, subscribe=subscribe).up()
    driver.forget()
    plant.set("level", 5.0, **stamps)
    assert driver.sees(ReasonCode.OBS_TS_INVALID).signal == "level"
    observation = driver.read()
    assert observation.values[0] == 5.0
    assert observation.age_s[0] == np.inf
    assert observation.age_s[1] < 5.0


def test_a_source_stamp_that_stands_still_under_a_moving_value_is_stale_with_a_hint(
    plant, opcua, drive
) -> None:
    stamp = datetime.now(UTC)
    driver = drive(plant.endpoint).up()
    plant.set("level", 1.0, source=stamp)
    opcua.until(lambda: driver.read().values[0] == 1.0)
    for i in range(5):
        plant.set("level", 10.0 + i, source=stamp)
        opcua.until(lambda i=i: driver.read().values[0] == 10.0 + i)
    assert "freshness: server" in driver.sees(ReasonCode.OBS_TS_INVALID).text
    assert driver.read().age_s[0] >= (datetime.now(UTC) - stamp).total_seconds() - 0.2
    plant.set("level", 20.0)  # the stamp moves again
    driver.clears(ReasonCode.OBS_TS_INVALID)
    opcua.until(lambda: driver.read().age_s[0] < 1.0)


def test_the_rule_of_a_tag_decides_what_counts(plant, opcua, drive) -> None:
    old = datetime.now(UTC) - timedelta(seconds=100)
    tags = opcua.tag_map(
        level=opcua.tag("level", freshness=Freshness.SOURCE),
        flow=opcua.tag("flow", freshness=Freshness.SERVER),
        count=opcua.tag("count", wire_type="Int16", freshness=Freshness.ARRIVAL),
    )
    plant.set("level", 1.0, source=old)
    plant.set("flow", 2.0, source=old)
    plant.set("count", 3, source=None, server=None)
    observation = drive(plant.endpoint, tags).up().read()
    assert observation.age_s[0] == pytest.approx(100.0, abs=10.0)
    assert observation.age_s[1] < 5.0
    assert observation.age_s[2] < 5.0


def test_ages_are_told_by_the_servers_clock_and_scaled_to_plant_time(plant, drive, opcua) -> None:
    tags = opcua.tag_map(level=opcua.tag("level", freshness=Freshness.SOURCE))
    plant.set("level", 1.0, source=datetime.now(UTC) - timedelta(seconds=10))
    observation = drive(plant.endpoint, tags, time_scale=60.0).up().read()
    assert observation.age_s[0] == pytest.approx(600.0, rel=0.2)


def test_scale_and_integers(plant, opcua, drive) -> None:
    plant.set("count", -321)
    tags = opcua.tag_map(count=opcua.tag("count", wire_type="Int16", scale=0.1))
    assert drive(plant.endpoint, tags).up().read().values[2] == pytest.approx(-32.1)


@BOTH_WAYS
def test_images_are_coherent_when_the_plant_numbers_them(plant, opcua, drive, subscribe) -> None:
    """`level` and `flow` always belong together; no image may hold halves of two."""
    tags = opcua.tag_map(opcua.full_handshake())
    driver = drive(plant.endpoint, tags, subscribe=subscribe).up()
    seen: dict[int, tuple[float, float]] = {}
    for number in range(2, 40):
        plant.image(number, level=float(number), flow=-float(number))
        assert driver.link.wait_fresh(driver.read().sequence - 1, 5.0)
        observation = driver.read()
        level, flow = observation.values[:2]
        assert observation.sequence == 1 or level == -flow
        assert seen.setdefault(observation.sequence, (level, flow)) == (level, flow)
    opcua.until(lambda: driver.read().values[0] == 39.0)
    assert driver.read().time_s == 390.0


def test_a_half_published_image_does_not_count(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, opcua.tag_map(opcua.full_handshake())).up()
    plant.image(2, level=2.0, flow=-2.0)
    opcua.until(lambda: driver.read().values[0] == 2.0)
    sequence = driver.read().sequence
    plant.set("level", 3.0)
    assert not driver.link.wait_fresh(sequence, 0.4)
    plant.image(3, level=3.0, flow=-3.0)
    assert driver.link.wait_fresh(sequence, 5.0)
    assert list(driver.read().values[:2]) == [3.0, -3.0]


def test_wait_fresh_wakes_at_once_and_times_out(plant, opcua, drive) -> None:
    tags = opcua.tag_map(opcua.full_handshake())
    driver = drive(plant.endpoint, tags, subscribe=True, sampling_s=0.02).up()
    opcua.until(lambda: driver.read().sequence >= 1)
    assert not driver.link.wait_fresh(driver.read().sequence, 0.2)
    sequence = driver.read().sequence
    plant.image(2, level=2.0, flow=2.0)
    assert driver.link.wait_fresh(sequence, 5.0)
    assert driver.read().sequence > sequence


def test_a_plant_whose_heartbeat_stands_still_does_not_grant(plant, opcua, drive) -> None:
    handshake = Handshake(plant_heartbeat=opcua.tag("plant_heartbeat", wire_type="auto"))
    driver = drive(plant.endpoint, opcua.tag_map(handshake), heartbeat_timeout_s=0.5).up()
    assert driver.sees(ReasonCode.OBS_STALE).signal == "plant_heartbeat"
    assert not driver.read().granted
    stalled_age = driver.read().age_s.max()
    assert stalled_age > 0.4
    plant.set("plant_heartbeat", 77)
    opcua.until(lambda: driver.read().granted)
    driver.clears(ReasonCode.OBS_STALE)


def test_a_grant_is_what_the_plant_says(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint, opcua.tag_map(opcua.full_handshake())).up()
    assert driver.read().granted
    plant.set("granted", False)
    opcua.until(lambda: not driver.read().granted)
    plant.set("granted", True, status=ua.StatusCodes.UncertainLastUsableValue)
    time.sleep(0.4)
    assert not driver.read().granted
    plant.set("granted", True)
    opcua.until(lambda: driver.read().granted)


def test_a_server_that_is_not_running_is_told_and_not_written_to(plant, opcua, drive) -> None:
    driver = drive(plant.endpoint).up()
    state = plant.server.get_node(ua.NodeId(ua.ObjectIds.Server_ServerStatus_State))
    plant.call(state.write_value(ua.ServerState.Suspended, ua.VariantType.Int32))
    assert "Suspended" in driver.sees(ReasonCode.SERVER_STATE).text
    assert not driver.read().granted
    sent = driver.write(50.0)
    assert not sent.written
    plant.call(state.write_value(ua.ServerState.Running, ua.VariantType.Int32))
    driver.clears(ReasonCode.SERVER_STATE)
    assert driver.write(50.0).written
    opcua.until(lambda: plant.get("valve") == 50.0)


@BOTH_WAYS
def test_requests_are_split_to_the_servers_limits(plant, opcua, drive, subscribe) -> None:
    limit = plant.server.get_node(ua.NodeId(11705))
    plant.call(limit.write_value(4, ua.VariantType.UInt32))
    sizes: list[int] = []

    async def refuse_more(event) -> None:
        sizes.append(len(event.request_params.NodesToRead))
        if sizes[-1] > 4:
            raise ValueError("too many nodes in one read")

    driver_first = drive(plant.endpoint, subscribe=subscribe)
    plant.before("PreRead", refuse_more)
    driver_first.up()
    opcua.until(lambda: len(sizes) > 20)
    assert max(sizes[4:]) <= 4
    np.testing.assert_array_equal(driver_first.read().values, [1.0, 2.0, 3.0])
