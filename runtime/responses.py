"""Does the plant answer small steps as its model says? Wrong signs, units and swapped tags show.

Each sample is one period: what was measured at its begin, what was asked for in it, what was
measured at its end. The model gives what the end would have been without the step, and what the
step adds. A line through what was measured, over both, has the slope 1 over the second where tag,
unit and sign are right. A measurement that the model does not move must not move with the step
either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.plants.plant import Plant
from steadyhand.controllers.signals import Signal, SignalSet, Vector

LOW, HIGH = 0.5, 2.0
"""Slopes between these are right: no unit that is taken for another one lies between."""
_MOVES = 1e-3
"""Share of a measurement's range that the model must move for an answer to be expected."""
_STRANGE = 5e-3
"""Share of the range that an unexpected answer has to reach."""
_STEADY = 0.9
"""Correlation with the steps from which on the model's answer is one to compare with."""
_SURE = 0.2
"""Largest standard error of a slope that decides."""
_T_STRANGE = 6.0
"""An unexpected answer is so many standard errors away from none."""
_T_SIGN = 4.0
"""A wrong sign likewise."""

Matrix = NDArray[np.float64]


class Answer(StrEnum):
    """How one measurement answered the steps of one output."""

    RIGHT = "right"
    STILL = "still"
    """The model does not move it, and it did not move with the steps."""
    SIGN = "wrong sign"
    SIZE = "wrong size"
    NONE = "no answer"
    STRANGE = "moves and should not"
    UNDECIDED = "undecided"
    UNJUDGED = "not judged"
    """It keeps what was before, a peak say: the plant's definition says so."""


GOOD = frozenset({Answer.RIGHT, Answer.STILL, Answer.UNJUDGED})


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One period of a test."""

    begin: Vector
    """(n_y,) measured at its begin."""
    command: Vector
    """(n_u,) what was asked for."""
    end: Vector
    """(n_y,) measured at its end."""
    applied: Vector
    """(n_u,) what the plant said at its end that it applies."""


@dataclass(frozen=True, slots=True)
class Response:
    """What one measurement did when one output was moved."""

    output: str
    signal: str
    answer: Answer
    slope: float
    """Of measured against modelled response; 1 is right. NaN where none is expected."""
    error: float
    """Standard error of the slope."""
    text: str


def judge(
    plant: Plant,
    reconstruct: Callable[[Vector], tuple[Vector, Vector]],
    outputs: SignalSet,
    output: str,
    rest: Vector,
    samples: Sequence[Sample],
    held: Sequence[str] = (),
) -> list[Response]:
    """How each measurement, and the output's own read-back, answered.

    Args:
        plant: the model.
        reconstruct: state and disturbances from a measurement.
        outputs: the plant's outputs.
        output: the one that was moved.
        rest: (n_u,) where the outputs were moved from.
        samples: at least four.
        held: measurements that keep what was before; they are not judged.
    """
    column = outputs.index(output)
    steps = np.array([sample.command[column] - rest[column] for sample in samples])
    expected, without = _model(plant, reconstruct, rest, samples)
    ends = np.array([sample.end for sample in samples])
    return [
        _readback(outputs.signals[column], steps, samples, column),
        *(
            Response(output, signal.name, Answer.UNJUDGED, nan, nan, "keeps what was before")
            if signal.name in held
            else _one(output, signal, steps, expected[:, i], without[:, i], ends[:, i])
            for i, signal in enumerate(plant.observations)
        ),
    ]


def _model(
    plant: Plant,
    reconstruct: Callable[[Vector], tuple[Vector, Vector]],
    rest: Vector,
    samples: Sequence[Sample],
) -> tuple[Matrix, Matrix]:
    """(samples, n_y) what the model says a step adds, and the end of a period without it."""
    added, without = [], []
    for sample in samples:
        x, w = reconstruct(sample.begin)
        _, later = reconstruct(sample.end)
        ends = [
            plant.measure(plant.step(x, u, w, plant.period_s), u, later)
            for u in (rest, sample.command)
        ]
        added.append(ends[1] - ends[0])
        without.append(ends[0])
    return np.array(added), np.array(without)


def _readback(signal: Signal, steps: Vector, samples: Sequence[Sample], column: int) -> Response:
    slope, error = line(steps, np.array([sample.applied[column] for sample in samples]))
    answer, text = _graded(slope, error)
    return Response(signal.name, f"{signal.name} (read-back)", answer, slope, error, text)


def _one(
    output: str, signal: Signal, steps: Vector, expected: Vector, without: Vector, ends: Vector
) -> Response:
    span = signal.high - signal.low
    if float(np.ptp(expected)) > _MOVES * span:
        if abs(float(np.corrcoef(expected, steps)[0, 1])) < _STEADY:
            text = "the plant's limits cut the steps here: try at another hour, or smaller ones"
            return Response(output, signal.name, Answer.UNDECIDED, nan, inf, text)
        slope, error = line(expected, ends, without)
        answer, text = _graded(slope, error)
        return Response(output, signal.name, answer, slope, error, text)
    slope, error = line(steps, ends, np.arange(float(len(ends))))
    moved = abs(slope) * float(np.ptp(steps))
    if moved > _STRANGE * span and abs(slope) > _T_STRANGE * error:
        text = (
            f"moves by {moved:.3g} {signal.unit} with the output, and the model says it does not: "
            "is its tag swapped with another?"
        )
        return Response(output, signal.name, Answer.STRANGE, nan, error, text)
    return Response(output, signal.name, Answer.STILL, nan, nan, "does not move with the output")


def _graded(slope: float, error: float) -> tuple[Answer, str]:
    """What a slope says about a tag."""
    if slope < -_T_SIGN * error and abs(slope) > 0.5 * LOW:
        text = f"answers the wrong way ({slope:.2f}): correct the sign in the plant or the tag"
        return Answer.SIGN, text
    if not error < _SURE * max(1.0, abs(slope)):
        text = "what else moves it hides the answer: take larger steps, or more periods"
        return Answer.UNDECIDED, text
    if LOW <= slope <= HIGH:
        return Answer.RIGHT, f"answers {slope:.2f} times as the model says"
    if slope < 0.5 * LOW:
        return Answer.NONE, "does not answer: is it the right tag, and does the actuator move?"
    return Answer.SIZE, f"answers {slope:.3g} times as much: correct its unit or scale"


def line(x: Vector, y: Vector, beside: Vector | None = None) -> tuple[float, float]:
    """Slope b of y = a + b x + c beside, and its standard error; infinite where not to be told."""
    n, known = len(x), 2
    x, y = x - x.mean(), y - y.mean()
    if beside is not None and float(np.ptp(beside)) > 0.0:
        other, known = beside - beside.mean(), 3
        x, y = (v - other * float(other @ v) / float(other @ other) for v in (x, y))
    spread = float(x @ x)
    if n <= known or not spread > 0.0:
        return nan, inf
    slope = float(x @ y) / spread
    rest = y - slope * x
    return slope, sqrt(float(rest @ rest) / (n - known) / spread)
