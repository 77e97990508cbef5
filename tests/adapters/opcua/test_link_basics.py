"""The plain life of a link: come up, read, write, read back, hand back."""

import numpy as np

from steadyhand.controllers.frames import Quality
from steadyhand.controllers.reasons import ReasonCode


def test_reads_and_writes_over_an_encrypted_channel(pki, opcua, drive) -> None:
    server = opcua.server(secure=pki)
    driver = drive(server.endpoint, security=pki.security()).up()
    observation = driver.read()
    np.testing.assert_array_equal(observation.values, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(observation.quality, [Quality.GOOD] * 3)
    assert observation.granted
    assert abs(driver.link.clock_offset_s) < 5.0
    assert ReasonCode.LINK_INSECURE not in {fault.code for fault in observation.faults}
    sent = driver.write(25.0, 1.5)
    assert sent.written
    opcua.until(lambda: server.get("valve") == 25.0)
    assert server.get("pump") == 1.5
    opcua.until(lambda: list(driver.read().applied) == [25.0, 1.5])
