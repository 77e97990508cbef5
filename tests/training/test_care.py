"""CARE's loss and event against numbers worked by hand."""

from math import log

import numpy as np
import torch

from steadyhand.training.methods.care import (
    CareData,
    CareSettings,
    care_loss,
    fit_care,
    success_event,
    windowed_sum,
)
from steadyhand.training.nets import Decision, Judgement, Scale


def test_loss_by_hand() -> None:
    # scale 10, V = (2, 5), G = (7, 5): misses 0.5 and 0; value = 0.5 * mean(0.25, 0) = 0.0625
    # E = (1, 30): E/scale - |miss| = 0.1 - 0.5 = -0.4 and 3.0; Huber with delta 1:
    #   0.5 * 0.16 = 0.08 and 3 - 0.5 = 2.5, mean 1.29, weight 0.5 -> 0.645
    # C = (0, ln 3), Y = (1, 0): ln 2 and -ln(1 - 3/4) = ln 4, mean 1.5 ln 2
    judged = Judgement(
        torch.tensor([2.0, 5.0]), torch.tensor([1.0, 30.0]), torch.tensor([0.0, log(3.0)])
    )
    loss = care_loss(
        judged, torch.tensor([7.0, 5.0]), torch.tensor([1.0, 0.0]), CareSettings(), scale=10.0
    )
    torch.testing.assert_close(loss.value, torch.tensor(0.0625))
    torch.testing.assert_close(loss.error, torch.tensor(0.645))
    torch.testing.assert_close(loss.confidence, torch.tensor(1.5 * log(2.0)))
    torch.testing.assert_close(loss.total, torch.tensor(0.0625 + 0.645 + 1.5 * log(2.0)))


def test_the_error_head_does_not_pull_on_the_value() -> None:
    value = torch.tensor([2.0], requires_grad=True)
    judged = Judgement(value, torch.tensor([1.0]), torch.tensor([0.0]))
    settings = CareSettings(value_weight=0.0, error_weight=1.0, confidence_weight=0.0)
    loss = care_loss(judged, torch.tensor([7.0]), torch.tensor([1.0]), settings, scale=10.0)
    loss.total.backward()
    assert value.grad is not None
    assert float(value.grad) == 0.0


def test_windowed_sum() -> None:
    x = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 5.0]])
    np.testing.assert_array_equal(windowed_sum(x, 2), [[3.0, 1.0], [5.0, 1.0], [7.0, 5.0]])
    np.testing.assert_array_equal(windowed_sum(x, 4), [[10.0, 6.0]])


def test_event_needs_all_three_conditions() -> None:
    settings = CareSettings(horizon_ticks=2, correction_share=0.1, tolerance=1.0)
    # columns: all well · a violation at tick 1 · corrections of 0.3 at tick 2 · too little return
    violated = np.zeros((3, 4), dtype=np.bool_)
    violated[1, 1] = True
    correction = np.zeros((3, 4))
    correction[2, 2] = 0.3
    advantage = np.array([[-1.0, 5.0, 5.0, -1.01], [0.0, 5.0, 5.0, 0.0]])
    event = success_event(violated, correction, advantage, settings)
    np.testing.assert_array_equal(event, [[True, False, True, False], [True, False, False, True]])


def test_confidence_learns_the_share_of_events_for_each_action() -> None:
    # The same state; action +1 goes well in 9 of 10 cases, action -1 in 2 of 10.
    torch.manual_seed(0)
    decision = Decision(torch.nn.Identity(), 2, Scale([-1.0], [1.0]), 1, (16,))
    n = 2000
    action = torch.tensor([1.0, -1.0]).repeat(n // 2)[:, None]
    rank = torch.arange(n) // 2 % 10
    event = torch.where(action[:, 0] > 0, rank < 9, rank < 2).float()
    data = CareData(torch.ones(n, 2), action, torch.zeros(n), event)
    settings = CareSettings(epochs=40, minibatch=200, lr=3e-3)
    losses = fit_care(decision, data, settings, np.random.default_rng(0))
    with torch.no_grad():
        judged = decision.critic(torch.ones(2, 2), torch.tensor([[1.0], [-1.0]]))
    good, bad = torch.sigmoid(judged.confidence_logit).tolist()
    assert losses[-1] < losses[0]
    assert abs(good - 0.9) < 0.02
    assert abs(bad - 0.2) < 0.02
    # V and E: the return always is 0, so the critic is right and knows it
    assert float(judged.value.abs().max()) < 0.1
    assert float(judged.error.max()) < 0.1
