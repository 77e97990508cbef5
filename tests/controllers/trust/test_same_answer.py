"""A policy that does not look: told; one that rests at a stop, or has nothing to see: not."""

import numpy as np
import pytest

from steadyhand.controllers.frames import Observation, Proposal, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.controllers.trust.same_answer import TICKS, SameAnswer

OBSERVATIONS = SignalSet((Signal("load", "kW", 0.0, 100.0), Signal("price", "", 0.0, 1.0)))
OUTPUTS = SignalSet((Signal("flow", "kW", -4.0, 6.0), Signal("valve", "", 0.0, 1.0)))


def image(load: float, price: float = 0.5) -> Observation:
    values = np.array([load, price])
    return Observation(1, 0.0, values, np.zeros(2), np.zeros(2, np.int8), np.zeros(2))


def answer(*action: float) -> Proposal:
    return Proposal(np.array(action), value=0.0, error=0.0, confidence_logit=2.0)


def told(images, answers):
    watch = SameAnswer(OBSERVATIONS, OUTPUTS)
    return [watch.look(one, other) for one, other in zip(images, answers, strict=True)]


def moving(count: int):
    return [image(10.0 + i) for i in range(count)]


def test_the_same_answer_to_inputs_that_move_is_told_from_the_eighth_on():
    found = told(moving(12), [answer(1.0, 0.5)] * 12)
    assert found[: TICKS - 1] == [None] * (TICKS - 1)
    assert {fault.code for fault in found[TICKS - 1 :]} == {ReasonCode.ACT_CONST}
    first = found[TICKS - 1]
    assert (first.value, first.limit) == (8.0, 8.0)
    assert first.text == "the same answer 8 times, while load moved by 7"


def test_one_bit_is_another_answer():
    wanted = [1.0, np.nextafter(1.0, 2.0)] * 20
    assert told(moving(40), [answer(one, 0.5) for one in wanted]) == [None] * 40


@pytest.mark.parametrize("stop", [(-4.0, 0.0), (6.0, 1.0), (6.0 - 1e-6, 0.0), (50.0, -3.0)])
def test_an_answer_at_or_beyond_its_stops_may_stay_there_for_ever(stop):
    assert told(moving(60), [answer(*stop)] * 60) == [None] * 60


def test_one_output_at_its_stop_does_not_excuse_the_other():
    assert told(moving(8), [answer(6.0, 0.5)] * 8)[-1] is not None


@pytest.mark.parametrize("step", [0.0, 0.1])
def test_while_nothing_moves_the_same_answer_is_right(step):
    """A hundredth of the range, 1 kW, is what counts as moving."""
    images = [image(10.0 + step * (i % 10)) for i in range(60)]
    assert told(images, [answer(1.0, 0.5)] * 60) == [None] * 60


def test_a_slow_change_is_seen_in_the_end():
    images = [image(10.0 + 0.05 * i) for i in range(60)]
    found = told(images, [answer(1.0, 0.5)] * 60)
    assert [fault is not None for fault in found].index(True) == 21  # 21 * 0.05 kW > 1 kW


def test_another_answer_and_no_answer_begin_anew():
    same, none = answer(1.0, 0.5), Proposal(np.full(2, np.nan), ProposalStatus.LATE)
    for between in (answer(2.0, 0.5), none):
        answers = [same] * 7 + [between] + [same] * 7
        assert told(moving(15), answers) == [None] * 15


def test_numbers_that_are_none_neither_move_nor_break_it():
    images = [image(np.nan, np.inf) for _ in range(20)]
    assert told(images, [answer(1.0, 0.5)] * 20) == [None] * 20
