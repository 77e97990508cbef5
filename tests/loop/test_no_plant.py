"""A runtime that cannot get at its plant says why, what to do, and does so at once."""

import os
import re
import shutil
import subprocess

import pytest

from steadyhand.adapters.sim.certificates import make_pki
from tests.support.command import COMMAND
from tests.support.loop_rig import until

SLOW = 15.0
"""Plant seconds per second: a period of the loop takes a minute."""
SOON_S = 20.0
"""Far less than a period, with time for a busy machine."""


def nobody_listens(rig):
    rig.plant.kill()


def wrong_password(rig):
    file = rig.folder / "pki" / "password"
    file.chmod(0o600)
    file.write_text("guessed")


def our_certificate_is_a_strangers(rig):
    other = rig.folder / "other"
    other.mkdir(mode=0o700)
    make_pki(other, "thermal_storage")
    for name in ("client_cert.der", "client_key.pem"):
        shutil.copy(other / name, rig.folder / "pki" / name)


def the_servers_certificate_is_a_strangers(rig):
    other = rig.folder / "other"
    other.mkdir(mode=0o700)
    make_pki(other, "thermal_storage")
    shutil.copy(other / "server_cert.der", rig.folder / "pki" / "server_cert.der")


def a_tag_is_missing(rig):
    rename(rig, ";s=cooling_load_kw", ";s=colling_load_kw")


def another_server_answers(rig):
    rename(rig, "server_uri: urn:steadyhand:plant-server", "server_uri: urn:somebody:else")


def the_name_is_unknown(rig):
    rename(rig, "opc.tcp://127.0.0.1", "opc.tcp://plc.invalid")


def rename(rig, old, new):
    text = rig.config.read_text("utf-8")
    assert old in text
    rig.config.write_text(text.replace(old, new, 1), "utf-8")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (nobody_listens, "nothing listens at opc.tcp://127.0.0.1:.* start the server"),
        (wrong_password, "refuses user 'controller': correct security.user and its password_file"),
        (
            our_certificate_is_a_strangers,
            "our certificate .*client_cert.der.* let its people trust it",
        ),
        (the_servers_certificate_is_a_strangers, "is not in the trust list .* then add it to"),
        (a_tag_is_missing, "cooling_load_kw.*colling_load_kw"),
        (another_server_answers, "calls itself .*, configured is 'urn:somebody:else"),
        (the_name_is_unknown, "the host of opc.tcp://plc.invalid:.* is unknown: correct endpoint"),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_whoever_started_it_reads_why_there_is_no_plant(rig, broken, words):
    made = rig(time_scale=SLOW)
    broken(made)
    made.start_runtime()

    def lines():
        return [line for line in made.said.read_text().splitlines() if re.search(words, line)]

    until(lines, SOON_S, words, made.said.read_text)
    assert re.match(r"\d\d:\d\d:\d\dZ hands off, the plant has its own control: ", lines()[0])
    assert "; to do: " in lines()[0]
    # the status and the service manager's line say the same
    why = made.status()["why"]
    assert re.search(words, why["text"]), why
    assert made.stop_runtime() == 0
    assert len(lines()) == 1, "a line for each change, not for each attempt"
    assert made.writes() == []


def test_a_link_that_comes_and_goes_is_told_at_once(rig):
    made = rig(time_scale=SLOW)
    made.plant.kill()
    made.start_runtime()
    until(lambda: "nothing listens" in made.said.read_text(), SOON_S, "why there is no plant")
    made.start_plant()
    until(lambda: made.status().get("link") == "up", SOON_S, "the link in the status")
    made.plant.kill()
    until(lambda: made.status().get("link") != "up", SOON_S, "its loss in the status")
    assert [tick.sequence for tick in made.ticks()][-1] < 10, "and not by ticking all the time"


def test_a_reader_of_standard_error_that_stops_reading_holds_nothing_up(rig):
    """Not the link, which has something to say, and not the end of the process."""
    made = rig(time_scale=3000.0, changes={"[pki/server_cert.der]": "[trust.der]"})
    shutil.copy(made.folder / "pki" / "server_cert.der", made.folder / "trust.der")
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writing, b"." * 4096)
        os.set_blocking(writing, True)
        made.runtime = subprocess.Popen([*COMMAND, "run", str(made.config)], stderr=writing)
        made.wait_in_control()
        (made.folder / "trust.der").write_bytes(b"no certificate")  # a warning
        made.plant.kill()
        made.start_plant()
        made.wait_in_control()
        assert made.stop_runtime() == 0
    finally:
        os.close(reading)
        os.close(writing)
