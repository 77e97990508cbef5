"""Goal: the policy's call beside what a user would write, in the same run, as ratios.

The machine's speed cancels only inside one run with the rows taking turns, so no figure here is an
absolute time. The graph is the usual one: normaliser, a policy and a critic of two tanh layers,
batch 1. Its bytes are written by a few lines of protobuf, since the edge has no package for it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.frames import Observation, Proposal
from steadyhand.controllers.policies.answer import AnswerCheck
from steadyhand.controllers.policies.golden import SCALAR_NAMES, Golden
from steadyhand.controllers.policies.onnx import INPUT, OUTPUTS
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.worker import PolicyProcess

GOAL_AT_64, GOAL_AT_256 = 0.6, 0.75
"""Largest ratio of our step to `session.run(dict)` at 2x64 and at 2x256."""


@dataclass(frozen=True, slots=True)
class InferenceFigures:
    """Median microseconds of one call, best round, and ratios of our step."""

    hidden: int
    session_run_us: float
    """`session.run(None, {name: array})` with the array ready: the rival."""
    session_propose_us: float
    """The rival made to give what `propose` gives: convert, run, check, frame."""
    bound_us: float
    """The bare bound call: the runtime's own floor."""
    step_us: float
    """`OnnxPolicy.run`: guard, copy in, run, numbers out."""
    propose_us: float
    """`OnnxPolicy.propose`: the step, its checks and the frame for the record."""
    process_us: float
    """`PolicyProcess.propose`: the same in a child process, both ways through the kernel."""

    @property
    def ratio(self) -> float:
        """Our step to the rival's."""
        return self.step_us / self.session_run_us

    @property
    def goal(self) -> float:
        """Largest ratio asked for at this size."""
        return GOAL_AT_64 if self.hidden <= 64 else GOAL_AT_256

    def row(self) -> dict[str, float]:
        """All figures, for tables and JSON."""
        return asdict(self) | {
            "ratio": self.ratio,
            "ratio_propose": self.propose_us / self.session_propose_us,
            "ratio_to_floor": self.step_us / self.bound_us,
            "goal": self.goal,
        }


def bench_inference(
    hidden: int, *, n_y: int = 16, n_u: int = 7, rounds: int = 20, calls: int = 500
) -> InferenceFigures:
    """Time the ways to ask one policy, taking turns.

    Args:
        hidden: width of both layers of both nets.
        n_y: observations.
        n_u: outputs.
        rounds: turns each way takes.
        calls: calls per turn.
    """
    spec = tanh_policy(n_y, n_u, hidden)
    policy = spec.build()
    values = np.random.default_rng(1).standard_normal(n_y)
    observation = Observation(1, 0.0, values, np.zeros(n_y), np.zeros(n_y, np.int8), np.zeros(n_u))
    feed = {INPUT: values.astype(np.float32)[np.newaxis]}
    session = policy.session
    check = AnswerCheck(spec.observations, spec.outputs)

    def usual() -> Proposal:
        action, *scalars = session.run(OUTPUTS, {INPUT: values.astype(np.float32)[np.newaxis]})
        return check.proposal([*action[0].tolist(), *(float(s[0, 0]) for s in scalars)])

    process = PolicyProcess(spec, deadline_s=1.0)
    ways: dict[str, Callable[[], Any]] = {
        "session_run_us": lambda: session.run(None, feed),
        "session_propose_us": usual,
        "bound_us": policy.run_bound,
        "step_us": lambda: policy.run(values),
        "propose_us": lambda: policy.propose(observation),
        "process_us": lambda: process.propose(observation),
    }
    try:
        return InferenceFigures(hidden=hidden, **_best_medians(ways, rounds, calls))
    finally:
        process.close()


def _best_medians(ways: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """Lowest round's median of each way in microseconds."""
    clock = time.perf_counter_ns
    best = dict.fromkeys(ways, np.inf)
    taken = np.empty(calls)
    for _ in range(rounds):
        for name, call in ways.items():
            for i in range(calls):
                start = clock()
                call()
                taken[i] = clock() - start
            best[name] = min(best[name], float(np.median(taken)) / 1e3)
    return best


# -- the graph -------------------------------------------------------------------------------------

_FLOAT = 1  # TensorProto.DataType


def tanh_policy(n_y: int, n_u: int, hidden: int, seed: int = 0) -> PolicySpec:
    """A policy that keeps the contract: random weights, answers known from plain numpy."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {
        "mean": rng.standard_normal(n_y).astype(np.float32),
        "inverse": np.ones(n_y, np.float32),
    }
    nodes = [_node("Sub", [INPUT, "mean"], "centred"), _node("Mul", ["centred", "inverse"], "x")]

    def dense(source: str, name: str, rows: int, columns: int, squash: bool = True) -> str:
        weights[f"W_{name}"] = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(
            np.float32
        )
        weights[f"b_{name}"] = np.zeros(columns, np.float32)
        target = f"{name}_sum" if squash else name
        nodes.append(_node("Gemm", [source, f"W_{name}", f"b_{name}"], target))
        if squash:
            nodes.append(_node("Tanh", [target], name))
        return name

    dense(dense(dense("x", "p0", n_y, hidden), "p1", hidden, hidden), "action", hidden, n_u)
    trunk = dense(dense("x", "c0", n_y, hidden), "c1", hidden, hidden)
    for name in SCALAR_NAMES:
        dense(trunk, name, hidden, 1, squash=False)

    observations = SignalSet(tuple(Signal(f"y{i}", "1", -10.0, 10.0) for i in range(n_y)))
    outputs = SignalSet(tuple(Signal(f"u{i}", "1", -1.0, 1.0) for i in range(n_u)))
    questions = rng.standard_normal((8, n_y)).astype(np.float32)
    answers = _forward(weights, questions)
    value, error, logit = (answers[name][:, 0] for name in SCALAR_NAMES)
    golden = Golden(questions, answers["action"], value, error, logit)
    model = _model(nodes, weights, n_y, {"action": n_u} | dict.fromkeys(SCALAR_NAMES, 1))
    return PolicySpec(model, observations, outputs, golden, label=f"bench 2x{hidden}")


def _forward(
    weights: dict[str, NDArray[np.float32]], questions: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    def dense(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return x @ weights[f"W_{name}"] + weights[f"b_{name}"]

    x = (questions - weights["mean"]) * weights["inverse"]
    policy = np.tanh(dense(np.tanh(dense(x, "p0")), "p1"))
    trunk = np.tanh(dense(np.tanh(dense(x, "c0")), "c1"))
    return {"action": np.tanh(dense(policy, "action"))} | {
        name: dense(trunk, name) for name in SCALAR_NAMES
    }


def _model(
    nodes: list[bytes],
    weights: dict[str, NDArray[np.float32]],
    n_y: int,
    outputs: dict[str, int],
) -> bytes:
    """Bytes of an onnx.proto ModelProto: IR 8, opset 17."""
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, b"bench")
    for name, array in weights.items():
        shape = b"".join(_varint(1 << 3) + _varint(size) for size in array.shape)
        kind = _varint(2 << 3) + _varint(_FLOAT)
        graph += _field(5, shape + kind + _field(8, name.encode()) + _field(9, array.tobytes()))
    graph += _field(11, _value_info(INPUT, n_y))
    graph += b"".join(_field(12, _value_info(name, size)) for name, size in outputs.items())
    opset = _field(8, _varint(2 << 3) + _varint(17))
    return _varint(1 << 3) + _varint(8) + _field(7, graph) + opset


def _node(operator: str, inputs: list[str], output: str) -> bytes:
    names = b"".join(_field(1, name.encode()) for name in inputs)
    return names + _field(2, output.encode()) + _field(4, operator.encode())


def _value_info(name: str, size: int) -> bytes:
    axes = b"".join(_field(1, _varint(1 << 3) + _varint(axis)) for axis in (1, size))
    tensor = _varint(1 << 3) + _varint(_FLOAT) + _field(2, axes)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
