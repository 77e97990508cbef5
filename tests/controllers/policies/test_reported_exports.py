"""Failures that users of other runtimes have reported: exports that are none, GPUs that are not."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.controllers.policies.onnx import OnnxPolicy
from tests.support.models import TanhPolicy, observation_signals, output_signals

MAKER = TanhPolicy()
GOLDEN_3 = TanhPolicy(n_u=3).golden()
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def observe(*values: float) -> Observation:
    n = len(values)
    return Observation(1, 0.0, np.array(values), np.zeros(n), np.zeros(n, np.int8), np.zeros(1))


def build(model: bytes | None = None, **options: object) -> OnnxPolicy:
    return OnnxPolicy(
        model or MAKER.model(),
        observation_signals(),
        output_signals(),
        MAKER.golden(),
        **options,
    )


# -- exports ---------------------------------------------------------------------------------------


def frozen(batch: int) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        for entry in (*model.graph.input, *model.graph.output):
            entry.type.tensor_type.shape.dim[0].dim_value = batch

    return edit


@pytest.mark.parametrize("batch", [1, 32])
def test_means_and_deviations_in_one_output_are_no_action(batch):
    """Three outputs, six columns: which of them are set-points is a guess we do not make."""
    six = TanhPolicy(n_u=6)
    with pytest.raises(ModelError) as caught:
        OnnxPolicy(six.model(frozen(batch)), observation_signals(), output_signals(3), GOLDEN_3)
    assert caught.value.code == ("IO" if batch == 1 else "SHAPE")
    assert f"[{batch}, 6]" in str(caught.value) or f"[{batch}, 3]" in str(caught.value)


def recurrent(model: onnx.ModelProto, *, declared: bool) -> None:
    """A recurrent layer before the value head; its state declared as input, or forgotten."""
    rng = np.random.default_rng(0)
    shapes = {"rX": (1, 16, 8), "rR": (1, 16, 4)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    inputs = ["vt1", "rX", "rR"]
    if declared:
        inputs += ["", "", "h0"]
        model.graph.input.append(helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, 1, 4]))
    model.graph.node.append(helper.make_node("LSTM", inputs, ["", "h1"], hidden_size=4))


@pytest.mark.parametrize("declared", [False, True], ids=["state forgotten", "state declared"])
def test_a_recurrent_policy_is_refused(declared):
    with pytest.raises(ModelError) as caught:
        build(MAKER.model(lambda model: recurrent(model, declared=declared)))
    assert caught.value.code == "OPSET"
    assert "LSTM" in str(caught.value)


def test_a_state_that_is_passed_by_hand_is_refused():
    def edit(model: onnx.ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, 4]))
        model.graph.output.append(helper.make_tensor_value_info("h1", TensorProto.FLOAT, [1, 4]))
        model.graph.node.append(helper.make_node("Tanh", ["h0"], ["h1"]))

    with pytest.raises(ModelError, match="h0") as caught:
        build(MAKER.model(edit))
    assert caught.value.code == "IO"


# -- a GPU that is asked for and not there ---------------------------------------------------------


@pytest.fixture
def offers_cuda(monkeypatch):
    """The library says that it can do CUDA; whether it really can, its session tells."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])


def leaves_it_out(genuine, asked):
    def session(model, options, providers, provider_options, **rest):
        asked.append(dict(zip(providers, provider_options, strict=True)))
        keep = [i for i, name in enumerate(providers) if name != CUDA]
        return genuine(
            model,
            options,
            providers=[providers[i] for i in keep],
            provider_options=[provider_options[i] for i in keep],
            **rest,
        )

    return session


def raises(genuine, asked):
    inner = leaves_it_out(genuine, asked)

    def session(model, options, providers, provider_options, **rest):
        if CUDA in providers:
            asked.append(dict(zip(providers, provider_options, strict=True)))
            raise RuntimeError("CUDA_PATH is set but CUDA wasn't able to be loaded")
        return inner(model, options, providers, provider_options, **rest)

    return session


@pytest.mark.parametrize("machine", [leaves_it_out, raises])
def test_both_ways_of_not_having_a_gpu_end_alike(machine, offers_cuda, monkeypatch):
    """On one machine the library goes on in silence, on another it raises."""
    asked: list[dict[str, dict[str, str]]] = []
    monkeypatch.setattr(ort, "InferenceSession", machine(ort.InferenceSession, asked))
    policy = build(providers=("cuda", "cpu"))
    assert policy.provider == "cpu"
    assert "asked for cuda, running on cpu" in policy.notice
    assert policy.propose(observe(1.0, 2.0, 3.0)).status is ProposalStatus.OK
    assert asked[0][CUDA] == {"use_tf32": "0"}, "TF32 alone moves answers by a third"
    with pytest.raises(ModelError, match="asked for cuda") as caught:
        build(providers=("cuda",), require_provider=True)
    assert caught.value.code == "PROVIDER"
    if machine is raises:
        assert "CUDA_PATH is set" in policy.notice


@pytest.mark.parametrize("machine", [leaves_it_out, raises])
def test_a_bad_graph_is_the_graphs_fault_on_any_machine(machine, offers_cuda, monkeypatch):
    monkeypatch.setattr(ort, "InferenceSession", machine(ort.InferenceSession, []))
    proto = MAKER.proto()
    proto.graph.node[0].input[1] = "nothing_there"
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        build(proto.SerializeToString(), providers=("cuda", "cpu"))
    assert caught.value.code != "PROVIDER"


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_this_library_as_it_is_does_not_pretend(offers_cuda):
    """Nothing but the offer is made up: a build without CUDA is told from one with it."""
    if CUDA in ort.capi._pybind_state.get_available_providers():
        pytest.skip("a GPU build of onnxruntime is installed")
    policy = build(providers=("cuda", "cpu"))
    assert (policy.provider, policy.notice != "") == ("cpu", True)
