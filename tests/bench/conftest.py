"""Shortest possible runs: the tests ask whether the benches answer right, never how fast."""

import pytest

from steadyhand.training.bench.turns import Setting


@pytest.fixture
def shortest() -> Setting:
    return Setting(rounds=2, turn_s=1e-4)
