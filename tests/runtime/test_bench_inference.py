"""The bench measures the right graph; its figures are for people, not for asserting."""

import numpy as np
import onnx
import pytest

from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.runtime.bench_inference import bench_inference, tanh_policy


def test_graph_written_by_hand_is_a_valid_one():
    spec = tanh_policy(16, 7, 64)
    model = onnx.load_from_string(spec.model)
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node].count("Gemm") == 8
    assert {w.name for w in model.graph.initializer} >= {"mean", "W_p0", "b_confidence_logit"}


def test_policy_of_the_bench_keeps_the_contract():
    """Construction itself replays the answers that plain numpy gave."""
    policy = tanh_policy(16, 7, 64).build()
    assert policy.golden_error < 1e-5
    values = np.linspace(-1, 1, 16)
    observation = Observation(1, 0.0, values, np.zeros(16), np.zeros(16, np.int8), np.zeros(7))
    proposal = policy.propose(observation)
    assert proposal.status is ProposalStatus.OK
    assert proposal.action.shape == (7,)


def test_figures_are_complete():
    row = bench_inference(8, rounds=2, calls=5).row()
    assert all(np.isfinite(value) and value > 0 for value in row.values())
    assert row["ratio"] == pytest.approx(row["step_us"] / row["session_run_us"])


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [64, 256])
def test_goal_holds_in_one_run(hidden):
    """A ratio inside one run with rows taking turns, not a time."""
    figures = bench_inference(hidden, rounds=30, calls=500)
    assert figures.ratio <= figures.goal, figures.row()
