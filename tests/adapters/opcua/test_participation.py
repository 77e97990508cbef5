"""Single outputs that the plant keeps to itself: followed, never written, no fault of the wire."""

import pytest
from asyncua import ua

from steadyhand.adapters.opcua.tags import OutputTag
from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode

BAD = int(ua.StatusCodes.BadSensorFailure)


@pytest.fixture
def driver(plant, opcua, drive):
    pump = OutputTag(
        address=opcua.node("pump"),
        wire_type="Float",
        participation=opcua.tag("pump_in", wire_type="auto"),
    )
    handshake = opcua.full_handshake("sequence", "plant_time")
    return drive(plant.endpoint, opcua.tag_map(handshake, pump=pump)).up()


def wrote(driver, plant, opcua, valve, pump):
    """Write both; wait for the valve. What the pump's node holds then."""
    sent = driver.write(valve, pump)
    opcua.until(lambda: plant.get("valve") == valve)
    return sent, plant.get("pump")


def test_all_take_part_until_the_plant_says_otherwise(driver, plant, opcua):
    assert wrote(driver, plant, opcua, 10.0, 5.0)[1] == 5.0
    assert not driver.saw(ReasonCode.OUTPUT_OUT)


@pytest.mark.parametrize(
    "shown", [{"value": False}, {"value": True, "status": BAD}, {"value": None}]
)
def test_an_output_that_is_out_is_not_written(driver, plant, opcua, shown):
    wrote(driver, plant, opcua, 10.0, 5.0)
    plant.set("pump_in", **shown)
    fault = driver.sees(ReasonCode.OUTPUT_OUT)
    assert fault.signal == "pump" and "keeps it" in fault.text
    plant.set("pump", 3.0)  # the plant has it and moves it
    driver.forget()
    sent, pump = wrote(driver, plant, opcua, 11.0, -2.0)
    assert pump == 3.0, "nothing of ours arrived"
    assert sent.written and sent.action.tolist() == [11.0, -2.0]
    opcua.until(lambda: driver.read().applied.tolist() == [11.0, 3.0])
    wrong = {fault.code for fault in driver.seen} - {ReasonCode.OUTPUT_OUT}
    assert not {code for code in wrong if code.startswith("WRITE_")}, "no fault of the wire"
    plant.set("pump_in", True)
    driver.clears(ReasonCode.OUTPUT_OUT)
    driver.write(12.0, 4.0)
    opcua.until(lambda: plant.get("pump") == 4.0)


def test_the_heartbeat_goes_on_when_every_output_is_out(plant, opcua, drive):
    valve = OutputTag(
        address=opcua.node("valve"), participation=opcua.tag("pump_in", wire_type="auto")
    )
    pump = OutputTag(
        address=opcua.node("pump"),
        wire_type="Float",
        participation=opcua.tag("granted", wire_type="auto"),
    )
    handshake = opcua.full_handshake("sequence", "plant_time", "granted")
    driver = drive(plant.endpoint, opcua.tag_map(handshake, valve=valve, pump=pump)).up()
    for name in ("pump_in", "granted"):
        plant.set(name, False)
    opcua.until(lambda: len([f for f in driver.read().faults if f.code == "OUTPUT_OUT"]) == 2)
    beat = plant.get("heartbeat")
    driver.write(50.0, 5.0, source=Source.POLICY)
    opcua.until(lambda: plant.get("heartbeat") != beat)
    assert (plant.get("valve"), plant.get("pump")) == (0.0, 0.0)
