"""A library of another version than the tests ran with is told at the start, and stops nothing."""

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import tested_versions
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from steadyhand.runtime.tested_versions import TESTED, installed, untested

PINNED = dict(
    re.findall(
        r"(?m)^([\w.-]+)==(\S+)$", (Path(__file__).parents[2] / "constraints.txt").read_text()
    )
)


def test_they_are_the_ones_that_the_tests_run_with():
    assert {name: PINNED[name] for name in TESTED} == TESTED
    assert {name: installed(name) for name in TESTED} == TESTED
    assert untested() == ()


def pretend(monkeypatch, **versions):
    def found(name: str) -> str:
        if name in versions:
            return versions[name]
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tested_versions, "version", found)


@pytest.mark.parametrize("here", ["1.33.0", "2.0.0", "0.9", "1.320.0"])
def test_another_version_is_named_with_the_tested_one(monkeypatch, here):
    pretend(monkeypatch, onnxruntime=here, numpy=TESTED["numpy"])
    (fault,) = untested()
    assert (fault.code, fault.text) == (
        ReasonCode.ENV_VERSION, f"onnxruntime {here}; tested with 1.32.0"
    )  # fmt: skip


def test_a_patch_level_is_no_other_version(monkeypatch):
    pretend(monkeypatch, onnxruntime="1.32.7", asyncua="2.1")
    assert untested() == ()


def test_the_engine_for_a_gpu_has_another_name(monkeypatch):
    pretend(monkeypatch, **{"onnxruntime-gpu": "1.31.0"})
    assert [fault.text for fault in untested()] == ["onnxruntime 1.31.0; tested with 1.32.0"]


@pytest.mark.parametrize("situation", Situation)
def test_it_warns_and_stops_nothing(situation):
    effect = EFFECTS[ReasonCode.ENV_VERSION, situation]
    assert (effect.demand, effect.severity) == (Source.POLICY, Severity.WARNING)
