"""Graphs that a trusted key signed by mistake: each is refused, by the reader or in the trial.

The bundles here are signed correctly; only their graph is wrong. The trial process is limited, so
a graph that eats memory or time costs neither of the running loop.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.errors import BundleError, ModelError
from steadyhand.controllers.policies.graph import GraphLimits, inspect_graph
from steadyhand.runtime.bundle.pack import pack_bundle
from steadyhand.runtime.child import ChildLimits, examine
from steadyhand.runtime.policy_spec import PolicySpec
from tests.support.bundles import PLANT
from tests.support.models import TanhPolicy, observation_signals, output_signals

Edit = Callable[[onnx.ModelProto], object]
MAKER = TanhPolicy()


def spec_of(model: bytes, maker: TanhPolicy = MAKER) -> PolicySpec:
    return PolicySpec(model, observation_signals(), output_signals(), maker.golden())


def append(*nodes: onnx.NodeProto, tensors: tuple[onnx.TensorProto, ...] = ()) -> Edit:
    """Nodes beside the policy, whose results nobody uses but the last, which becomes `value`."""

    def edit(model: onnx.ModelProto) -> None:
        graph = model.graph
        graph.initializer.extend(tensors)
        next(n for n in graph.node if "value" in n.output).output[0] = "old_value"
        graph.node.extend(nodes)

    return edit


def constant(name: str, values: object, dtype: object = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def empty_graph(name: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [1, 1])
    return helper.make_graph(
        [helper.make_node("Neg", ["old_value"], [f"{name}_out"])], name, [], [out]
    )


def external(location: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "pW1")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return edit


def external_unmarked(model: onnx.ModelProto) -> None:
    """External data named, but the location flag left at its default."""
    tensor = next(t for t in model.graph.initializer if t.name == "pW1")
    tensor.external_data.add(key="location", value="weights.bin")


def shape_without_data(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "pb1")
    tensor.dims[:] = [1000, 1000]


def huge_shape(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "pb1")
    tensor.dims[:] = [1 << 40, 1 << 40]


def negative_shape(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "pb1")
    tensor.dims[:] = [-8]


def shape_bomb(model: onnx.ModelProto) -> None:
    """110 bytes that become 4 GB while constants are folded."""
    append(
        helper.make_node("ConstantOfShape", ["size"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
        helper.make_node("Add", ["old_value", "sum"], ["value"]),
        tensors=(constant("size", [1 << 30], np.int64),),
    )(model)


def strings(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"text"]))


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().dims[:] = [1]


def function(model: onnx.ModelProto) -> None:
    model.functions.append(
        helper.make_function(
            "own",
            "F",
            ["a"],
            ["b"],
            [helper.make_node("Neg", ["a"], ["b"])],
            [helper.make_opsetid("", 17)],
        )
    )


def training(model: onnx.ModelProto) -> None:
    model.training_info.add()


def second_opset(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


REFUSED: dict[str, tuple[Edit, str, str]] = {
    "loop": (
        append(helper.make_node("Loop", ["old_value"], ["value"], body=empty_graph("body"))),
        "OPSET", "'Loop'"),
    "if": (
        append(helper.make_node(
            "If", ["old_value"], ["value"],
            then_branch=empty_graph("a"), else_branch=empty_graph("b"))),
        "OPSET", "'If'"),
    "scan": (
        append(helper.make_node(
            "Scan", ["old_value"], ["value"], body=empty_graph("b"), num_scan_inputs=1)),
        "OPSET", "'Scan'"),
    "subgraph in an allowed operator": (
        append(helper.make_node("Neg", ["old_value"], ["value"], body=empty_graph("b"))),
        "LOAD", "subgraph"),
    "shape bomb": (shape_bomb, "OPSET", "ConstantOfShape"),
    "custom domain": (
        append(helper.make_node("Neg", ["old_value"], ["value"], domain="evil.example")),
        "OPSET", "evil.example"),
    "imported domain": (second_opset, "OPSET", "ai.onnx.ml"),
    "library of functions": (function, "LOAD", "functions"),
    "training information": (training, "LOAD", "training"),
    "external file beside": (external("weights.bin"), "LOAD", "external data"),
    "external file above": (external("../../etc/passwd"), "LOAD", "external data"),
    "external absolute": (external("/etc/passwd"), "LOAD", "external data"),
    "external device": (external("/dev/zero"), "LOAD", "external data"),
    "external, unmarked": (external_unmarked, "LOAD", "external data"),
    "shape without data": (shape_without_data, "LOAD", "1000000 elements, but 32 bytes"),
    "astronomic shape": (huge_shape, "LIMIT", "at most"),
    "negative shape": (negative_shape, "LOAD", "size -8"),
    "text tensor": (strings, "LOAD", "strings"),
    "sparse tensor": (sparse, "LOAD", "sparse"),
    "no nodes": (lambda m: m.graph.ClearField("node"), "LOAD", "no nodes"),
    "no opset": (lambda m: m.ClearField("opset_import"), "OPSET", "opset 0"),
    "multinomial": (
        append(helper.make_node("Multinomial", ["old_value"], ["value"])), "NONDET", "random"),
    "optimiser's operator": (
        append(helper.make_node("Unique", ["old_value"], ["value"])), "OPSET", "allowed are: Abs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_reader_refuses(name):
    edit, code, words = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        inspect_graph(MAKER.model(edit))
    assert caught.value.code == code, caught.value
    assert words in str(caught.value)


def test_reader_sees_what_the_library_sees():
    """Against the reference reader: nodes, operators, opset, element count."""
    for hidden in (1, 8, 200):
        maker = TanhPolicy(hidden=hidden)
        model = maker.proto()
        summary = inspect_graph(model.SerializeToString())
        assert summary.nodes == len(model.graph.node)
        assert summary.operators == tuple(sorted({n.op_type for n in model.graph.node}))
        assert summary.elements == sum(w.size for w in maker.weights.values())
        assert (summary.opset, summary.ir_version) == (17, 8)


@pytest.mark.parametrize("dynamo", [False, True])
def test_reader_accepts_what_torch_exports(dynamo):
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).eval()
    import io

    out = io.BytesIO()
    if dynamo:
        program = torch.onnx.export(net, (torch.zeros(1, 3),), dynamo=True, verbose=False)
        model = program.model_proto.SerializeToString()
    else:
        torch.onnx.export(net, (torch.zeros(1, 3),), out, opset_version=17, dynamo=False)
        model = out.getvalue()
    summary = inspect_graph(model)
    assert {"Gemm", "Tanh"} <= set(summary.operators)
    assert summary.elements >= 3 * 8 + 8 + 8 + 1


def test_caps_count_everything_before_it_is_loaded():
    model = MAKER.model()
    found = inspect_graph(model)
    with pytest.raises(ModelError, match="nodes") as caught:
        inspect_graph(model, GraphLimits(nodes=found.nodes - 1))
    assert caught.value.code == "LIMIT"
    with pytest.raises(ModelError, match="elements"):
        inspect_graph(model, GraphLimits(elements=found.elements - 1))
    with pytest.raises(ModelError, match="bytes"):
        inspect_graph(model, GraphLimits(model_bytes=len(model) - 1))
    with pytest.raises(ModelError, match="tensors"):
        inspect_graph(model, GraphLimits(tensors=5))
    exact = GraphLimits(len(model), found.nodes, len(MAKER.weights), found.elements)
    assert inspect_graph(model, exact) == found


def test_a_million_nodes_are_refused_after_the_first_two_thousand():
    """The garbage behind the nodes is never reached."""
    node = helper.make_node("Neg", ["x0"], ["n"])
    many = onnx.ModelProto()
    many.graph.node.extend([node] * 100_000)
    data = many.SerializeToString() * 10 + b"\xff" * 20
    with pytest.raises(ModelError, match="more than 2000 nodes"):
        inspect_graph(data)


def test_doubled_message_does_not_hide_a_node():
    """Protobuf merges two `graph` fields into one; so must whoever checks it."""
    evil = onnx.ModelProto()
    evil.graph.node.append(helper.make_node("Loop", ["a"], ["b"]))
    model = MAKER.model()
    merged = onnx.load_from_string(model + evil.SerializeToString())
    assert merged.graph.node[-1].op_type == "Loop"
    with pytest.raises(ModelError, match="Loop"):
        inspect_graph(model + evil.SerializeToString())
    with pytest.raises(ModelError, match="Loop"):
        inspect_graph(evil.SerializeToString() + model)


def test_last_of_two_operator_names_is_checked_too():
    node = helper.make_node("Neg", ["x0"], ["n"]).SerializeToString() + b"\x22\x04Loop"
    assert onnx.NodeProto.FromString(node).op_type == "Loop"
    graph = b"\x0a" + bytes([len(node)]) + node
    model = MAKER.model() + b"\x3a" + bytes([len(graph)]) + graph
    assert onnx.load_from_string(model).graph.node[-1].op_type == "Loop"
    with pytest.raises(ModelError, match="Loop"):
        inspect_graph(model)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "IR version 0"),
        (b"\x08", "cut short inside a number"),
        (b"\x08" + b"\xff" * 11, "longer than 10 bytes"),
        (b"\x3a\x05ab", "cut short inside a model"),
        (b"\x3b\x3c", "unknown field 7 (wire 3)"),
        (b"\x38\x01", "unknown field 7 (wire 0)"),
        (b"\xf2\x3e\x00", "unknown field 1006"),
        (b"\x3a\x04\x0a\x02\x22\x05", "cut short inside a node"),
        (b"\x3a\x05\x0a\x03\x22\x01\xff", "not UTF-8"),
        (b"PK\x03\x04", "unknown field"),
        (b"\x80\x04\x95pickle", "unknown field"),
    ],
)
def test_bytes_that_are_no_graph(data, words):
    with pytest.raises(ModelError) as caught:
        inspect_graph(data)
    assert words in str(caught.value)


def test_no_damage_makes_the_reader_fail_in_another_way():
    """Any flip, cut or insertion ends in a summary or a ModelError, never anything else."""
    model = MAKER.model()
    rng = np.random.default_rng(0)
    outcomes = {True: 0, False: 0}
    for _ in range(4000):
        spoiled = bytearray(model)
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(len(spoiled)))
            spoiled[place] = int(rng.integers(256))
        if rng.random() < 0.2:
            del spoiled[int(rng.integers(len(spoiled))) :]
        try:
            inspect_graph(bytes(spoiled))
            outcomes[True] += 1
        except ModelError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 100


# -- the trial -------------------------------------------------------------------------------------


def doubling(times: int) -> Edit:
    """Concat of a tensor with itself, again and again: allowed operators, exponential memory."""
    nodes = [
        helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(times)
    ]
    nodes += [
        helper.make_node("ReduceSum", [f"c{times}"], ["sum"], keepdims=0),
        helper.make_node("Add", ["old_value", "sum"], ["value"]),
    ]
    return append(*nodes, tensors=(constant("c0", [0.0] * 1024),))


def busy(times: int) -> Edit:
    """Products of constant matrices: allowed operators, small memory, much time."""
    size = 1200
    nodes = [helper.make_node("MatMul", [f"m{i}", "m0"], [f"m{i + 1}"]) for i in range(times)]
    nodes += [
        helper.make_node("ReduceSum", [f"m{times}"], ["sum"], keepdims=0),
        helper.make_node("Add", ["old_value", "sum"], ["value"]),
    ]
    return append(*nodes, tensors=(constant("m0", np.zeros((size, size))),))


def test_memory_bomb_dies_in_the_trial():
    with pytest.raises(ModelError) as caught:
        examine(spec_of(MAKER.model(doubling(22))), ChildLimits(memory_bytes=256 * 2**20))
    assert caught.value.code == "LIMIT", caught.value


def test_time_bomb_dies_in_the_trial_by_its_processor_time():
    with pytest.raises(ModelError, match="1 processor seconds") as caught:
        examine(spec_of(MAKER.model(busy(400))), ChildLimits(cpu_s=1))
    assert caught.value.code == "LIMIT"


def test_time_bomb_dies_in_the_trial_by_the_clock_on_the_wall():
    with pytest.raises(ModelError, match=r"within 0\.8 s") as caught:
        examine(spec_of(MAKER.model(busy(400))), ChildLimits(start_s=0.8))
    assert caught.value.code == "LIMIT"


def test_trial_refuses_with_the_codes_of_a_bundle(kit, tmp_path):
    """One refusal of each kind, through packing, as the trainer meets it."""
    golden = MAKER.golden()

    def spoiled(edit: Edit) -> bytes:
        return MAKER.model(edit)

    def batch_32(model: onnx.ModelProto) -> None:
        for entry in (*model.graph.input, *model.graph.output):
            entry.type.tensor_type.shape.dim[0].dim_value = 32

    def other_name(model: onnx.ModelProto) -> None:
        model.graph.input[0].name = model.graph.node[0].input[0] = "obs"

    def other_weight(model: onnx.ModelProto) -> None:
        model.graph.initializer[4].raw_data = struct.pack(f"<{3 * 8}f", *np.zeros(24))

    cases = {
        "BUNDLE_SHAPE": spoiled(batch_32),
        "BUNDLE_IO": spoiled(other_name),
        "BUNDLE_OPSET": spoiled(lambda m: setattr(m.opset_import[0], "version", 99)),
        "BUNDLE_GOLDEN": spoiled(other_weight),
        "BUNDLE_NONDET": spoiled(
            append(helper.make_node("RandomNormalLike", ["old_value"], ["value"]))
        ),
        "BUNDLE_LIMIT": spoiled(doubling(22)),
        "BUNDLE_LOAD": MAKER.model()[:-20],
    }
    target = tmp_path / "never.shb"
    for code, model in cases.items():
        with pytest.raises(BundleError) as caught:
            pack_bundle(
                target,
                kit.key,
                PLANT,
                name="care",
                version=1,
                model=model,
                golden=golden,
                trust={},
                evidence={},
                provenance={},
                limits=ChildLimits(memory_bytes=256 * 2**20),
            )
        assert caught.value.code == code, caught.value
        assert list(tmp_path.iterdir()) == []


def test_side_file_in_the_working_folder_is_not_read(tmp_path, monkeypatch):
    """A relative side file is what the library itself would still load."""
    monkeypatch.chdir(tmp_path)
    Path("weights.bin").write_bytes(MAKER.weights["pW1"].tobytes())
    with pytest.raises(ModelError, match="external data"):
        examine(spec_of(MAKER.model(external("weights.bin"))))


def test_missing_provider_is_told_or_refused():
    spec = spec_of(MAKER.model())
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("a GPU build of onnxruntime is installed")
    asked = replace(spec, providers=("cuda", "cpu"))
    report = examine(asked)
    assert report["provider"] == "cpu"
    assert "asked for cuda" in report["notice"]
    with pytest.raises(ModelError, match="asked for cuda"):
        examine(replace(asked, require_provider=True))
