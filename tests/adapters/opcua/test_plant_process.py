"""The link against a simulated plant in a process of its own: encrypted, with a user, disturbed."""

import os
import signal
import time

import numpy as np
import pytest

from steadyhand.adapters.opcua.link import OpcUaLink
from steadyhand.adapters.opcua.settings import OpcUaSettings, Security
from steadyhand.adapters.opcua.tags import read_tag_map
from steadyhand.adapters.sim.certificates import USER_NAME
from steadyhand.adapters.sim.plants import PLANTS, RunSpec, make_runner
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.frames import LinkState, Quality, Source
from steadyhand.controllers.reasons import ReasonCode

PLANT = "thermal_storage"
SCALE = 1800.0
"""One period of 900 s takes half a second."""
BACK_S = 15.0


class Rig:
    """A plant process that can be killed and started again on the same port."""

    def __init__(self, directory, kit) -> None:
        self.kit = kit
        self.directory = directory
        self.port = kit.free_port()
        self.options = ["--dummy-namespaces", "1", "--namespace-order", "0"]
        self.links: list[OpcUaLink] = []
        self.process = self.start()

    def start(self) -> PlantProcess:
        self.process = PlantProcess(
            self.directory,
            "--port",
            str(self.port),
            "--time-scale",
            str(SCALE),
            "--state",
            str(self.directory / "state.json"),
            *self.options,
        )
        return self.process

    @property
    def side(self):
        return self.process.side

    def link(self, **changes) -> "Rig":
        ready, pki = self.process.ready, self.process.pki
        plant = make_runner(RunSpec(PLANT)).plant

        def node(name: str) -> str:
            return f"nsu={ready['namespace']};s={name}"

        tags = read_tag_map(
            plant.observations,
            plant.outputs,
            {
                "observations": {
                    s.name: {"address": node(s.name), "unit": s.unit} for s in plant.observations
                },
                "outputs": {
                    s.name: {"address": node(s.name), "feedback": node(f"{s.name}_applied")}
                    for s in plant.outputs
                },
                "handshake": {
                    "granted": node("control_granted"),
                    "request": node("control_request"),
                    "heartbeat": node("controller_heartbeat"),
                    "source": node("controller_source"),
                    "plant_heartbeat": node("plant_heartbeat"),
                    "plant_time": node("plant_time_s"),
                    "sequence": node("sequence"),
                },
            },
        )
        settings = OpcUaSettings(
            endpoint=ready["endpoint"],
            server_uri=ready["server_uri"],
            period_s=900.0 / SCALE,
            time_scale=SCALE,
            security=Security(
                certificate=pki.client_cert,
                private_key=pki.client_key,
                trusted=(pki.server_cert,),
                user=USER_NAME,
                password_file=pki.password_file,
            ),
            **{"sampling_s": 0.1, "request_timeout_s": 1.0, **changes},
        )
        self.driver = self.kit.driver(settings, tags)
        self.links.append(self.driver.link)
        self.driver.link.open()
        self.driver.up(30.0)
        return self

    def drive(self, value: float, source: Source = Source.POLICY):
        return self.driver.link.write(np.array([value]), source)


@pytest.fixture(scope="module")
def rig_process(tmp_path_factory, kit_class):
    assert PLANT in PLANTS
    made = Rig(tmp_path_factory.mktemp("plant"), kit_class)
    yield made
    made.process.stop()


@pytest.fixture
def rig(rig_process):
    if rig_process.process.child.poll() is not None:
        rig_process.start()
    rig_process.side.clear()
    rig_process.side.grant(True)
    yield rig_process
    for link in rig_process.links:
        link.close()
    rig_process.links.clear()


def test_the_plant_is_read_driven_and_handed_back(rig) -> None:
    driver = rig.link().driver
    until = rig.kit.until
    first = driver.read()
    assert first.granted
    assert np.isfinite(first.values).all()
    assert (first.quality == Quality.GOOD).all()
    assert driver.link.wait_fresh(first.sequence, 5.0)
    later = driver.read()
    assert later.time_s > first.time_s
    assert later.age_s.max() < 900.0 * 4

    def driven() -> bool:
        rig.drive(-50.0)
        time.sleep(0.05)
        return rig.side.truth()["source"] == int(Source.POLICY)

    until(driven)
    until(lambda: rig.drive(-50.0) and abs(driver.read().applied[0] + 50.0) < 1.0)
    assert not driver.saw(ReasonCode.WRITE_CLAMPED)
    driver.link.release()
    until(lambda: rig.side.truth()["source"] == int(Source.HANDS_OFF))


def test_a_killed_plant_is_used_again_when_it_is_back(rig, record_property) -> None:
    driver = rig.link().driver
    rig.drive(20.0)
    rig.process.kill()
    driver.down()
    assert not rig.drive(30.0).written
    rig.start()
    took = rig.kit.until(lambda: driver.read().link is LinkState.UP, BACK_S, "link up again")
    record_property("recovered_after_s", took)
    print(f"recovered {took:.2f} s after the server")
    sequence = driver.read().sequence
    assert driver.link.wait_fresh(sequence, 5.0)


def test_a_stopped_process_is_noticed_and_resumed(rig, record_property) -> None:
    """SIGSTOP: the sockets stay open, nothing answers."""
    driver = rig.link().driver
    os.kill(rig.process.child.pid, signal.SIGSTOP)
    try:
        driver.down(6.0)
        assert driver.sees(ReasonCode.LINK_TIMEOUT)
        assert not rig.drive(30.0).written
    finally:
        os.kill(rig.process.child.pid, signal.SIGCONT)
    took = rig.kit.until(lambda: driver.read().link is LinkState.UP, BACK_S, "link up again")
    record_property("recovered_after_s", took)
    print(f"recovered {took:.2f} s after the server")


def test_namespaces_re_ordered_over_a_restart(rig) -> None:
    """The decoys in the other namespace have the same identifiers."""
    driver = rig.link().driver
    names = driver.link.observations.names
    column = names.index("storage_energy_kwh")
    before = driver.read().values[column]
    rig.process.stop()
    rig.options[-1] = "1" if rig.options[-1] == "0" else "0"
    rig.start()
    driver.sees(ReasonCode.NS_REMAP, BACK_S)
    driver.up()
    truth = rig.side.truth()
    after = driver.read().values[column]
    decoy = 0.5 * (driver.link.observations.low[column] + driver.link.observations.high[column])
    assert after != decoy
    assert abs(after - before) < 500.0, truth


def test_bad_quality_hits_one_tag_only(rig) -> None:
    driver = rig.link().driver
    rig.side.set_quality("cooling_load_kw", "BadCommunicationError")
    fault = driver.sees(ReasonCode.SAMPLE_BAD)
    assert fault.signal == "cooling_load_kw"
    quality = driver.read().quality
    assert (quality == Quality.BAD).sum() == 1
    rig.side.clear()
    driver.clears(ReasonCode.SAMPLE_BAD)


def test_a_denied_write_is_told(rig) -> None:
    driver = rig.link().driver
    output = driver.link.outputs.names[0]
    rig.side.call("access", signal=output, writable=False)
    try:
        rig.drive(10.0)
        assert driver.sees(ReasonCode.WRITE_DENIED).signal == output
    finally:
        rig.side.call("access", signal=output, writable=True)
    rig.drive(10.0)
    driver.clears(ReasonCode.WRITE_DENIED)


def test_a_strict_server_takes_our_writes(rig) -> None:
    """F10: it refuses stamps and status in a write."""
    driver = rig.link().driver
    rig.side.call("strict", on=True)
    try:
        rig.drive(10.0)
        time.sleep(0.5)
        assert not {ReasonCode.WRITE_FAILED, ReasonCode.WRITE_DENIED} & driver.codes()
    finally:
        rig.side.call("strict", on=False)


def test_subscriptions_fall_silent_and_reads_go_on(rig) -> None:
    driver = rig.link(keep_alive_s=0.5).driver
    rig.side.call("silence", on=True)
    try:
        driver.sees(ReasonCode.SUB_STALE)
        assert driver.read().link is LinkState.UP
        sequence = driver.read().sequence
        assert driver.link.wait_fresh(sequence, 5.0)
    finally:
        rig.side.call("silence", on=False)
    driver.clears(ReasonCode.SUB_STALE)


def test_a_busy_server_costs_readings_not_the_link(rig) -> None:
    driver = rig.link().driver
    connects = driver.link.connects
    rig.side.call("busy", probability=0.3)
    try:
        time.sleep(1.5)
    finally:
        rig.side.call("busy", probability=0.0)
    driver.up()
    sequence = driver.read().sequence
    assert driver.link.wait_fresh(sequence, 5.0)
    assert driver.link.connects - connects <= 1


def test_sessions_dropped_by_the_plant_are_made_anew(rig) -> None:
    driver = rig.link().driver
    connects = driver.link.connects
    rig.side.call("drop_sessions")
    rig.kit.until(lambda: driver.link.connects > connects, BACK_S)
    driver.up()


def test_a_reply_that_is_late_is_unknown_and_read_back(rig) -> None:
    driver = rig.link(request_timeout_s=0.5).driver
    rig.side.call("latency", reply_s=1.0)
    try:
        rig.drive(15.0)
        driver.sees(ReasonCode.WRITE_UNKNOWN)
    finally:
        rig.side.call("latency")
    driver.up()
