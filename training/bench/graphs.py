"""The benches' policy in other frameworks: the same weights, so that every row answers alike."""

from importlib import import_module
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from steadyhand.runtime.policy_spec import PolicySpec

LAYERS = ("p0", "p1", "action")
CRITIC = ("c0", "c1")
SCALARS = ("value", "error", "confidence_logit")

Weights = dict[str, NDArray[np.float32]]


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
