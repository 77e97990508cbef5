"""What one tick was, as bytes of fixed layout.

A record is three parts, little-endian, without gaps:

    scalars (struct) | vectors (float64) and qualities (int8) | faults (only when there are any)

The first two parts have a constant size that follows from the plant's signals, so the loop thread
builds them with one `struct.pack` and one join, without JSON and without looking names up. The
layout describes itself (`RecordLayout.schema`), and the description travels in each journal.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf, nan
from typing import Any

import numpy as np

from steadyhand.controllers.errors import JournalError, SignalError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet, Vector

VERSION = 1
STAGES = ("lateness", "read", "propose", "judge", "decide", "certify", "write")
"""Default names of the timings, in the order of the tick; seconds each."""
MAX_FAULTS = 64
"""Faults kept with their details per tick; `reasons` names every code beyond that too."""
MAX_TEXT = 160
"""Characters kept of a fault's text."""
ORIGINS = ("link", "policy", "trust", "filter", "wire", "loop")
"""Who found a fault; a policy's fault with the code OK is the text of its proposal."""

_SCALARS = (
    ("sequence", "q"),
    ("monotonic_ns", "q"),
    ("wall_ns", "q"),
    ("observation_sequence", "q"),
    ("sent_sequence", "q"),
    ("reasons_low", "Q"),
    ("reasons_high", "Q"),
    ("now_s", "d"),
    ("observation_time_s", "d"),
    ("proposal_value", "d"),
    ("proposal_error", "d"),
    ("proposal_confidence_logit", "d"),
    ("proposal_latency_s", "d"),
    ("confidence", "d"),
    ("correction_norm", "d"),
    ("correction_share", "d"),
    ("margin", "d"),
    ("time_to_boundary_s", "d"),
    ("blend", "d"),
    ("filter_duration_us", "d"),
    ("residual_z", "d"),
    ("sent_time_s", "d"),
    ("margin_row", "i"),
    ("passes", "i"),
    ("fault_count", "H"),
    ("scores_given", "H"),
    ("present", "B"),
    ("link", "B"),
    ("granted", "B"),
    ("proposal_status", "B"),
    ("trusted", "B"),
    ("source", "B"),
    ("filter_mode", "B"),
    ("filter_outcome", "B"),
    ("infeasible", "B"),
    ("written", "B"),
)
_WORDS = (("gate_state", 16), ("operator_mode", 16), ("config", 16), ("bundle", 48))
_NUMPY = {"q": "<i8", "Q": "<u8", "d": "<f8", "i": "<i4", "H": "<u2", "B": "u1"}
_FAULT = struct.Struct("<BHddHH")  # origin, code, value, limit, bytes of signal, bytes of text
_CODE_INDEX = {code: i for i, code in enumerate(ReasonCode)}
_LINK_INDEX = {state: i for i, state in enumerate(LinkState)}
_NO_PROPOSAL, _NO_VERDICT, _NO_CERTIFIED, _NO_SENT = 1, 2, 4, 8


@dataclass(frozen=True, slots=True, eq=False)
class TickRecord:
    """One tick: what was read, proposed, believed, decided, certified, sent, and why."""

    sequence: int
    """Number of the tick; grows by one, also across restarts."""
    monotonic_ns: int
    wall_ns: int
    """Both clocks when the record was made, after the write."""
    now_s: float
    """The time the tick was given: all time logic of the tick used this number."""
    observation: Observation
    proposal: Proposal | None
    verdict: Verdict | None
    source: Source
    operator_mode: str
    wanted: Vector
    """(n_u,) what went into the filter."""
    certified: Certified | None
    sent: Sent | None
    faults: tuple[Fault, ...]
    """Faults found by the loop itself, or left from the tick before; the rest is in the frames."""
    reasons: frozenset[ReasonCode]
    """Every reason code of this tick, from all frames."""
    timings: tuple[float, ...]
    """Seconds per stage, in the order of the layout's stages."""
    config: str
    """First 16 characters of the hash of the effective configuration."""
    bundle: str
    """The controller: name@version#hash."""


DAMAGED = (ValueError, LookupError, TypeError, AttributeError, struct.error, SignalError)
"""What comes of bytes or of a layout that were changed after they were written."""


@dataclass(frozen=True, eq=False)
class RecordLayout:
    """Where each number of a tick stands in its record.

    Build it once at start-up; encoding and decoding share it.
    """

    observations: SignalSet
    outputs: SignalSet
    rows: tuple[str, ...] = ()
    """Names of the safety constraints, in the filter's order."""
    monitors: tuple[str, ...] = ()
    """Names of the gate's monitors, in the order of `Verdict.scores`."""
    stages: tuple[str, ...] = STAGES
    reasons: tuple[str, ...] = tuple(ReasonCode)

    def __post_init__(self) -> None:
        """Refuse what does not fit.

        Raises:
            JournalError: more reason codes than the record has bits for.
        """
        if len(self.reasons) > 128:
            raise JournalError(
                f"record layout: {len(self.reasons)} reason codes, at most 128 fit: "
                "widen the mask and raise VERSION"
            )

    @cached_property
    def vectors(self) -> tuple[tuple[str, int], ...]:
        """Names and lengths of the float64 vectors, in their order in the record."""
        n_y, n_u, m = len(self.observations), len(self.outputs), len(self.rows)
        return (
            ("timings", len(self.stages)),
            ("scores", len(self.monitors)),
            ("values", n_y),
            ("age_s", n_y),
            ("applied", n_u),
            ("proposed", n_u),
            ("wanted", n_u),
            ("certified", n_u),
            ("sent", n_u),
            ("k", m),
            ("m", m),
            ("p_nominal", m),
            ("p_certified", m),
            ("multiplier", m),
        )

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """Structured type of the part with constant size."""
        head = [(name, _NUMPY[kind]) for name, kind in _SCALARS]
        words = [(name, f"S{size}") for name, size in _WORDS]
        active = [("active", "u1", (self._active_size,))]
        vectors = [(name, "<f8", (size,)) for name, size in self.vectors]
        quality = [("quality", "i1", (len(self.observations),))]
        return np.dtype([*head, *words, *active, *vectors, *quality])

    @cached_property
    def _active_size(self) -> int:
        return (len(self.rows) + 7) // 8

    @cached_property
    def head(self) -> struct.Struct:
        """Format of everything before the first array that is joined as it is."""
        words = "".join(f"{size}s" for _, size in _WORDS)
        floats = f"{len(self.stages) + len(self.monitors)}d"
        scalars = "".join(kind for _, kind in _SCALARS)
        return struct.Struct(f"<{scalars}{words}{self._active_size}s{floats}")

    def schema(self) -> dict[str, Any]:
        """The layout as plain data, enough to read a record without this program."""
        return {
            "version": VERSION,
            "observations": [_signal_row(signal) for signal in self.observations],
            "outputs": [_signal_row(signal) for signal in self.outputs],
            "rows": list(self.rows),
            "monitors": list(self.monitors),
            "stages": list(self.stages),
            "reasons": [str(code) for code in self.reasons],
            "links": [str(state) for state in LinkState],
            "origins": list(ORIGINS),
            "fields": [
                [name, self.dtype[name].base.str, list(self.dtype[name].shape)]
                for name in self.dtype.names or ()
            ],
        }

    @staticmethod
    def from_schema(schema: dict[str, Any]) -> "RecordLayout":
        """The layout a journal was written with.

        Raises:
            JournalError: the journal is from a newer version of this program, or damaged.
        """
        if schema.get("version") != VERSION:
            raise JournalError(
                f"record version {schema.get('version')!r} cannot be read, only {VERSION}: "
                "use the release that wrote the journal"
            )
        try:
            return RecordLayout(
                observations=SignalSet(tuple(Signal(*row) for row in schema["observations"])),
                outputs=SignalSet(tuple(Signal(*row) for row in schema["outputs"])),
                rows=tuple(schema["rows"]),
                monitors=tuple(schema["monitors"]),
                stages=tuple(schema["stages"]),
                reasons=tuple(schema["reasons"]),
            )
        except DAMAGED as error:
            raise JournalError(f"the layout of the records is damaged: {error}") from error

    def decode(self, body: bytes) -> TickRecord:
        """The tick behind the bytes of one record; arrays are read-only views of `body`.

        Raises:
            JournalError: the bytes do not fit the layout.
        """
        try:
            return decode(self, body)
        except DAMAGED as error:
            raise JournalError(f"a tick's record is damaged: {error}: verify it") from error


def _signal_row(signal: Signal) -> list[Any]:
    return [signal.name, signal.unit, signal.low, signal.high, signal.meaning]


class Encoder:
    """Turns frames into the bytes of a record. One per loop thread; holds only constants."""

    def __init__(self, layout: RecordLayout, config: str = "", bundle: str = "") -> None:
        self.layout = layout
        self._size = layout.dtype.itemsize
        self._pack = layout.head.pack
        self._words: dict[str, bytes] = {}
        self._no_active = bytes(layout._active_size)
        self._active_size = layout._active_size
        self._no_scores = (nan,) * len(layout.monitors)
        n_y, n_u, m = len(layout.observations), len(layout.outputs), len(layout.rows)
        self._proposal = Proposal(np.full(n_u, nan), ProposalStatus.ABSENT)
        self._verdict = Verdict(trusted=False, confidence=0.0, state="")
        self._certified = Certified(np.full(n_u, nan), empty_report(m))
        self._sent = Sent(np.full(n_u, nan), sequence=-1, time_s=nan, written=False)
        self._shape = (n_y, n_u, m)
        self.config = config.encode()[:16]
        self.bundle = bundle.encode()[:48]

    def encode(
        self,
        sequence: int,
        monotonic_ns: int,
        wall_ns: int,
        now_s: float,
        observation: Observation,
        proposal: Proposal | None,
        verdict: Verdict | None,
        source: Source,
        mode: str,
        wanted: Vector,
        certified: Certified | None,
        sent: Sent | None,
        faults: Sequence[Fault],
        timings: Sequence[float],
    ) -> bytes:
        """Bytes of one record.

        Raises:
            ValueError, TypeError, BufferError, struct.error: an array or a number does not fit the
                layout (wrong length, wrong type, not contiguous).
        """
        present = 0
        if proposal is None:
            proposal, present = self._proposal, _NO_PROPOSAL
        if verdict is None:
            verdict, present = self._verdict, present | _NO_VERDICT
        if certified is None:
            certified, present = self._certified, present | _NO_CERTIFIED
        if sent is None:
            sent, present = self._sent, present | _NO_SENT
        report, words = certified.report, self._words
        scores = verdict.scores
        scores_given = len(scores)
        if not scores:
            scores = self._no_scores
        tail: list[bytes] = []
        low = high = 0
        if (
            observation.faults
            or verdict.faults
            or certified.faults
            or sent.faults
            or faults
            or proposal.text
            or proposal.faults
        ):
            tail, mask = _pack_faults(observation, proposal, verdict, certified, sent, faults)
            low, high = mask & 0xFFFF_FFFF_FFFF_FFFF, mask >> 64
        head = self._pack(
            sequence,
            monotonic_ns,
            wall_ns,
            observation.sequence,
            sent.sequence,
            low,
            high,
            now_s,
            observation.time_s,
            proposal.value,
            proposal.error,
            proposal.confidence_logit,
            proposal.latency_s,
            verdict.confidence,
            report.correction_norm,
            report.correction_share,
            report.margin,
            report.time_to_boundary_s,
            report.blend,
            report.duration_us,
            report.residual_z,
            sent.time_s,
            report.margin_row,
            report.passes,
            len(tail),
            scores_given,
            present,
            _LINK_INDEX[observation.link],
            observation.granted,
            proposal.status,
            verdict.trusted,
            source,
            report.mode,
            report.outcome,
            report.infeasible,
            sent.written,
            words.get(verdict.state) or self._word(verdict.state),
            words.get(mode) or self._word(mode),
            self.config,
            self.bundle,
            self._active(report.active) if report.active else self._no_active,
            *timings,
            *scores,
        )
        parts: tuple[Any, ...] = (  # arrays are buffers: joined as they are, in one pass
            head,
            observation.values,
            observation.age_s,
            observation.applied,
            proposal.action,
            wanted,
            certified.action,
            sent.action,
            report.k,
            report.m,
            report.p_nominal,
            report.p_certified,
            report.multiplier,
            observation.quality,
        )
        body = b"".join(parts)
        if len(body) != self._size:
            raise ValueError(self._misfit(observation, proposal, wanted, certified, sent))
        return b"".join((body, *tail)) if tail else body

    def _word(self, word: str) -> bytes:
        """Bytes of a word met for the first time; words come from tables, so they are few."""
        made = word.encode("utf-8", "replace")[:16]
        if len(self._words) < 256:
            self._words[word] = made
        return made

    def _active(self, rows: tuple[int, ...]) -> bytes:
        mask = 0
        for row in rows:
            mask |= 1 << row
        return mask.to_bytes(self._active_size, "little")

    def _misfit(
        self,
        observation: Observation,
        proposal: Proposal,
        wanted: Vector,
        certified: Certified,
        sent: Sent,
    ) -> str:
        """Which array has the wrong size, in words."""
        n_y, n_u, m = self._shape
        report = certified.report
        sizes = {
            "observation.values": (observation.values, 8 * n_y),
            "observation.age_s": (observation.age_s, 8 * n_y),
            "observation.quality": (observation.quality, n_y),
            "observation.applied": (observation.applied, 8 * n_u),
            "proposal.action": (proposal.action, 8 * n_u),
            "wanted": (wanted, 8 * n_u),
            "certified.action": (certified.action, 8 * n_u),
            "sent.action": (sent.action, 8 * n_u),
        } | {
            f"report.{name}": (getattr(report, name), 8 * m)
            for name in ("k", "m", "p_nominal", "p_certified", "multiplier")
        }
        wrong = [
            f"{name}: {np.asarray(array).nbytes} bytes ({np.asarray(array).dtype}), not {size}"
            for name, (array, size) in sizes.items()
            if np.asarray(array).nbytes != size
        ]
        return "record does not fit the layout: " + "; ".join(wrong)


def empty_report(rows: int) -> FilterReport:
    """The report of a filter that did not run."""
    blank = np.full(rows, nan)
    return FilterReport(
        mode=FilterMode.PASS,
        outcome=FilterOutcome.SOLVED,
        correction_norm=nan,
        correction_share=nan,
        margin=nan,
        margin_row=-1,
        active=(),
        k=blank,
        m=blank,
        p_nominal=blank,
        p_certified=blank,
        multiplier=blank,
        time_to_boundary_s=inf,
    )


def _pack_faults(
    observation: Observation,
    proposal: Proposal,
    verdict: Verdict,
    certified: Certified,
    sent: Sent,
    faults: Sequence[Fault],
) -> tuple[list[bytes], int]:
    """Faults of all frames, the link's first (they are inputs), and the mask of their codes.

    The loop's own list may repeat what a frame says: a code and signal is kept once, with the
    frame that found it.
    """
    groups = (
        observation.faults, proposal.faults, verdict.faults, certified.faults, sent.faults,
    )  # fmt: skip
    named = {(fault.code, fault.signal) for group in groups for fault in group}
    own = tuple(fault for fault in faults if (fault.code, fault.signal) not in named)
    tail: list[bytes] = []
    mask = 0
    if proposal.text:
        tail.append(_pack_fault(1, Fault(ReasonCode.OK, text=proposal.text)))
    for origin, group in enumerate((*groups, own)):
        for fault in group:
            mask |= 1 << _CODE_INDEX[fault.code]
            if len(tail) < MAX_FAULTS:
                tail.append(_pack_fault(origin, fault))
    return tail, mask


def _pack_fault(origin: int, fault: Fault) -> bytes:
    signal = fault.signal.encode("utf-8", "replace")[:64]
    text = fault.text[:MAX_TEXT].encode("utf-8", "replace")
    code = _CODE_INDEX[fault.code]
    head = _FAULT.pack(origin, code, fault.value, fault.limit, len(signal), len(text))
    return head + signal + text


def decode(layout: RecordLayout, body: bytes) -> TickRecord:
    """The tick behind the bytes of one record.

    Raises:
        JournalError: the bytes do not fit the layout.
    """
    size = layout.dtype.itemsize
    if len(body) < size:
        raise JournalError(f"record of {len(body)} bytes, the layout needs at least {size}")
    row = np.frombuffer(body, layout.dtype, 1)[0]
    found, proposal_text = _unpack_faults(layout, body, size, int(row["fault_count"]))
    link, policy, trust, filter_, wire, loop = found
    absent = int(row["present"])
    return TickRecord(
        sequence=int(row["sequence"]),
        monotonic_ns=int(row["monotonic_ns"]),
        wall_ns=int(row["wall_ns"]),
        now_s=float(row["now_s"]),
        observation=Observation(
            sequence=int(row["observation_sequence"]),
            time_s=float(row["observation_time_s"]),
            values=row["values"],
            age_s=row["age_s"],
            quality=row["quality"],
            applied=row["applied"],
            link=tuple(LinkState)[row["link"]],
            granted=bool(row["granted"]),
            faults=link,
        ),
        proposal=None if absent & _NO_PROPOSAL else _proposal(row, proposal_text, policy),
        verdict=None if absent & _NO_VERDICT else _verdict(row, trust),
        source=Source(row["source"]),
        operator_mode=_text(row["operator_mode"]),
        wanted=row["wanted"],
        certified=None if absent & _NO_CERTIFIED else _certified(row, filter_),
        sent=None
        if absent & _NO_SENT
        else Sent(
            action=row["sent"],
            sequence=int(row["sent_sequence"]),
            time_s=float(row["sent_time_s"]),
            written=bool(row["written"]),
            faults=wire,
        ),
        faults=loop,
        reasons=_reasons(layout, int(row["reasons_low"]) | int(row["reasons_high"]) << 64),
        timings=tuple(row["timings"].tolist()),
        config=_text(row["config"]),
        bundle=_text(row["bundle"]),
    )


def _text(word: bytes) -> str:
    return bytes(word).decode("utf-8", "replace")


def _reasons(layout: RecordLayout, mask: int) -> frozenset[ReasonCode]:
    return frozenset(ReasonCode(code) for i, code in enumerate(layout.reasons) if mask >> i & 1)


def _unpack_faults(
    layout: RecordLayout, body: bytes, offset: int, count: int
) -> tuple[list[tuple[Fault, ...]], str]:
    groups: list[list[Fault]] = [[] for _ in ORIGINS]
    text_of_proposal = ""
    for _ in range(count):
        try:
            origin, code, value, limit, n, length = _FAULT.unpack_from(body, offset)
        except struct.error:
            raise JournalError(f"record of {len(body)} bytes ends inside its faults") from None
        start = offset + _FAULT.size
        offset = start + n + length
        if offset > len(body) or origin >= len(ORIGINS) or code >= len(layout.reasons):
            raise JournalError(f"record of {len(body)} bytes has a fault that cannot be")
        text = body[start + n : offset].decode("utf-8", "replace")
        if origin == 1 and layout.reasons[code] == ReasonCode.OK:
            text_of_proposal = text
        else:
            signal = body[start : start + n].decode("utf-8", "replace")
            groups[origin].append(
                Fault(ReasonCode(layout.reasons[code]), signal, value, limit, text)
            )
    if offset != len(body):
        raise JournalError(f"record of {len(body)} bytes, its layout ends at {offset}")
    return [tuple(group) for group in groups], text_of_proposal


def _proposal(row: np.void, text: str, faults: tuple[Fault, ...]) -> Proposal:
    return Proposal(
        action=row["proposed"],
        status=ProposalStatus(row["proposal_status"]),
        value=float(row["proposal_value"]),
        error=float(row["proposal_error"]),
        confidence_logit=float(row["proposal_confidence_logit"]),
        latency_s=float(row["proposal_latency_s"]),
        text=text,
        faults=faults,
    )


def _verdict(row: np.void, faults: tuple[Fault, ...]) -> Verdict:
    return Verdict(
        trusted=bool(row["trusted"]),
        confidence=float(row["confidence"]),
        state=_text(row["gate_state"]),
        faults=faults,
        scores=tuple(row["scores"].tolist()[: int(row["scores_given"])]),
    )


def _certified(row: np.void, faults: tuple[Fault, ...]) -> Certified:
    bits = np.unpackbits(row["active"], bitorder="little")
    return Certified(
        action=row["certified"],
        report=FilterReport(
            mode=FilterMode(row["filter_mode"]),
            outcome=FilterOutcome(row["filter_outcome"]),
            correction_norm=float(row["correction_norm"]),
            correction_share=float(row["correction_share"]),
            margin=float(row["margin"]),
            margin_row=int(row["margin_row"]),
            active=tuple(int(i) for i in np.flatnonzero(bits)),
            k=row["k"],
            m=row["m"],
            p_nominal=row["p_nominal"],
            p_certified=row["p_certified"],
            multiplier=row["multiplier"],
            time_to_boundary_s=float(row["time_to_boundary_s"]),
            blend=float(row["blend"]),
            passes=int(row["passes"]),
            duration_us=float(row["filter_duration_us"]),
            infeasible=bool(row["infeasible"]),
            residual_z=float(row["residual_z"]),
        ),
        faults=faults,
    )


def same(left: object, right: object) -> bool:
    """Bit-for-bit equality of two records or frames, NaN equal to the same NaN."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is type(right) and hasattr(type(left), "__dataclass_fields__"):
        return all(
            same(getattr(left, field.name), getattr(right, field.name))
            for field in fields(left)  # type: ignore[arg-type]
        )
    return bool(left == right)
