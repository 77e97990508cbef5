"""A gate from a bundle's data: what fits, what is refused, and what the plant may ask on top."""

from copy import deepcopy

import numpy as np
import pytest

from steadyhand.controllers.errors import ConfigError, ModelError
from steadyhand.controllers.trust.load import gate_from_dict
from steadyhand.controllers.trust.novelty import fit_novelty


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 1)) + 5.0
    return {
        "confidence": {
            "calibrator": {"kind": "isotonic", "logits": [0.0, 1.0], "probabilities": [0.0, 1.0]},
            "settings": {"theta_off": 0.6, "theta_on": 0.7},
        },
        "novelty": fit_novelty(rows, rows, ("level",)),
        "gate": {"dwell_s": 2.0, "minimum_stay_s": 0.0},
    }


def test_a_whole_gate(data, pair, image, proposal):
    gate = gate_from_dict(data, pair, 1.0)
    assert gate.names == ("confidence", "novelty")
    verdicts = [gate.judge(image(k), proposal(0.9)) for k in range(4)]
    assert [v.trusted for v in verdicts] == [False, False, True, True]
    far = gate.judge(image(5, (9.9, 1.0)), proposal(0.9))
    assert [f.signal for f in far.faults] == ["level"]


def test_novelty_may_be_missing(data, pair):
    del data["novelty"]
    assert gate_from_dict(data, pair, 1.0).names == ("confidence",)


@pytest.mark.parametrize(
    ("minimum", "logit", "trusted"),
    [
        (0.0, 0.71, True),
        (0.6, 0.71, True),
        (0.8, 0.84, False),  # theta_on moved to 0.85
        (0.8, 0.86, True),
        (0.97, 0.999, False),  # theta_on is 1: nothing is above it
    ],
)
def test_the_plant_can_only_ask_for_more(data, pair, image, proposal, minimum, logit, trusted):
    gate = gate_from_dict(data, pair, 1.0, minimum)
    verdicts = [gate.judge(image(k), proposal(logit)) for k in range(10)]
    assert verdicts[-1].trusted == trusted


def broken(data, path, value):
    made = deepcopy(data)
    *way, last = path
    inner = made
    for name in way:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("confidence",), None, ModelError),
        (("confidence",), 3, ModelError),
        (("gate",), None, ModelError),
        (("gate",), 3, ModelError),
        (("extra",), 3, ModelError),
        (("confidence", "settings"), None, ModelError),
        (("confidence", "settings", "theta_off"), None, ModelError),
        (("confidence", "settings", "theta_off"), "high", ModelError),
        (("confidence", "settings", "theta_off"), 0.9, ModelError),
        (("confidence", "settings", "more"), 0.9, ModelError),
        (("confidence", "calibrator"), {"kind": "none"}, ModelError),
        (("novelty",), {"mean": 1}, ModelError),
        (("gate", "dwell_s"), -1.0, ConfigError),
        (("gate", "monitors"), {"confidence": {"use": "passive"}}, ModelError),
        (("gate", "monitors"), {"confidence": {"use": "disabled"}}, ModelError),
        (("gate", "monitors"), {"other": {}}, ConfigError),
        (("gate", "without_confidence"), True, ModelError),
    ],
)
def test_what_is_refused(data, pair, path, value, error):
    with pytest.raises(error):
        gate_from_dict(broken(data, path, value), pair, 1.0)
