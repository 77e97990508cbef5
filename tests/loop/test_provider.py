"""A GPU is asked for and there is none: driven all the same and told to everybody, or refused."""

import re
import urllib.request

import onnxruntime as ort
import pytest

from steadyhand.runtime.provider import ProviderWatch, served_by
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import until

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this machine has a GPU"
)
ASKED = {"isolation: process": "isolation: process\n  provider: cuda"}
REQUIRED = {"isolation: process": "isolation: process\n  provider: cuda\n  require_provider: true"}


def alarms(rig):
    return {one["code"]: one for one in rig.status().get("alarms", ())}


def test_the_cpu_serves_and_everybody_is_told(rig):
    made = rig(time_scale=1800.0, changes=ASKED)
    made.start_runtime()
    made.wait_in_control()
    until(lambda: "PROVIDER_FALLBACK" in alarms(made), what="the alarm", instead=made.status)
    shown = alarms(made)["PROVIDER_FALLBACK"]
    assert "asked for cuda, running on cpu" in str(shown)
    address = re.search(r"http://127\.0\.0\.1:\d+/metrics", made.said.read_text())
    assert address, made.said.read_text()
    with urllib.request.urlopen(address[0], timeout=10.0) as reply:
        lines = reply.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith("steadyhand_policy_provider_as_asked")]
    assert line.rpartition(" ")[2] in ("0", "0.0")
    made.stop_runtime()
    with JournalReader(made.journal) as journal:
        told = [one for one in journal.events() if one.data.get("code") == "PROVIDER_FALLBACK"]
    assert len(told) == 1, "once, however often it is looked at"


def test_where_it_is_required_the_bundle_is_refused(rig):
    made = rig(time_scale=1800.0, changes=REQUIRED)
    made.start_runtime()
    assert made.runtime.wait(60.0) == 78
    assert "asked for cuda, running on cpu" in made.said.read_text()
    assert made.writes() == []
    done = made.cli("check", "CONFIG")
    assert done.returncode == 78
    assert "BUNDLE_PROVIDER" in done.stdout


class Policy:
    """Serves where it is told to."""

    provider, notice = "cpu", ""


def test_each_change_is_told_once_and_what_stands_stands():
    events, policy = [], Policy()
    watch = ProviderWatch(events.append)
    assert watch.look(policy) == ()
    policy.notice = "asked for cuda, running on cpu"
    for _ in range(3):
        (fault,) = watch.look(policy)
        assert (fault.code, fault.text) == ("PROVIDER_FALLBACK", policy.notice)
    policy.provider, policy.notice = "", ""  # between two processes
    assert len(watch.look(policy)) == 1
    policy.provider = "cuda"
    assert watch.look(policy) == ()
    assert [one["code"] for one in events] == ["PROVIDER_FALLBACK", "RECOVERED"]
    assert served_by(object()) == ("", "")
