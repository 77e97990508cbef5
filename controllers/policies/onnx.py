"""An ONNX policy: one graph from raw measurements to scaled action, value, error and confidence.

Everything that can fail or allocate happens at construction: the graph is inspected, loaded,
bound once to fixed buffers, warmed, and asked known questions. A call in the tick then copies the
observation in, runs, and reads one row of numbers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.policies.answer import SCALARS, SQUARE_LIMIT, AnswerCheck
from steadyhand.controllers.policies.golden import SCALAR_NAMES, Golden
from steadyhand.controllers.policies.graph import GraphLimits, inspect_graph
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector

INPUT: Final = "observation"
OUTPUTS: Final = ("action", *SCALAR_NAMES)

# TF32 rounds the products of a float32 graph to 10 bits: answers then differ between machines.
_PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}


class OnnxPolicy:
    """Policy made from the bytes of an ONNX graph.

    The graph takes `observation` (1, n_y) and gives `action` (1, n_u), `value` (1, 1),
    `error` (1, 1) and `confidence_logit` (1, 1), all float32 with fixed shapes, in engineering
    units. Not thread-safe: one caller.
    """

    provider: str
    """What really runs the graph: `cpu` or `cuda`."""
    notice: str
    """Not empty when the wanted provider could not be had: tell it loudly."""
    golden_error: float
    """Largest scaled difference to the known answers."""

    def __init__(
        self,
        model: bytes,
        observations: SignalSet,
        outputs: SignalSet,
        golden: Golden,
        *,
        providers: Sequence[str] = ("cpu",),
        require_provider: bool = False,
        limits: GraphLimits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Load, bind, warm and examine the graph.

        Args:
            model: bytes of the graph; nothing else is read.
            observations: columns of `Observation.values`.
            outputs: columns of the action, with the range the policy declares.
            golden: known answers, replayed here on the provider that will run.
            providers: wished-for providers in order, of `cpu` and `cuda`.
            require_provider: refuse instead of falling back to another provider.
            limits: caps on the graph's size.
            clock: monotonic seconds for `Proposal.latency_s`; None leaves it 0.

        Raises:
            ModelError: the graph is refused; `code` says by which check.
        """
        self.summary = inspect_graph(model, limits)
        golden.check(len(observations), len(outputs))
        session, self.provider, self.notice = _session(model, providers, require_provider)
        _check_contract(session, len(observations), len(outputs))

        self.n_y = len(observations)
        self._check = AnswerCheck(observations, outputs)
        self._clock = clock
        self._input: NDArray[np.float32] = np.zeros(len(observations), np.float32)
        self.numbers: NDArray[np.float32] = np.zeros(len(outputs) + SCALARS, np.float32)
        """(n_u + 3,) the last answer: actions, V, E, C. Overwritten by each run."""
        self.session = session
        """The session itself, for whoever compares ways to call it."""
        self.run_bound: Callable[[], Any] = _bind(session, self._input, self.numbers)
        self.golden_error = self._examine(golden, outputs)

    def propose(self, observation: Observation) -> Proposal:
        """Proposal for `observation`; callable in the tick, never raises."""
        clock = self._clock
        start = clock() if clock else 0.0
        values = observation.values
        try:
            if not values.dot(values) < SQUARE_LIMIT:
                return self._check.input_refused(values)
            self._input[:] = values
            self.run_bound()
        except Exception as error:  # noqa: BLE001  (a policy's failure is a status, never ours)
            text = f"inference failed: {type(error).__name__}: {str(error)[:300]}"
            return self._check.failed(
                ProposalStatus.ERROR, text, (Fault(ReasonCode.INFER_ERROR, text=text),)
            )
        latency_s = clock() - start if clock else 0.0
        return self._check.proposal(self.numbers.tolist(), latency_s)

    def run(self, values: Vector) -> bool:
        """Run the graph on `values` (n_y,) into `numbers`; False when an input is not finite."""
        if not values.dot(values) < SQUARE_LIMIT:
            return False
        self._input[:] = values
        self.run_bound()
        return True

    def _examine(self, golden: Golden, outputs: SignalSet) -> float:
        """Replay the known answers forwards and backwards, which also warms every buffer.

        Returns:
            Largest scaled difference.

        Raises:
            ModelError: NONDET the two passes differ in any bit; CONST the action never changes;
                GOLDEN an answer is wrong.
        """
        answers = np.empty((len(golden), len(self.numbers)), np.float32)
        again = np.empty_like(answers)
        questions = golden.observation.astype(np.float64)
        try:
            for order, rows in (
                (range(len(golden)), answers),
                (reversed(range(len(golden))), again),
            ):
                for i in order:
                    self.run(questions[i])
                    rows[i] = self.numbers
        except Exception as error:  # onnxruntime's errors share no base below Exception
            raise ModelError(
                f"the graph fails on a golden vector: {error}", _code(error)
            ) from error
        if answers.tobytes() != again.tobytes():
            i = int(np.argmax((answers != again).any(axis=1)))
            raise ModelError(
                f"same input, other answer: vector {i} gave {answers[i].tolist()} and then "
                f"{again[i].tolist()}; export the deterministic head",
                "NONDET",
            )
        worst, where = golden.worst(answers, outputs)
        if not worst <= golden.tolerance:
            raise ModelError(
                f"known answer missed by {worst:.3g} of its scale, tolerance "
                f"{golden.tolerance:.3g}: {where} (on {self.provider}); export again",
                "GOLDEN",
            )
        if (answers[:, : len(outputs)] == answers[0, : len(outputs)]).all():
            raise ModelError(
                f"the action is {answers[0, : len(outputs)].tolist()} for all {len(golden)} golden "
                "vectors: it does not depend on the observation",
                "CONST",
            )
        return worst


def _session(
    model: bytes, wanted: Sequence[str], require: bool
) -> tuple[ort.InferenceSession, str, str]:
    """Session on the first wanted provider that can be had, with its name and a notice."""
    unknown = [name for name in wanted if name not in _PROVIDERS]
    if unknown or not wanted:
        raise ModelError(
            f"providers {list(wanted)}: name some of {', '.join(_PROVIDERS)}", "PROVIDER"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # what it would print reaches the caller as an error anyway
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    offered = ort.get_available_providers()
    order = [name for name in wanted if _PROVIDERS[name][0] in offered]
    if "cpu" not in order:
        order.append("cpu")
    session, failed = _first_that_loads(order, model, options)
    active = session.get_providers()[0]
    name = next((name for name, (full, _) in _PROVIDERS.items() if full == active), active)
    if name == wanted[0]:
        return session, name, ""
    notice = (
        f"asked for {wanted[0]}, running on {name}: onnxruntime {ort.__version__} offers "
        f"{', '.join(offered)}{failed}; install the gpu extra and its driver, or ask for {name}"
    )
    if require:
        raise ModelError(notice, "PROVIDER")
    return session, name, notice


def _first_that_loads(
    order: list[str], model: bytes, options: ort.SessionOptions
) -> tuple[ort.InferenceSession, str]:
    """Session on the providers of `order`, or else on the CPU alone, and why not on all of them.

    A provider that cannot start raises on one machine and is left out in silence on another, by an
    environment variable. Here it is left out and told, always; a bad graph fails on the CPU too.

    Raises:
        ModelError: the graph cannot be loaded.
    """
    failed = ""
    while True:
        try:
            session = ort.InferenceSession(
                model,
                options,
                providers=[_PROVIDERS[name][0] for name in order],
                provider_options=[_PROVIDERS[name][1] for name in order],
                enable_fallback=0,  # its own would be told on the terminal, and nowhere else
            )
        except Exception as error:  # onnxruntime's errors share no base below Exception
            if order == ["cpu"]:
                text = f"the graph cannot be loaded: {error}"
                raise ModelError(text, _code(error)) from error
            order, failed = ["cpu"], f" ({str(error)[:300]})"
        else:
            return session, failed


def _code(error: Exception) -> str:
    """Which check an error of onnxruntime belongs to; it tells them apart by text alone."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "bad_alloc" in text or "allocat" in text:
        return "LIMIT"
    if "opset" in text or "ir version" in text or "ir_version" in text or "registered" in text:
        return "OPSET"
    if "not_implemented" in text or "not implemented" in text:
        return "OPSET"
    if "shape" in text or "dimension" in text:
        return "SHAPE"
    return "LOAD"


def _check_contract(session: ort.InferenceSession, n_y: int, n_u: int) -> None:
    """Names, types, ranks and fixed shapes of the graph against the contract.

    Raises:
        ModelError: IO a wrong name, type, rank or size; SHAPE a batch other than 1 or a free axis.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for side, found, wanted in (
        ("input", inputs, (INPUT,)),
        ("output", outputs, OUTPUTS),
    ):
        names = [entry.name for entry in found]
        if sorted(names) != sorted(wanted):
            raise ModelError(f"{side}s are {names}, must be {list(wanted)}", "IO")
    sizes = {INPUT: n_y, "action": n_u} | dict.fromkeys(SCALAR_NAMES, 1)
    for entry in (*inputs, *outputs):
        shape, wanted_shape = list(entry.shape), [1, sizes[entry.name]]
        difference = f"{entry.name} is {entry.type}{shape}, must be tensor(float){wanted_shape}"
        if entry.type != "tensor(float)" or len(shape) != 2:
            raise ModelError(difference, "IO")
        if not all(isinstance(axis, int) for axis in shape):
            raise ModelError(f"{difference}: export without dynamic axes", "SHAPE")
        if shape[0] != 1:
            raise ModelError(f"{difference}: export with a batch of 1", "SHAPE")
        if shape[1] != sizes[entry.name]:
            raise ModelError(f"{difference}: not made for this plant's signals", "IO")


def _bind(
    session: ort.InferenceSession, source: NDArray[np.float32], target: NDArray[np.float32]
) -> Callable[[], Any]:
    """Bind the graph once to `source` (n_y,) and `target` (n_u + 3,).

    Returns the call that runs it. The binding reads and writes the arrays' own memory, so a call
    passes no data at all.
    """
    n_u = len(target) - SCALARS
    places = {"action": target[:n_u]}
    places |= {name: target[n_u + i : n_u + i + 1] for i, name in enumerate(SCALAR_NAMES)}
    binding = session.io_binding()
    binding.bind_ortvalue_input(INPUT, ort.OrtValue.ortvalue_from_numpy(source.reshape(1, -1)))
    for name, place in places.items():
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(place.reshape(1, -1)))
    # The public method only adds checks of types that are fixed here; they cost as much as a
    # small net. Where a later onnxruntime hides the inner objects, the public method serves.
    inner, inner_binding = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    if inner is None or inner_binding is None:
        return partial(session.run_with_iobinding, binding)
    return partial(inner.run_with_iobinding, inner_binding, ort.RunOptions())
