"""From a trained decision to the bytes of one ONNX graph, checked against torch.

The graph holds the whole decision: features, normaliser, actor, critic heads, action scaling.
Input `observation` (1, n_y) in engineering units; outputs `action` (1, n_u) in engineering units,
`value`, `error`, `confidence_logit` (1, 1); all float32 with fixed shapes.
"""

import io
import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.policies.golden import SCALAR_NAMES, Golden
from steadyhand.controllers.policies.onnx import INPUT, OUTPUTS
from steadyhand.controllers.signals import SignalSet
from steadyhand.training.nets import Decision, DecisionOutput

OPSET = 17
PARITY = 1e-5
"""Largest accepted difference between torch and the graph, as a share of the output's scale."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph and what the comparison with torch gave."""

    model: bytes
    parity: float
    """Largest scaled difference over the compared observations."""
    compared: int


def export(decision: Decision, observations: NDArray[np.float32], outputs: SignalSet) -> Exported:
    """Export and compare.

    Args:
        decision: trained; set to evaluation mode.
        observations: (n, n_y) raw observations to compare on, 1000 or so.
        outputs: whose ranges scale the difference of actions.

    Raises:
        ModelError: torch and the graph differ by more than `PARITY`.
    """
    decision.eval()
    buffer: Any = io.BytesIO()  # torch's annotation knows paths only; it writes to any file
    example = torch.from_numpy(observations[:1])
    quiet = logging.getLogger("torch.onnx")
    quiet.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing exporter announces its successor every time
        torch.onnx.export(
            decision,
            (example,),
            buffer,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            opset_version=OPSET,
            dynamo=False,
            do_constant_folding=True,
        )
    model = buffer.getvalue()
    differences = parity(decision, model, observations, outputs)
    worst = max(differences.values())
    if not worst <= PARITY:
        raise ModelError(
            f"torch and the exported graph differ on {len(observations)} observations, as shares "
            f"of their scale: {differences}, allowed {PARITY:g}: look for float64 or an operator "
            "that rounds differently",
            "PARITY",
        )
    return Exported(model, worst, len(observations))


def parity(
    decision: Decision, model: bytes, observations: NDArray[np.float32], outputs: SignalSet
) -> dict[str, float]:
    """Largest difference by output, as a share of its scale.

    The scale of an action is its range, that of a scalar its largest answer, at least 1.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected: DecisionOutput = decision(torch.from_numpy(observations))
    span = outputs.high - outputs.low
    scales = {name: max(1.0, float(getattr(expected, name).abs().max())) for name in SCALAR_NAMES}
    worst = dict.fromkeys(OUTPUTS, 0.0)
    for i, row in enumerate(observations):
        answers = session.run(list(OUTPUTS), {INPUT: row[None]})
        for name, answer, torch_answer in zip(OUTPUTS, answers, expected, strict=True):
            want = torch_answer[i].numpy()
            scale = span if name == "action" else scales[name]
            worst[name] = max(worst[name], float((np.abs(answer[0] - want) / scale).max()))
    return worst


def golden_vectors(
    decision: Decision, observations: NDArray[np.float32], tolerance: float = 1e-4
) -> Golden:
    """Known answers of torch for observations (n, n_y)."""
    with torch.no_grad():
        answers: DecisionOutput = decision(torch.from_numpy(observations))
    scalars = {
        name: getattr(answers, name).numpy()[:, 0].astype(np.float32) for name in SCALAR_NAMES
    }
    return Golden(observations, answers.action.numpy(), tolerance=tolerance, **scalars)


def spread_rows(observations: NDArray[np.float64], n: int) -> NDArray[np.float32]:
    """N rows evenly spread over observations (m, n_y), m >= n, as float32."""
    picked = np.linspace(0, len(observations) - 1, n).round().astype(np.intp)
    return observations[picked].astype(np.float32)
