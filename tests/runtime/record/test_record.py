"""Every field of a tick comes back from its bytes, bit for bit."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.controllers.errors import JournalError
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
from steadyhand.runtime.record import MAX_FAULTS, Encoder, RecordLayout, same
from tests.support.records import (
    LAYOUT,
    TIMINGS,
    fresh_recorder,
    observation,
    report,
    tick_arguments,
)

NUMBERS = st.floats(width=64)
WORDS = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=16)
TEXTS = st.text(max_size=160)
SIGNALS = st.text(st.characters(codec="ascii"), max_size=64)
COUNTS = st.integers(-(2**63), 2**63 - 1)


def vectors(size: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(NUMBERS, min_size=size, max_size=size).map(np.array)


def faults(prefix: str) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Faults whose signals say where they are from, so that no two frames hold the same one."""
    fault = st.builds(
        Fault,
        st.sampled_from(ReasonCode),
        SIGNALS.map(lambda text: prefix + text[:60]),
        NUMBERS,
        NUMBERS,
        TEXTS,
    )
    return st.lists(fault, max_size=4).map(tuple)


OBSERVATIONS = st.builds(
    Observation,
    sequence=COUNTS,
    time_s=NUMBERS,
    values=vectors(3),
    age_s=vectors(3),
    quality=st.lists(st.integers(0, 2), min_size=3, max_size=3).map(lambda q: np.array(q, np.int8)),
    applied=vectors(1),
    link=st.sampled_from(LinkState),
    granted=st.booleans(),
    faults=faults("o."),
)
PROPOSALS = st.builds(
    Proposal, vectors(1), st.sampled_from(ProposalStatus), NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS
)
SCORES = st.one_of(st.just(()), st.tuples(NUMBERS, NUMBERS))
VERDICTS = st.builds(Verdict, st.booleans(), NUMBERS, WORDS, faults("v."), SCORES)
REPORTS = st.builds(
    FilterReport,
    mode=st.sampled_from(FilterMode),
    outcome=st.sampled_from(FilterOutcome),
    correction_norm=NUMBERS,
    correction_share=NUMBERS,
    margin=NUMBERS,
    margin_row=st.integers(-1, 1),
    active=st.sampled_from([(), (0,), (1,), (0, 1)]),
    k=vectors(2),
    m=vectors(2),
    p_nominal=vectors(2),
    p_certified=vectors(2),
    multiplier=vectors(2),
    time_to_boundary_s=NUMBERS,
    blend=NUMBERS,
    passes=st.integers(-1, 2**31 - 1),
    duration_us=NUMBERS,
    infeasible=st.booleans(),
    residual_z=NUMBERS,
)
CERTIFIEDS = st.builds(Certified, vectors(1), REPORTS, faults("c."))
SENTS = st.builds(Sent, vectors(1), COUNTS, NUMBERS, st.booleans(), faults("s."))


@settings(deadline=None)
@given(
    sequence=COUNTS,
    now_s=NUMBERS,
    seen=OBSERVATIONS,
    proposal=st.none() | PROPOSALS,
    verdict=st.none() | VERDICTS,
    source=st.sampled_from(Source),
    mode=WORDS,
    wanted=vectors(1),
    certified=st.none() | CERTIFIEDS,
    sent=st.none() | SENTS,
    own=faults("l."),
    timings=st.tuples(*[NUMBERS] * len(TIMINGS)),
)
def test_every_field_comes_back(
    sequence, now_s, seen, proposal, verdict, source, mode, wanted, certified, sent, own, timings
):
    encoder = Encoder(LAYOUT, "c" * 16, "bundle@1#ab")
    body = encoder.encode(
        sequence, 12, 34, now_s, seen, proposal, verdict, source, mode, wanted, certified, sent,
        own, timings,
    )  # fmt: skip
    tick = RecordLayout.from_schema(LAYOUT.schema()).decode(body)
    assert (tick.sequence, tick.monotonic_ns, tick.wall_ns) == (sequence, 12, 34)
    assert same(tick.now_s, now_s)
    for mine, theirs in [
        (tick.observation, seen),
        (tick.proposal, proposal),
        (tick.verdict, verdict),
        (tick.wanted, wanted),
        (tick.certified, certified),
        (tick.sent, sent),
        (tick.faults, own),
        (tick.timings, timings),
    ]:
        assert same(mine, theirs), (mine, theirs)
    assert (tick.source, tick.operator_mode) == (source, mode)
    assert (tick.config, tick.bundle) == ("c" * 16, "bundle@1#ab")
    frames = (seen, verdict, certified, sent)
    all_faults = [*own, *(fault for frame in frames if frame for fault in frame.faults)]
    assert tick.reasons == {fault.code for fault in all_faults}


def test_no_field_of_a_frame_is_forgotten():
    """A field added to a frame must be recorded: set each away from its default and look."""
    arguments = tick_arguments(
        proposal=Proposal(np.array([1.0]), ProposalStatus.LATE, 2.0, 3.0, 4.0, 5.0, "text"),
        verdict=Verdict(True, 0.5, "trust", (Fault(ReasonCode.GATE_OOD, "x"),), (0.1, 0.2)),
        certified=Certified(
            np.array([2.0]),
            report(
                mode=FilterMode.BLENDED,
                outcome=FilterOutcome.TIME_OUT,
                blend=0.5,
                passes=3,
                duration_us=7.0,
                infeasible=True,
                residual_z=0.7,
            ),
            (Fault(ReasonCode.FILTER_SHAPED, "y"),),
        ),
    )
    recorder = fresh_recorder()
    recorder.tick(**arguments)
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    for name in ("observation", "proposal", "verdict", "certified", "sent"):
        frame, back = arguments[name], getattr(tick, name)
        for field in fields(frame):
            assert same(getattr(back, field.name), getattr(frame, field.name)), (name, field.name)


def test_nan_payload_and_signed_zero_survive():
    odd_nan = np.frombuffer(np.array([0x7FF8_0000_DEAD_BEEF], "<u8").tobytes(), "<f8")
    recorder = fresh_recorder()
    recorder.tick(
        **tick_arguments(wanted=odd_nan, observation=observation(applied=np.array([-0.0])))
    )
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    assert tick.wanted.tobytes() == odd_nan.tobytes()
    assert math.copysign(1.0, tick.observation.applied[0]) == -1.0


def test_a_fault_kept_by_a_frame_is_not_kept_twice():
    fault = Fault(ReasonCode.WRITE_FAILED, "discharge_kw", 1.0, 0.0, "refused")
    arguments = tick_arguments()
    arguments["sent"] = replace(arguments["sent"], faults=(fault,))
    arguments["faults"] = (replace(fault, text="the same, from the tick before"),)
    recorder = fresh_recorder()
    recorder.tick(**arguments)
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    assert tick.faults == ()
    assert tick.sent is not None
    assert tick.sent.faults == (fault,)


def test_a_flood_of_faults_is_cut_but_no_code_is_lost():
    many = tuple(Fault(ReasonCode.OBS_STALE, f"tag_{i}") for i in range(500))
    last = Fault(ReasonCode.TICK_GAP, "")
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(observation=observation(faults=many), faults=(last,)))
    body = recorder.ticks.peek(0, 1)[0][0]
    tick = LAYOUT.decode(body)
    assert len(tick.observation.faults) == MAX_FAULTS
    assert tick.reasons == {ReasonCode.OBS_STALE, ReasonCode.TICK_GAP}
    assert len(body) < LAYOUT.dtype.itemsize + MAX_FAULTS * 300


def test_long_and_hostile_texts_are_cut():
    fault = Fault(ReasonCode.LINK_DOWN, "s" * 500, text="\x1b[2J\u2028" + "x" * 10_000)
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(faults=(fault,), mode="m" * 100))
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    assert tick.operator_mode == "m" * 16
    assert tick.faults[0].signal == "s" * 64
    assert tick.faults[0].text == fault.text[:160]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"wanted": np.zeros(2)}, "wanted"),
        ({"wanted": np.zeros(1, np.float32)}, "float32"),
        ({"observation": observation(values=np.zeros(4))}, "observation.values"),
        ({"observation": observation(quality=np.zeros(3))}, "observation.quality"),
        ({"certified": Certified(np.zeros(1), report(k=np.zeros(3)))}, "report.k"),
        ({"timings": (0.1,)}, ""),
        ({"verdict": Verdict(True, 0.5, "trust", (), (0.1,))}, ""),
        ({"wanted": None}, ""),
        ({"observation": None}, ""),
    ],
)
def test_a_tick_that_does_not_fit_is_counted_and_told_not_raised(changes, word):
    recorder = fresh_recorder()
    for _ in range(3):
        recorder.tick(**tick_arguments(**changes))
    assert recorder.misfits == 3
    assert recorder.sequence == 3
    assert recorder.ticks.head == 0
    events, _, _ = recorder.events.peek(0, 10)
    assert [event.event for event in events] == ["RecordMisfit"]
    assert word in events[0].data["text"]


def test_damaged_bytes_are_refused_with_words():
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(faults=(Fault(ReasonCode.TICK_GAP, "x", text="y"),)))
    body = recorder.ticks.peek(0, 1)[0][0]
    for cut in range(len(body)):
        with pytest.raises(JournalError, match="record of"):
            LAYOUT.decode(body[:cut])
    with pytest.raises(JournalError, match="ends at"):
        LAYOUT.decode(body + b"x")


def test_schema_is_json_and_names_every_field():
    schema = json.loads(json.dumps(LAYOUT.schema()))
    rebuilt = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in schema["fields"]])
    assert rebuilt.itemsize == LAYOUT.dtype.itemsize
    assert RecordLayout.from_schema(schema).schema() == LAYOUT.schema()
    with pytest.raises(JournalError, match="version 2"):
        RecordLayout.from_schema(schema | {"version": 2})


def test_old_journals_keep_the_meaning_of_their_reason_codes():
    """A code's place may move when codes are added: the journal's own table decides."""
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(faults=(Fault(ReasonCode.OBS_STALE, "x"),)))
    body = recorder.ticks.peek(0, 1)[0][0]
    schema = LAYOUT.schema()
    place = schema["reasons"].index("OBS_STALE")
    schema["reasons"][place] = "OBS_STUCK"
    tick = RecordLayout.from_schema(schema).decode(body)
    assert tick.reasons == {ReasonCode.OBS_STUCK}
    assert tick.faults[0].code is ReasonCode.OBS_STUCK


def test_more_codes_than_bits_are_refused():
    with pytest.raises(JournalError, match="129 reason codes"):
        RecordLayout(LAYOUT.observations, LAYOUT.outputs, reasons=tuple("x" * 129))


def test_struct_and_dtype_agree():
    """The bytes are packed by one description and read by another: they must be the same."""
    encoder = Encoder(LAYOUT, "cfg", "bundle")
    arguments = tick_arguments()
    body = encoder.encode(
        1, 2, 3, 4.0, *(arguments[name] for name in
        ("observation", "proposal", "verdict", "source", "mode", "wanted", "certified", "sent",
         "faults", "timings")),
    )  # fmt: skip
    row = np.frombuffer(body, LAYOUT.dtype)[0]
    assert (row["sequence"], row["monotonic_ns"], row["wall_ns"], row["now_s"]) == (1, 2, 3, 4.0)
    assert row["proposal_value"] == -3.5
    assert row["margin_row"] == 0
    assert row["timings"].tolist() == list(TIMINGS)
    assert row["scores"].tolist() == [0.2, 0.4]
    assert row["values"].tolist() == [507.0, 250.0, 100.0]
    assert row["multiplier"].tolist() == [0.3, 0.0]
    assert row["active"].tolist() == [0b01]
    assert (row["config"], row["bundle"]) == (b"cfg", b"bundle")
