"""Two plausible signals and images of them."""

from collections.abc import Callable

import numpy as np
import pytest

from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.signals import Signal, SignalSet


@pytest.fixture
def pair() -> SignalSet:
    return SignalSet(
        (
            Signal("level", "m", 0.0, 10.0, rate_per_s=0.5, max_age_s=5.0, frozen_after_s=60.0),
            Signal("flow", "m3/h", -20.0, 20.0),
        )
    )


@pytest.fixture
def image() -> Callable[..., Observation]:
    def make(
        sequence: int,
        values: object = (5.0, 1.0),
        time_s: float | None = None,
        age_s: object = (0.0, 0.0),
        quality: object = (0, 0),
        faults: tuple[Fault, ...] = (),
    ) -> Observation:
        return Observation(
            sequence=sequence,
            time_s=float(sequence) if time_s is None else time_s,
            values=np.array(values, dtype=np.float64),
            age_s=np.array(age_s, dtype=np.float64),
            quality=np.array(quality, dtype=np.int8),
            applied=np.zeros(1),
            faults=faults,
        )

    return make


@pytest.fixture
def proposal() -> Callable[..., Proposal]:
    def make(
        logit: float = 0.0,
        status: ProposalStatus = ProposalStatus.OK,
        action: float = 0.0,
        error: float = float("nan"),
    ) -> Proposal:
        return Proposal(np.array([action]), status, confidence_logit=logit, error=error)

    return make
