"""The policy against a second implementation, and everything it must refuse or survive."""

import resource
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Observation, Proposal, ProposalStatus
from steadyhand.controllers.policies.answer import AnswerCheck
from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.policies.onnx import OnnxPolicy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from tests.support.models import TanhPolicy, observation_signals, output_signals

MAKER = TanhPolicy()
Edit = Callable[[onnx.ModelProto], None]


def observe(*values: float) -> Observation:
    n = len(values)
    return Observation(1, 0.0, np.array(values), np.zeros(n), np.zeros(n, np.int8), np.zeros(1))


def build(edit: Edit | None = None, golden: Golden | None = None, **options: object) -> OnnxPolicy:
    return OnnxPolicy(
        MAKER.model(edit),
        observation_signals(),
        output_signals(),
        golden or MAKER.golden(),
        **options,
    )


def node(name: str) -> Callable[[onnx.ModelProto], onnx.NodeProto]:
    return lambda model: next(n for n in model.graph.node if name in n.output)


# -- answers ---------------------------------------------------------------------------------------


def test_answers_as_the_second_implementation_does():
    policy = build()
    rng = np.random.default_rng(3)
    for values in rng.uniform(-100, 100, (50, 3)):
        proposal = policy.propose(observe(*values))
        expected = MAKER.answer(values[np.newaxis].astype(np.float32))
        assert proposal.status is ProposalStatus.OK
        assert proposal.faults == ()
        np.testing.assert_allclose(proposal.action, expected["action"][0], rtol=1e-5, atol=1e-3)
        assert proposal.value == pytest.approx(float(expected["value"][0, 0]), abs=1e-5)
        assert proposal.error == pytest.approx(float(expected["error"][0, 0]), abs=1e-5)
        assert proposal.confidence_logit == pytest.approx(
            float(expected["confidence_logit"][0, 0]), abs=1e-5
        )


def test_each_proposal_owns_its_action():
    policy = build()
    first = policy.propose(observe(1.0, 2.0, 3.0))
    kept = first.action.copy()
    second = policy.propose(observe(-50.0, 20.0, 90.0))
    assert not np.array_equal(second.action, kept)
    np.testing.assert_array_equal(first.action, kept)
    assert first.action.dtype == np.float64


def test_proposal_has_every_field_its_constructor_would_give():
    made = AnswerCheck(observation_signals(), output_signals()).proposal([1.0, 2.0, 3.0, 4.0], 0.5)
    usual = Proposal(made.action, value=2.0, error=3.0, confidence_logit=4.0, latency_s=0.5)
    assert {f.name: getattr(made, f.name) for f in fields(Proposal)} == {
        f.name: getattr(usual, f.name) for f in fields(Proposal)
    }
    with pytest.raises(FrozenInstanceError):
        made.value = 1.0


def test_several_outputs_keep_their_order():
    maker = TanhPolicy(n_y=5, n_u=4, seed=9)
    policy = OnnxPolicy(maker.model(), observation_signals(5), output_signals(4), maker.golden())
    values = np.array([1.0, -20.0, 33.0, 44.0, -5.0])
    np.testing.assert_allclose(
        policy.propose(observe(*values)).action,
        maker.answer(values[np.newaxis].astype(np.float32))["action"][0],
        rtol=1e-5,
        atol=1e-3,
    )


def test_latency_is_measured_with_the_given_clock_only():
    times = iter((10.0, 10.25))
    assert build(clock=lambda: next(times)).propose(observe(1, 2, 3)).latency_s == 0.25
    assert build().propose(observe(1, 2, 3)).latency_s == 0.0


# -- in the tick -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [nan, inf, -inf, 1e39])
@pytest.mark.filterwarnings("ignore:overflow encountered in dot")
def test_input_that_is_not_finite_is_named_and_not_run(bad):
    policy = build()
    policy.propose(observe(1.0, 2.0, 3.0))
    before = policy.numbers.copy()
    proposal = policy.propose(observe(1.0, bad, 3.0))
    assert proposal.status is ProposalStatus.NONFINITE
    assert [(f.code, f.signal) for f in proposal.faults] == [(ReasonCode.OBS_NONFINITE, "y1")]
    assert np.isnan(proposal.action).all()
    np.testing.assert_array_equal(policy.numbers, before)
    assert policy.propose(observe(1.0, 2.0, 3.0)).status is ProposalStatus.OK


def log_of_first_input(model: onnx.ModelProto) -> None:
    """value = log(observation[0] + 150): finite on the golden vectors, NaN below -150."""
    graph = model.graph
    node("value")(model).output[0] = "old_value"
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    graph.initializer.append(numpy_helper.from_array(np.array([150], np.float32), "shift"))
    graph.node.append(helper.make_node("Gather", ["observation", "first"], ["y0"], axis=1))
    graph.node.append(helper.make_node("Add", ["y0", "shift"], ["shifted"]))
    graph.node.append(helper.make_node("Log", ["shifted"], ["value"]))


def test_answer_that_is_not_finite_is_no_proposal():
    golden = MAKER.golden()
    value = np.log(golden.observation[:, 0] + 150)
    golden = Golden(golden.observation, golden.action, value, golden.error, golden.confidence_logit)
    policy = build(log_of_first_input, golden)
    proposal = policy.propose(observe(-151.0, 0.0, 0.0))
    assert proposal.status is ProposalStatus.NONFINITE
    assert [(f.code, f.signal) for f in proposal.faults] == [(ReasonCode.ACT_NONFINITE, "value")]
    assert np.isnan(proposal.action).all()


def test_action_outside_the_declared_range_is_passed_on_with_a_fault():
    wide = TanhPolicy(low=-800.0, high=900.0, seed=1)
    policy = OnnxPolicy(wide.model(), observation_signals(), output_signals(), wide.golden())
    rng = np.random.default_rng(0)
    seen = set()
    for values in rng.uniform(-100, 100, (200, 3)):
        proposal = policy.propose(observe(*values))
        outside = int(proposal.action[0] > 450.0) - int(proposal.action[0] < -400.0)
        assert proposal.status is ProposalStatus.OK
        assert bool(proposal.faults) == bool(outside)
        if outside:
            (fault,) = proposal.faults
            assert fault.code is ReasonCode.ACT_RANGE
            assert fault.value == proposal.action[0]
            assert fault.limit == (450.0 if proposal.action[0] > 0 else -400.0)
        seen.add(outside)
    assert seen == {-1, 0, 1}


def test_rounding_at_the_bound_is_no_fault():
    """low + span * share computed in float32 lands one unit in the last place beyond a bound."""
    outputs = SignalSet((Signal("u0", "kW", 1000.1, 1000.7),))
    check = AnswerCheck(observation_signals(), outputs)
    for bound in (1000.1, 1000.7):
        nearest = np.float32(bound)
        beyond = np.nextafter(nearest, np.float32(inf if bound > 1000.5 else -inf))
        assert check.proposal([float(beyond), 0.0, 0.0, 0.0]).faults == ()
    # 1/1000 of the range beyond is no rounding
    assert check.proposal([1000.7006, 0.0, 0.0, 0.0]).faults[0].limit == 1000.7


def test_run_time_error_is_a_status(monkeypatch):
    policy = build()

    def fail() -> None:
        raise RuntimeError("CUDA error 700: illegal address")

    monkeypatch.setattr(policy, "run_bound", fail)
    proposal = policy.propose(observe(1.0, 2.0, 3.0))
    assert proposal.status is ProposalStatus.ERROR
    assert "CUDA error 700" in proposal.text
    assert proposal.faults[0].code is ReasonCode.INFER_ERROR


def test_wrong_number_of_values_is_a_status():
    assert build().propose(observe(1.0, 2.0)).status is ProposalStatus.ERROR


# -- at construction -------------------------------------------------------------------------------


def rename(old: str, new: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        for entry in (*model.graph.input, *model.graph.output):
            if entry.name == old:
                entry.name = new
        for n in model.graph.node:
            n.input[:] = [new if name == old else name for name in n.input]
            n.output[:] = [new if name == old else name for name in n.output]

    return edit


def batch(size: int | str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        for entry in (*model.graph.input, *model.graph.output):
            axis = entry.type.tensor_type.shape.dim[0]
            if isinstance(size, int):
                axis.dim_value = size
            else:
                axis.dim_param = size

    return edit


def random_head(model: onnx.ModelProto) -> None:
    node("value")(model).output[0] = "mean_value"
    model.graph.node.append(helper.make_node("RandomNormalLike", ["mean_value"], ["noise"]))
    model.graph.node.append(helper.make_node("Add", ["mean_value", "noise"], ["value"]))


def opset(version: int) -> Edit:
    return lambda model: setattr(model.opset_import[0], "version", version)


def custom_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    node("share")(model).domain = "com.microsoft"


def double_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    first = model.graph.node[0]
    first.input[0] = "cast"
    model.graph.node.insert(
        0, helper.make_node("Cast", ["observation"], ["cast"], to=TensorProto.FLOAT)
    )


def extra_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("raw", TensorProto.FLOAT, [1, 1]))


def rank_three(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1], np.int64), "three"))
    node("value")(model).output[0] = "flat"
    model.graph.node.append(helper.make_node("Reshape", ["flat", "three"], ["value"]))
    shape = model.graph.output[1].type.tensor_type.shape
    shape.dim.add().dim_value = 1


def without_normaliser(model: onnx.ModelProto) -> None:
    node("p" + "g0")(model).input[0] = "observation"


def without_tanh(model: onnx.ModelProto) -> None:
    node("share")(model).op_type = "Identity"


def perturbed_weight(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "pW1":
            array = numpy_helper.to_array(tensor).copy()
            array[0, 0] += 0.05
            tensor.CopyFrom(numpy_helper.from_array(array, "pW1"))


def zero_weights(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "pW2":
            tensor.CopyFrom(
                numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), "pW2")
            )


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (rename("observation", "obs"), "IO", "observation"),
        (rename("confidence_logit", "confidence"), "IO", "confidence_logit"),
        (extra_output, "IO", "raw"),
        (double_input, "IO", "tensor(double)"),
        (rank_three, "IO", "[1, 1, 1]"),
        (batch(32), "SHAPE", "batch of 1"),
        (batch("N"), "SHAPE", "dynamic"),
        (opset(99), "OPSET", "opset 99"),
        (opset(9), "OPSET", "opset 9"),
        (lambda model: setattr(model, "ir_version", 99), "OPSET", "IR version 99"),
        (custom_domain, "OPSET", "com.microsoft"),
        (random_head, "NONDET", "RandomNormalLike"),
        (perturbed_weight, "GOLDEN", "known answer missed"),
        (without_normaliser, "GOLDEN", "known answer missed"),
        (without_tanh, "GOLDEN", "known answer missed"),
    ],
)
def test_graph_that_breaks_the_contract_is_refused(edit, code, words):
    with pytest.raises(ModelError, match=r"\S") as caught:
        build(edit)
    assert caught.value.code == code, caught.value
    assert words in str(caught.value)


def test_policy_for_other_signals_is_refused():
    other = TanhPolicy(n_y=4)
    with pytest.raises(ModelError, match="not made for this plant") as caught:
        OnnxPolicy(other.model(), observation_signals(3), output_signals(), MAKER.golden())
    assert caught.value.code == "IO"


def test_action_that_never_changes_is_refused():
    maker = TanhPolicy()
    maker.weights["pW2"][:] = 0.0
    with pytest.raises(ModelError, match="does not depend on the observation") as caught:
        OnnxPolicy(maker.model(), observation_signals(), output_signals(), maker.golden())
    assert caught.value.code == "CONST"


def test_zeroed_head_misses_the_known_answers():
    with pytest.raises(ModelError) as caught:
        build(zero_weights)
    assert caught.value.code == "GOLDEN"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda g: {"observation": g.observation[:1]}, "float32"),
        (lambda g: {"action": g.action.astype(np.float64)}, "float64"),
        (lambda g: {"value": g.value + np.float32(nan)}, "NaN"),
        (lambda g: {"observation": np.repeat(g.observation[:1], 16, axis=0)}, "2 different"),
        (lambda g: {"tolerance": 0.5}, "tolerance 0.5"),
        (lambda g: {"tolerance": nan}, "tolerance nan"),
    ],
)
def test_golden_vectors_that_prove_nothing_are_refused(spoil, words):
    good = MAKER.golden()
    fields = {name: getattr(good, name) for name in Golden.__dataclass_fields__}
    with pytest.raises(ModelError) as caught:
        build(golden=Golden(**(fields | spoil(good))))
    assert caught.value.code == "GOLDEN"
    assert words in str(caught.value)


def test_answers_that_differ_between_passes_are_refused(monkeypatch):
    """A graph of allowed operators cannot do this; a broken provider can."""
    answers = iter(range(1000))
    inner = OnnxPolicy.run

    def drifting(self, values):
        finite = inner(self, values)
        self.numbers[0] += next(answers) * 1e-4
        return finite

    monkeypatch.setattr(OnnxPolicy, "run", drifting)
    with pytest.raises(ModelError, match="same input, other answer") as caught:
        build()
    assert caught.value.code == "NONDET"


# -- providers -------------------------------------------------------------------------------------


def test_missing_gpu_is_told_loudly_and_the_cpu_runs():
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("a GPU build of onnxruntime is installed")
    policy = build(providers=("cuda", "cpu"))
    assert policy.provider == "cpu"
    assert "asked for cuda, running on cpu" in policy.notice
    assert policy.propose(observe(1, 2, 3)).status is ProposalStatus.OK
    with pytest.raises(ModelError, match="asked for cuda") as caught:
        build(providers=("cuda",), require_provider=True)
    assert caught.value.code == "PROVIDER"


def test_unknown_provider_lists_the_choices():
    with pytest.raises(ModelError, match="cpu, cuda"):
        build(providers=("tpu",))


def test_cpu_as_asked_gives_no_notice():
    policy = build()
    assert (policy.provider, policy.notice) == ("cpu", "")
    assert policy.golden_error < 1e-5


@pytest.mark.slow
def test_a_thousand_policies_leave_no_memory_behind():
    """What a year of swaps within one process would leak."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    for _ in range(50):
        build()
    before = resident_bytes()
    for _ in range(1000):
        build().propose(observe(1.0, 2.0, 3.0))
    assert resident_bytes() - before < 50 * 2**20
