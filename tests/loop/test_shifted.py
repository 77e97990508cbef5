"""The shipped bundle, its own monitors and the real loop: each measurement is shifted by one to ten
of its standard deviations, and somebody has to notice.

Without `-m slow` some of the sizes are tried; with it all of them, and results/shifts.json tells
who noticed what, and when.
"""

import copy
import json
from dataclasses import replace
from functools import cache
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.load import gate_from_dict
from steadyhand.runtime import assemble
from steadyhand.runtime.admission import open_bundle
from steadyhand.runtime.config import load_config
from tests.support.loop_lockstep import Bench
from tests.support.loop_rig import SHIPPED

RESULTS = Path(__file__).parent / "results" / "shifts.json"
COMMAND = "python -m pytest -m slow tests/loop/test_shifted.py"
LOADED = load_config(SHIPPED)
PARTS = assemble.make_plant(LOADED)
NAMES = PARTS.plant.observations.names
SETTLE, FAULTY = 40, 12
"""Ticks until the policy drives, and with the shift: a quarter of an hour each."""
SOME, ALL = (1, 2, 3, 10), range(1, 11)
CERTAIN, AT_ONCE = 2, 3
"""From so many deviations on it is told, and told in the first image."""
BLIND = {
    "peak_power_kw": "the peak of the day is held for hours, and may be anything in its range",
    "time_of_day_h": "a clock that is wrong by a few hours is a time of day like another",
}
"""What nobody can tell while it stays inside its declared range, and why."""


@cache
def bundle():
    return open_bundle(LOADED, PARTS)


def bench(trust=None):
    gate = gate_from_dict(trust or bundle().trust, PARTS.plant.observations, LOADED.config.period)
    made = Bench(bundle().spec.build(), RunSpec(seed=5, days=40), gate=gate)
    judge = assemble.make_image_judge(LOADED.config, PARTS)
    made.loop.parts = replace(made.loop.parts, image_judge=judge)
    return made


@cache
def deviations():
    """Standard deviation of each measurement: in the training data, else over four days."""
    made, data = bench(), bundle().trust["novelty"]
    factor = np.array(data["cholesky"])
    spread = np.std([tick.observation.values for tick in made.ticks(4 * 96)], axis=0)
    return dict(zip(NAMES, map(float, spread), strict=True)) | dict(
        zip(data["features"], map(float, np.sqrt(np.diag(factor @ factor.T))), strict=True)
    )


def found(tick):
    return {str(one.code) for one in (*tick.observation.faults, *tick.verdict.faults)}


def shifted(name, size):
    """(tick, codes, driver) when it was told first; None when it was not."""
    made = bench()
    made.ticks(SETTLE - 1)
    (before,) = made.ticks(1)
    assert before.source is Source.POLICY
    assert found(before) == set()
    shift = {"bias": size * deviations()[name]}
    made.inject([SignalFault(name, FaultKind.WRONG, made.runner.time_s, inf, shift)])
    for number in range(FAULTY):
        (tick,) = made.ticks(1)
        if codes := found(tick):
            return number, sorted(codes), tick.source
    return None


def looked_at(name, sizes):
    rows = {}
    for size in (*sizes, *(-size for size in sizes)):
        told = rows[size] = shifted(name, size)
        if told is not None:
            assert told[2] >= Source.FALLBACK, (size, told)
        elif abs(size) >= CERTAIN and name not in BLIND:
            pytest.fail(f"{name} shifted by {size} deviations: nobody tells it")
        if abs(size) >= AT_ONCE and name in bundle().trust["novelty"]["features"]:
            assert told[0] == 0, (size, told)
            assert "GATE_OOD" in told[1], (size, told)
    return rows


def test_without_a_shift_nobody_tells_anything():
    made = bench()
    made.ticks(SETTLE)
    for tick in made.ticks(4 * FAULTY):
        assert (found(tick), tick.source) == (set(), Source.POLICY)


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_that_is_shifted_is_told(name):
    looked_at(name, SOME)


@pytest.mark.parametrize("name", BLIND)
def test_what_nobody_can_tell_is_known(name):
    """The day this fails there is a monitor for it: then it goes off the list."""
    high = PARTS.plant.observations.signals[NAMES.index(name)].high
    assert all(shifted(name, size) is None for size in (1, -1))
    assert shifted(name, 2.0 * high / deviations()[name])[1] == ["OBS_RANGE"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_sizes_are_written_down():
    rows = {
        name: {
            f"{size:+d}": None if told is None else {"after_ticks": told[0], "told": told[1]}
            for size, told in looked_at(name, ALL).items()
        }
        for name in NAMES
    }
    known = {
        "command": COMMAND,
        "what": "shift in standard deviations: who tells it, after how many ticks of 15 min; null: "
        f"nobody within {FAULTY} ticks",
        "bundle": bundle().label,
        "deviations": deviations(),
        "signals": rows,
    }
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


# -- monitors that are broken ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [0.0, nan, inf], ids=["no spread", "NaN", "infinite"])
def test_statistics_that_cannot_work_vouch_for_nothing(number):
    """As a defect in their making would leave them, in an otherwise sound and signed bundle."""
    trust = copy.deepcopy(dict(bundle().trust))
    trust["novelty"]["cholesky"][3][3] = number
    made = bench(trust)
    for tick in made.ticks(SETTLE):
        assert tick.source >= Source.FALLBACK
        told = [one for one in tick.verdict.faults if one.code is ReasonCode.GATE_FAULT]
        assert [one.signal for one in told] == ["novelty"]
        assert told[0].text
