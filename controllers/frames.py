"""What flows through one tick. Frozen, slotted, compared by identity; arrays are never shared
with a writer: who makes a frame owns its arrays until it is handed on, and nobody changes them
after that.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector


class Quality(IntEnum):
    """OPC UA severity of a sample."""

    GOOD = 0
    UNCERTAIN = 1
    BAD = 2


class LinkState(StrEnum):
    """Can the plant be reached, and is it known to be the right plant?"""

    DOWN = "down"
    CONNECTING = "connecting"
    VERIFYING = "verifying"
    UP = "up"


class Source(IntEnum):
    """What drives the plant now, from least to most restrictive."""

    POLICY = 0
    FALLBACK = 1
    HOLD = 2
    SAFE = 3
    HANDS_OFF = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong now: the code, where, how much, and the bound it broke."""

    code: ReasonCode
    signal: str = ""
    value: float = nan
    limit: float = nan
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A frozen process image: one snapshot of everything read from the plant."""

    sequence: int
    """Grows by one with every new image from the link; the same number is the same image."""
    time_s: float
    """Plant time of the image, seconds since the link's epoch."""
    values: Vector
    """(n_y,) measurements in the order and units of the plant's observation SignalSet."""
    age_s: Vector
    """(n_y,) age of each sample in plant seconds, from all evidence (stamps, arrival)."""
    quality: NDArray[np.int8]
    """(n_y,) `Quality` of each sample."""
    applied: Vector
    """(n_u,) what the plant says it applies now (read back), in output order."""
    link: LinkState = LinkState.UP
    granted: bool = True
    """Does the plant grant control?"""
    faults: tuple[Fault, ...] = ()
    """What the link itself found wrong with this image."""


class ProposalStatus(IntEnum):
    """How the policy answered."""

    OK = 0
    ABSENT = 1
    LATE = 2
    ERROR = 3
    CRASHED = 4
    NONFINITE = 5


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What the policy would do. Never an exception: a failure is a status."""

    action: Vector
    """(n_u,) in output units; all NaN unless status is OK."""
    status: ProposalStatus = ProposalStatus.OK
    value: float = nan
    """V: predicted return."""
    error: float = nan
    """E: the critic's prediction of its own error |G - V|."""
    confidence_logit: float = nan
    """C: logit of the probability that the next horizon goes well (uncalibrated)."""
    latency_s: float = 0.0
    text: str = ""
    faults: tuple[Fault, ...] = ()
    """What is wrong with this answer: non-finite, outside the declared range, late, crashed."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Is the proposal to be believed?"""

    trusted: bool
    confidence: float
    """Calibrated probability in [0, 1]; 0 when it cannot be told."""
    state: str
    """State of the gate (trust, fallback, probation …)."""
    faults: tuple[Fault, ...] = ()
    """Active monitors that alarm now; the first is the first-out cause."""
    scores: tuple[float, ...] = ()
    """One normalised score per monitor, in the gate's order: >= 1 alarms."""


class FilterMode(IntEnum):
    """What the filter did to the command."""

    PASS = 0
    SHAPED = 1
    BLENDED = 2
    BACKUP = 3


class FilterOutcome(IntEnum):
    """How the filter came to its answer. None of them ever passes the raw command unchecked."""

    SOLVED = 0
    SOLVED_WITH_SLACK = 1
    INFEASIBLE = 2
    TIME_OUT = 3
    NONFINITE = 4
    OUTSIDE_SET = 5
    UNUSABLE = 6
    """A measurement that the rows need is not good: the backup, which needs none."""


@dataclass(frozen=True, slots=True, eq=False)
class FilterReport:
    """Why the filter's answer is what it is; rows are in the order of the constraint set."""

    mode: FilterMode
    outcome: FilterOutcome
    correction_norm: float
    """|u* - u_nom| in the filter's metric R."""
    correction_share: float
    """correction_norm as a share of the diameter of the input set."""
    margin: float
    """Smallest usable distance m_i (scaled rows), negative when outside."""
    margin_row: int
    active: tuple[int, ...]
    """Rows with a positive multiplier."""
    k: Vector
    m: Vector
    p_nominal: Vector
    p_certified: Vector
    multiplier: Vector
    time_to_boundary_s: float = inf
    blend: float = 0.0
    """Share of the backup in the answer."""
    passes: int = 0
    duration_us: float = 0.0
    infeasible: bool = False
    residual_z: float = 0.0
    """Largest |predicted - measured k'| over its declared bound since the last tick."""


@dataclass(frozen=True, slots=True, eq=False)
class Certified:
    """A command that may go to the wire."""

    action: Vector
    report: FilterReport
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What was really sent (after conversion to the wire type), or that nothing was."""

    action: Vector
    sequence: int
    time_s: float
    written: bool
    """True once handed to the wire; False when nothing was sent this tick."""
    faults: tuple[Fault, ...] = field(default=())
