"""The benches' policy as a graph and in other frameworks: the same weights, the same answers."""

from importlib import import_module
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.policies.onnx import INPUT
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.policy_spec import PolicySpec

LAYERS = ("p0", "p1", "action")
CRITIC = ("c0", "c1")
SCALARS = ("value", "error", "confidence_logit")

Weights = dict[str, NDArray[np.float32]]


def tanh_policy(n_y: int, n_u: int, hidden: int, seed: int = 0) -> PolicySpec:
    """Normaliser, a policy and a critic of two tanh layers: random weights, the usual contract.

    The known answers come from plain numpy.
    """
    rng = np.random.default_rng(seed)
    weights: Weights = {
        "mean": rng.standard_normal(n_y).astype(np.float32),
        "inverse": np.ones(n_y, np.float32),
    }
    nodes = [
        helper.make_node("Sub", [INPUT, "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "inverse"], ["x"]),
    ]

    def dense(source: str, name: str, rows: int, columns: int, squash: bool = True) -> str:
        W = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        weights[f"W_{name}"] = W.astype(np.float32)
        weights[f"b_{name}"] = np.zeros(columns, np.float32)
        target = f"{name}_sum" if squash else name
        nodes.append(helper.make_node("Gemm", [source, f"W_{name}", f"b_{name}"], [target]))
        if squash:
            nodes.append(helper.make_node("Tanh", [target], [name]))
        return name

    dense(dense(dense("x", "p0", n_y, hidden), "p1", hidden, hidden), "action", hidden, n_u)
    trunk = dense(dense("x", "c0", n_y, hidden), "c1", hidden, hidden)
    for name in SCALARS:
        dense(trunk, name, hidden, 1, squash=False)

    observations = SignalSet(tuple(Signal(f"y{i}", "1", -10.0, 10.0) for i in range(n_y)))
    outputs = SignalSet(tuple(Signal(f"u{i}", "1", -1.0, 1.0) for i in range(n_u)))
    questions = rng.standard_normal((8, n_y)).astype(np.float32)
    answers = _forward(weights, questions)
    value, error, logit = (answers[name][:, 0] for name in SCALARS)
    golden = Golden(questions, answers["action"], value, error, logit)
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [1, n_y])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
            for name, size in ({"action": n_u} | dict.fromkeys(SCALARS, 1)).items()
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return PolicySpec(
        model.SerializeToString(), observations, outputs, golden, label=f"bench 2x{hidden}"
    )


def _forward(weights: Weights, questions: NDArray[np.float32]) -> Weights:
    def dense(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return x @ weights[f"W_{name}"] + weights[f"b_{name}"]

    x = (questions - weights["mean"]) * weights["inverse"]
    policy = np.tanh(dense(np.tanh(dense(x, "p0")), "p1"))
    trunk = np.tanh(dense(np.tanh(dense(x, "c0")), "c1"))
    return {"action": np.tanh(dense(policy, "action"))} | {
        name: dense(trunk, name) for name in SCALARS
    }


def weights_of(spec: PolicySpec) -> Weights:
    """Initialisers of the graph by name: `mean`, `inverse`, and `W_` and `b_` of each layer."""
    graph = onnx.load_from_string(spec.model).graph
    return {entry.name: numpy_helper.to_array(entry).copy() for entry in graph.initializer}


def sb3_model(weights: Weights, n_y: int, n_u: int) -> Any:  # noqa: ANN401  (no types there)
    """PPO whose `predict` gives what the graph gives before its last tanh.

    It has no normaliser of its own, so ours is folded into its first layer.

    Raises:
        ImportError: stable-baselines3 is not installed.
    """
    import torch

    gymnasium: Any = import_module("gymnasium")
    ppo: Any = import_module("stable_baselines3").PPO
    spaces = {  # all that is asked of a world that is never stepped
        "observation_space": gymnasium.spaces.Box(-10.0, 10.0, (n_y,), np.float32),
        "action_space": gymnasium.spaces.Box(-100.0, 100.0, (n_u,), np.float32),
    }
    world = type("World", (gymnasium.Env,), spaces)()
    torch.set_num_threads(1)
    hidden = weights["W_p1"].shape[0]
    model = ppo(
        "MlpPolicy", world, policy_kwargs={"net_arch": [hidden, hidden]}, device="cpu", n_steps=64
    )
    first = weights["W_p0"] * weights["inverse"][:, np.newaxis]
    folded = {
        "p0": (first, weights["b_p0"] - weights["mean"] @ first),
        "p1": (weights["W_p1"], weights["b_p1"]),
        "action": (weights["W_action"], weights["b_action"]),
    }
    net: Any = model.policy.mlp_extractor.policy_net
    with torch.no_grad():
        for layer, name in zip((net[0], net[2], model.policy.action_net), LAYERS, strict=True):
            W, b = folded[name]
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(W.T)))
            layer.bias.copy_(torch.from_numpy(b))
    return model


def torch_nets(weights: Weights) -> tuple[Any, Any, dict[str, Any]]:
    """(policy, trunk of the critic, its heads) as modules in eval mode, weights from the graph."""
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def dense(name: str) -> nn.Linear:
        W, b = weights[f"W_{name}"], weights[f"b_{name}"]
        layer = nn.Linear(*W.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(W.T)))
            layer.bias.copy_(torch.from_numpy(b))
        return layer

    policy = nn.Sequential(*(m for name in LAYERS for m in (dense(name), nn.Tanh())))
    trunk = nn.Sequential(*(m for name in CRITIC for m in (dense(name), nn.Tanh())))
    heads = {name: dense(name).eval() for name in SCALARS}
    return policy.eval(), trunk.eval(), heads
