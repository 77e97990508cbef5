"""What does a graph contain? Read from its bytes, before any library loads it.

A small reader of the protobuf wire format (varint, 32 bit, 64 bit, length-delimited) and the few
messages of onnx.proto that matter. It is strict on purpose: a field it does not know is refused,
every occurrence of a doubled field is checked, so no other reader can see a graph that this one
did not. Nothing is executed and nothing outside the bytes is opened.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from steadyhand.controllers.errors import ModelError

_FEED_FORWARD = """
    Abs Add And Cast CastLike Ceil Celu Clip Concat Constant Cos Div Elu Equal Erf Exp Flatten
    Floor Gather Gelu Gemm Greater GreaterOrEqual HardSigmoid HardSwish Identity
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Mean Min Mish Mul Neg
    Not Or PRelu Pow Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Relu Reshape Round Selu Sigmoid Sign Sin Slice Softmax Softplus
    Softsign Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Transpose Unsqueeze Where Xor"""
_RANDOM = """
    Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"""
OPERATORS = frozenset(_FEED_FORWARD.split())
"""Operators of a feed-forward policy. Absent on purpose: control flow, anything that grows a
shape out of a number, anything random, sequences, strings, custom code."""
RANDOM_OPERATORS = frozenset(_RANDOM.split())
OPSETS = range(13, 24)
IR_VERSIONS = range(7, 13)
_ITEM_SIZE = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Bytes per element of each TensorProto.DataType that is a plain number."""


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """How large a policy may be."""

    model_bytes: int = 64 * 2**20
    nodes: int = 2000
    tensors: int = 4000
    elements: int = 16 * 2**20
    """Numbers in all constant tensors together."""


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What a graph contains."""

    ir_version: int
    opset: int
    nodes: int
    elements: int
    operators: tuple[str, ...]


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_NUMBER: tuple[int, ...] = (VARINT,)
_NUMBERS: tuple[int, ...] = (
    VARINT,
    BYTES,
)  # repeated integers: one by one, or packed into one field
_TEXT: tuple[int, ...] = (BYTES,)

# onnx.proto, field numbers of each message: which wire types it may have. Left out, hence
# refused: functions, training_info, sparse tensors, subgraphs, strings as data, external data,
# segments, device configurations.
_Wires = dict[int, tuple[int, ...]]
_MODEL: _Wires = dict.fromkeys((2, 3, 4, 6, 7, 8, 14), _TEXT) | dict.fromkeys((1, 5), _NUMBER)
_OPSET: _Wires = {1: _TEXT, 2: (VARINT,)}
_GRAPH: _Wires = dict.fromkeys((1, 2, 5, 10, 11, 12, 13, 16), _TEXT)
_NODE: _Wires = dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 8, 9), _TEXT)
_ATTRIBUTE: _Wires = {
    1: _TEXT,
    2: (FIXED32,),
    3: (VARINT,),
    4: _TEXT,
    5: _TEXT,
    7: (FIXED32, BYTES),
}
_ATTRIBUTE |= {8: _NUMBERS, 9: _TEXT, 10: _TEXT, 13: _TEXT, 20: (VARINT,), 21: _TEXT}
_TENSOR: _Wires = {
    1: _NUMBERS,
    2: (VARINT,),
    4: (FIXED32, BYTES),
    5: _NUMBERS,
    7: _NUMBERS,
    8: _TEXT,
}
_TENSOR |= {9: _TEXT, 10: (FIXED64, BYTES), 11: _NUMBERS, 12: _TEXT, 14: (VARINT,), 16: _TEXT}
_TYPED_DATA = (4, 5, 7, 10, 11)
_FORBIDDEN: dict[str, dict[int, str]] = {
    "model": {20: "training information", 25: "functions", 26: "device configurations"},
    "graph": {14: "quantisation annotations", 15: "sparse tensors"},
    "node": {10: "device configurations"},
    "attribute": {6: "a subgraph", 11: "subgraphs", 22: "a sparse tensor", 23: "sparse tensors"},
    "tensor": {3: "a segment", 6: "strings", 13: "external data"},
}
_FIELDS: dict[str, _Wires] = {
    "model": _MODEL,
    "opset": _OPSET,
    "graph": _GRAPH,
    "node": _NODE,
    "attribute": _ATTRIBUTE,
    "tensor": _TENSOR,
}


def inspect_graph(model: bytes, limits: GraphLimits | None = None) -> GraphSummary:
    """Read what `model` contains and refuse whatever a policy has no need of.

    Args:
        model: bytes of an ONNX ModelProto.
        limits: caps on size; the defaults suit policies of some million weights.

    Raises:
        ModelError: LIMIT too large; OPSET an operator, domain, opset or IR version that is not
            allowed; NONDET a random operator; LOAD not a readable graph, external data,
            subgraphs, functions.
    """
    limits = limits or GraphLimits()
    if len(model) > limits.model_bytes:
        raise ModelError(
            f"graph of {len(model)} bytes: at most {limits.model_bytes} are allowed", "LIMIT"
        )
    reader = _Reader(limits)
    reader.model(memoryview(model))
    return reader.summary()


class _Reader:
    """Adds up what the messages contain, stopping at the first thing that is not allowed."""

    def __init__(self, limits: GraphLimits) -> None:
        self.limits = limits
        self.ir_version = 0
        self.opset = 0
        self.nodes = 0
        self.tensors = 0
        self.elements = 0
        self.operators: set[str] = set()

    def summary(self) -> GraphSummary:
        if self.ir_version not in IR_VERSIONS:
            raise ModelError(
                f"IR version {self.ir_version}: allowed are {IR_VERSIONS[0]}..{IR_VERSIONS[-1]}",
                "OPSET",
            )
        if self.opset not in OPSETS:
            raise ModelError(
                f"opset {self.opset}: allowed are {OPSETS[0]}..{OPSETS[-1]}; export again", "OPSET"
            )
        if not self.nodes:
            raise ModelError("the graph has no nodes: not a policy", "LOAD")
        operators = tuple(sorted(self.operators))
        return GraphSummary(self.ir_version, self.opset, self.nodes, self.elements, operators)

    def model(self, data: memoryview) -> None:
        for number, value in _fields(data, "model"):
            if number == 1:
                self.ir_version = _integer(value)
            elif number == 8:
                self.opset_import(_message(value))
            elif number == 7:
                self.graph(_message(value))

    def opset_import(self, data: memoryview) -> None:
        domain, version = "", 0
        for number, value in _fields(data, "opset"):
            if number == 1:
                domain = _text(value)
            else:
                version = _integer(value)
        if domain not in ("", "ai.onnx"):
            raise ModelError(
                f"operator domain {domain!r}: only the standard ONNX domain is allowed", "OPSET"
            )
        if self.opset not in (0, version):
            raise ModelError(f"two opsets: {self.opset} and {version}", "OPSET")
        self.opset = version

    def graph(self, data: memoryview) -> None:
        for number, value in _fields(data, "graph"):
            if number == 1:
                self.node(_message(value))
            elif number == 5:
                self.tensor(_message(value))

    def node(self, data: memoryview) -> None:
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise ModelError(f"more than {self.limits.nodes} nodes are not allowed", "LIMIT")
        for number, value in _fields(data, "node"):
            if number == 4:
                self.operator(_text(value))
            elif number == 7 and _text(value) not in ("", "ai.onnx"):
                raise ModelError(
                    f"operator domain {_text(value)!r}: only the standard ONNX domain is allowed",
                    "OPSET",
                )
            elif number == 8 and _text(value):
                raise ModelError(f"operator overload {_text(value)!r} is not allowed", "OPSET")
            elif number == 5:
                self.attribute(_message(value))

    def operator(self, name: str) -> None:
        if name in RANDOM_OPERATORS:
            raise ModelError(
                f"operator {name} is random: export the deterministic head of the policy", "NONDET"
            )
        if name not in OPERATORS:
            raise ModelError(
                f"operator {name!r} is not allowed; allowed are: {', '.join(sorted(OPERATORS))}",
                "OPSET",
            )
        self.operators.add(name)

    def attribute(self, data: memoryview) -> None:
        for number, value in _fields(data, "attribute"):
            if number in (5, 10):
                self.tensor(_message(value))
            elif number == 21 and _text(value):
                raise ModelError("an attribute refers to a function, which is not allowed", "LOAD")

    def tensor(self, data: memoryview) -> None:
        self.tensors += 1
        if self.tensors > self.limits.tensors:
            raise ModelError(f"more than {self.limits.tensors} tensors are not allowed", "LIMIT")
        elements, kind, name, raw, typed = 1, 0, "", 0, 0
        for number, value in _fields(data, "tensor"):
            if number == 1:
                for size in _integers(value):
                    elements = self.within(elements * size)
            elif number == 2:
                kind = _integer(value)
            elif number == 8:
                name = _text(value)
            elif number == 9:
                raw += len(_message(value))
            elif number == 14 and _integer(value):
                raise ModelError(f"tensor {name!r} lives outside the file: not allowed", "LOAD")
            elif number in _TYPED_DATA:
                typed += len(value) if isinstance(value, memoryview) else 8
        if kind not in _ITEM_SIZE:
            raise ModelError(f"tensor {name!r} of data type {kind}: only numbers", "LOAD")
        # A shape is believed only as far as there are bytes for it, else 20 bytes could ask for
        # gigabytes. Typed fields hold at least one byte an element; the loader counts them.
        backed = raw == elements * _ITEM_SIZE[kind] if not typed else not raw and typed >= elements
        if not backed:
            raise ModelError(
                f"tensor {name!r}: {elements} elements, but {raw + typed} bytes of data", "LOAD"
            )
        self.elements = self.within(self.elements + elements)

    def within(self, elements: int) -> int:
        if elements > self.limits.elements:
            raise ModelError(
                f"tensors of {elements} elements: at most {self.limits.elements} are allowed in "
                "all",
                "LIMIT",
            )
        return elements


def _fields(data: memoryview, message: str) -> Iterator[tuple[int, int | memoryview]]:
    """Fields of one message as (number, varint or bytes); unknown ones are refused."""
    known, forbidden = _FIELDS[message], _FORBIDDEN.get(message, {})
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if number in forbidden:
            raise ModelError(f"the {message} holds {forbidden[number]}: not allowed", "LOAD")
        if wire not in known.get(number, ()):
            raise ModelError(f"unknown field {number} (wire {wire}) in a {message}", "LOAD")
        if wire == VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == BYTES:
            size, position = _varint(data, position)
        else:
            size = 4 if wire == FIXED32 else 8
        if size > end - position:
            raise ModelError(f"the graph is cut short inside a {message}", "LOAD")
        yield number, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ModelError("the graph is cut short inside a number", "LOAD")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise ModelError("a number of the graph is longer than 10 bytes", "LOAD")


def _integers(value: int | memoryview) -> Iterator[int]:
    """One integer or a packed row of them; negative ones (top bit) are refused."""
    if isinstance(value, int):
        yield _positive(value)
        return
    position = 0
    while position < len(value):
        number, position = _varint(value, position)
        yield _positive(number)


def _positive(number: int) -> int:
    if number >= 1 << 63:
        raise ModelError(f"a tensor has the size {number - (1 << 64)}: must be >= 0", "LOAD")
    return number


def _integer(value: int | memoryview) -> int:
    if isinstance(value, int):
        return value
    raise ModelError("bytes where a number belongs in the graph", "LOAD")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, memoryview):
        return value
    raise ModelError("a number where a message belongs in the graph", "LOAD")


def _text(value: int | memoryview) -> str:
    try:
        return str(_message(value), "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"a name of the graph is not UTF-8: {error}", "LOAD") from None
