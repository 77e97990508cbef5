"""The benches' graph is a valid one and keeps the contract."""

import numpy as np
import onnx

from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.training.bench.graphs import tanh_policy


def test_the_graph_is_valid():
    model = onnx.load_from_string(tanh_policy(16, 7, 64).model)
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node].count("Gemm") == 8
    assert {w.name for w in model.graph.initializer} >= {"mean", "W_p0", "b_confidence_logit"}


def test_the_policy_keeps_the_contract():
    """Construction itself replays the answers that plain numpy gave."""
    policy = tanh_policy(16, 7, 64).build()
    assert policy.golden_error < 1e-5
    values = np.linspace(-1, 1, 16)
    observation = Observation(1, 0.0, values, np.zeros(16), np.zeros(16, np.int8), np.zeros(7))
    proposal = policy.propose(observation)
    assert proposal.status is ProposalStatus.OK
    assert proposal.action.shape == (7,)
