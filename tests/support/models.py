"""Small policies as ONNX graphs, with a second, plain-numpy way to compute their answers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.signals import Signal, SignalSet

F32 = np.float32
OUTPUT_NAMES = ("action", "value", "error", "confidence_logit")


def observation_signals(n_y: int = 3) -> SignalSet:
    return SignalSet(tuple(Signal(f"y{i}", "kW", -100.0, 100.0) for i in range(n_y)))


def output_signals(n_u: int = 1) -> SignalSet:
    return SignalSet(
        tuple(Signal(f"u{i}", "kW", -400.0, 450.0, rate_per_s=7.0) for i in range(n_u))
    )


@dataclass
class TanhPolicy:
    """Normaliser, separate two-layer tanh nets, tanh head scaled into [low, high]; batch 1."""

    n_y: int = 3
    n_u: int = 1
    hidden: int = 8
    low: float = -400.0
    high: float = 450.0
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def weight(rows: int, columns: int) -> NDArray[np.float32]:
            return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(F32)

        n_y, n_u, hidden = self.n_y, self.n_u, self.hidden
        self.weights: dict[str, NDArray[np.float32]] = {
            "mean": rng.standard_normal(n_y).astype(F32),
            "inverse": np.full(n_y, 0.02, F32),
            "half": np.full(n_u, (self.high - self.low) / 2, F32),
            "middle": np.full(n_u, (self.high + self.low) / 2, F32),
        }
        for net, columns in (("p", n_u), ("v", 1), ("e", 1), ("c", 1)):
            for layer, (rows, width) in enumerate(
                ((n_y, hidden), (hidden, hidden), (hidden, columns))
            ):
                self.weights[f"{net}W{layer}"] = weight(rows, width)
                self.weights[f"{net}b{layer}"] = weight(1, width)[0]

    def answer(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The same in numpy; observation (n, n_y)."""
        w = self.weights
        x0 = (observation.astype(F32) - w["mean"]) * w["inverse"]

        def net(name: str) -> NDArray[np.float32]:
            x = np.tanh(x0 @ w[f"{name}W0"] + w[f"{name}b0"])
            x = np.tanh(x @ w[f"{name}W1"] + w[f"{name}b1"])
            return x @ w[f"{name}W2"] + w[f"{name}b2"]

        return {
            "action": np.tanh(net("p")) * w["half"] + w["middle"],
            "value": net("v"),
            "error": net("e"),
            "confidence_logit": net("c"),
        }

    def golden(self, n: int = 16, tolerance: float = 1e-4) -> Golden:
        rng = np.random.default_rng(self.seed + 1)
        observation = rng.uniform(-100, 100, (n, self.n_y)).astype(F32)
        answer = self.answer(observation)
        return Golden(
            observation,
            answer["action"],
            *(answer[name][:, 0] for name in OUTPUT_NAMES[1:]),
            tolerance=tolerance,
        )

    def proto(self) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Sub", ["observation", "mean"], ["d"]),
            helper.make_node("Mul", ["d", "inverse"], ["x0"]),
        ]
        for net, result in (
            ("p", "raw"),
            ("v", "value"),
            ("e", "error"),
            ("c", "confidence_logit"),
        ):
            x = "x0"
            for layer in range(2):
                nodes.append(
                    helper.make_node(
                        "Gemm", [x, f"{net}W{layer}", f"{net}b{layer}"], [f"{net}g{layer}"]
                    )
                )
                nodes.append(helper.make_node("Tanh", [f"{net}g{layer}"], [f"{net}t{layer}"]))
                x = f"{net}t{layer}"
            nodes.append(helper.make_node("Gemm", [x, f"{net}W2", f"{net}b2"], [result]))
        nodes += [
            helper.make_node("Tanh", ["raw"], ["share"]),
            helper.make_node("Mul", ["share", "half"], ["scaled"]),
            helper.make_node("Add", ["scaled", "middle"], ["action"]),
        ]
        sizes = {"action": self.n_u, "value": 1, "error": 1, "confidence_logit": 1}
        graph = helper.make_graph(
            nodes,
            "policy",
            [helper.make_tensor_value_info("observation", TensorProto.FLOAT, [1, self.n_y])],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
                for name, size in sizes.items()
            ],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        return model

    def model(self, edit: Callable[[onnx.ModelProto], None] | None = None) -> bytes:
        """Bytes of the graph, after `edit` spoiled it."""
        proto = self.proto()
        if edit is not None:
            edit(proto)
        return proto.SerializeToString()
