"""Advantages and losses against numbers worked by hand."""

import numpy as np
import torch

from steadyhand.training.methods.ppo import Ppo, PpoSettings, approximate_kl, clipped_loss, whiten
from steadyhand.training.nets import Actor, Baseline, Decision, Scale
from steadyhand.training.rollout import Rollout, gae


def test_gae_by_hand() -> None:
    # gamma 0.5, lambda 0.5, rewards 1, 2, 3, values 1, 1, 2, value behind the end 4:
    #   delta_2 = 3 + 0.5*4 - 2 = 3,   delta_1 = 2 + 0.5*2 - 1 = 2,   delta_0 = 1 + 0.5*1 - 1 = 0.5
    #   A_2 = 3,   A_1 = 2 + 0.25*3 = 2.75,   A_0 = 0.5 + 0.25*2.75 = 1.1875
    reward = np.array([[1.0], [2.0], [3.0]])
    value = np.array([[1.0], [1.0], [2.0]])
    advantage, returns = gae(reward, value, np.array([4.0]), gamma=0.5, lam=0.5)
    np.testing.assert_allclose(advantage[:, 0], [1.1875, 2.75, 3.0])
    np.testing.assert_allclose(returns[:, 0], [2.1875, 3.75, 5.0])


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    rng = np.random.default_rng(3)
    reward, value, last = rng.normal(size=(7, 4)), rng.normal(size=(7, 4)), rng.normal(size=4)
    advantage, _ = gae(reward, value, last, gamma=0.9, lam=1.0)
    discount = 0.9 ** np.arange(7)[:, None]
    total = (discount * reward).sum(0) + 0.9**7 * last
    np.testing.assert_allclose(advantage[0], total - value[0], rtol=1e-12)


def test_clipped_loss_by_hand() -> None:
    # clip 0.2; rho A: 1.5*1 -> 1.2 (clipped), 0.5*1 -> 0.5 (kept), 1.5*-1 -> -1.5 (kept),
    # 0.5*-1 -> -0.8 (clipped); mean of (1.2, 0.5, -1.5, -0.8) is -0.15, the loss its negative
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert torch.isclose(clipped_loss(ratio.log(), advantage, 0.2), torch.tensor(0.15))


def test_clipped_loss_gives_no_gradient_where_it_is_clipped() -> None:
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    clipped_loss(log_ratio, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2).backward()
    assert log_ratio.grad is not None
    # kept samples: d(-rho A / 4)/d log rho = -rho A / 4
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, -0.125, 0.375, 0.0]))


def test_kl_estimate_is_zero_for_equal_policies_and_exact_for_a_known_ratio() -> None:
    assert approximate_kl(torch.zeros(5)) == 0.0
    # (2 - 1) - ln 2
    expected = torch.tensor(1.0 - np.log(2.0), dtype=torch.float32)
    assert torch.isclose(approximate_kl(torch.tensor([2.0]).log()), expected)


def test_whitened_advantages_have_mean_zero_and_deviation_one() -> None:
    white = whiten(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert abs(float(white.mean())) < 1e-6
    assert abs(float(white.std()) - 1.0) < 1e-6


def test_log_density_is_that_of_a_gaussian() -> None:
    actor = Actor(3, 2, (4,), log_std=-0.7)
    mean, raw = torch.tensor([[0.3, -0.2]]), torch.tensor([[0.5, 0.1]])
    normal = torch.distributions.Normal(mean, float(np.exp(-0.7)))
    torch.testing.assert_close(actor.log_prob(mean, raw), normal.log_prob(raw).sum(-1))
    torch.testing.assert_close(actor.entropy(), normal.entropy().sum())


def test_an_update_raises_the_probability_of_what_paid() -> None:
    torch.manual_seed(0)
    decision = Decision(torch.nn.Identity(), 1, Scale([-1.0], [1.0]), 1, (8,), log_std=-1.0)
    features = torch.zeros(8, 16, 1)
    raw = torch.linspace(-0.6, 0.6, 128).reshape(8, 16, 1)
    with torch.no_grad():
        log_prob = decision.actor.log_prob(decision.actor(features), raw)
    reward = raw[..., 0].numpy().astype(np.float64)  # the larger the action, the better
    zeros = np.zeros((8, 16))
    rollout = Rollout(
        features, raw, log_prob, torch.zeros(8, 16), reward, zeros, zeros, zeros > 1.0,
        np.zeros(16), zeros, zeros, zeros,
    )  # fmt: skip
    ppo = Ppo(decision, Baseline(1, (8,)), PpoSettings(gamma=0.0, minibatch=64))
    before = float(decision.actor(torch.zeros(1, 1)).detach())
    report = ppo.update(rollout, np.random.default_rng(0))
    assert float(decision.actor(torch.zeros(1, 1)).detach()) > before
    assert report.epochs == 4
