"""What the next start has to know of the bundle that serves gets to disk, however late."""

import errno
import os
import time
from types import SimpleNamespace

import pytest

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import serving_bundle
from steadyhand.runtime.serving_bundle import ServingBundle
from steadyhand.runtime.trial import First


class Disk:
    """Takes nothing for a while."""

    def __init__(self, full: int) -> None:
        self.full, self.tries, self.there = full, 0, []

    def record(self, manifest, digest, now, content) -> None:
        del manifest, now, content
        self.tries += 1
        if self.tries <= self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.there.append(digest)


def bundle(name):
    return SimpleNamespace(manifest=None, manifest_sha256=name, content=b"", warnings=())


@pytest.fixture
def serving(monkeypatch):
    """On a disk that is full at first; what is told of it lies in `events`."""
    disk, events = Disk(full=3), []
    monkeypatch.setattr(serving_bundle, "installed_state", lambda loaded: disk)
    monkeypatch.setattr(serving_bundle, "trusted_keys", lambda loaded: ())
    monkeypatch.setattr(serving_bundle, "RETRY_S", 0.05)
    recorder = SimpleNamespace(event=events.append)
    first = First(bundle("first"), None, None)
    made = ServingBundle(None, None, first, None, None, None, recorder, None)
    return SimpleNamespace(bundle=made, disk=disk, events=events)


def wait(condition):
    end_s = time.monotonic() + 20.0
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.002)
    assert condition()


def test_a_full_disk_is_asked_until_it_takes_it(serving):
    serving.bundle.answered()
    wait(lambda: list(serving.bundle.faults()))
    (fault,) = serving.bundle.faults()
    assert (fault.code, fault.signal) == (ReasonCode.AUDIT_DEGRADED, "bundle")
    assert "No space left" in fault.text
    wait(lambda: serving.disk.there == ["first"])
    wait(lambda: not list(serving.bundle.faults()))
    assert serving.disk.tries == 4
    assert [one["event"] for one in serving.events] == ["BundleState"], "told once"


def test_a_bundle_that_serves_no_more_is_not_noted(serving):
    serving.disk.full = 10**9
    serving.bundle.answered()
    wait(lambda: serving.disk.tries >= 2)
    serving.bundle.bundle = bundle("second")
    wait(lambda: not list(serving.bundle.faults()))
    assert serving.disk.there == []
