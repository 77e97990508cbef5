"""Rows that need no network: wire cut, time, policy, filter, writes, people, two things at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import numpy as np

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.protocols import Policy, SafetyFilter
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.gate import Gate
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.selftest.inside import FOR_EVER, Inside
from steadyhand.runtime.selftest.rows import Row, Wire

_FALLBACK, _HOLD, _SAFE, _OFF = Source.FALLBACK, Source.HOLD, Source.SAFE, Source.HANDS_OFF


def rows(parts: PlantParts) -> Iterator[Row]:
    """Every such row."""
    yield from _link()
    yield from _time()
    yield from _policy(parts)
    yield from _filter(parts)
    yield from _writes(parts)
    yield from _people(parts)
    yield from _together(parts)


def _link() -> Iterator[Row]:
    def cut(bench: Inside) -> None:
        bench.link.state = LinkState.DOWN

    yield Row("A1.cut", "the wire is cut", cut, ("LINK_DOWN",), _OFF, Wire.NOTHING, each=True)
    for code, latch in (
        ("LINK_TIMEOUT", ""),
        ("LINK_FLAP", ""),
        ("NS_REMAP", ""),
        ("TAG_MISSING", ""),
        ("TAG_TYPE", "TAG_TYPE"),
        ("SERVER_ID", "SERVER_ID"),
        ("SERVER_STATE", ""),
        ("WRITE_DENIED", "WRITE_DENIED"),
        ("WRITE_CONTENTION", "WRITE_CONTENTION"),
        ("TASK_DIED", ""),
        ("SUB_STALE", ""),
        ("ACT_NOFOLLOW", ""),
    ):
        demand = {"TASK_DIED": _HOLD, "SUB_STALE": _FALLBACK, "ACT_NOFOLLOW": _FALLBACK}.get(
            code, _OFF
        )
        yield Row(
            f"{_LINK_ROWS[code]}.told_{code.lower()}",
            f"the link tells {code} with every image",
            _tells(code),
            (code,),
            demand,
            Wire.NOTHING if demand is _OFF else Wire.GOES_ON,
            latch,
            each=True,
        )


_LINK_ROWS = {
    "LINK_TIMEOUT": "A2",
    "LINK_FLAP": "A3",
    "NS_REMAP": "A6",
    "TAG_MISSING": "A7",
    "TAG_TYPE": "A8",
    "WRITE_DENIED": "A9",
    "SUB_STALE": "A21",
    "SERVER_ID": "A22",
    "SERVER_STATE": "A23",
    "WRITE_CONTENTION": "F4",
    "ACT_NOFOLLOW": "F2",
    "TASK_DIED": "G9",
}


def _tells(code: str) -> Callable[[Inside], None]:
    told = (Fault(ReasonCode(code), text="made up"),)
    return lambda bench: bench.alter(lambda image: replace(image, faults=(*image.faults, *told)))


def _time() -> Iterator[Row]:
    def late(bench: Inside) -> None:
        bench.clock.late = True

    def pause(periods: int) -> Callable[[Inside], None]:
        def skip(bench: Inside) -> None:
            bench.clock.skipped = periods

        return skip

    yield Row(
        "C5.late",
        "every command would come after its deadline",
        late,
        ("TICK_LATE",),
        _HOLD,
        Wire.NOTHING,
    )
    yield Row("C6.overrun", "one period is missed", pause(1), ("TICK_OVERRUN",), _FALLBACK)
    for periods in (2, 30, 100_000):
        yield Row(
            f"C4.pause_{periods}",
            f"the loop sleeps through {periods} periods",
            pause(periods),
            ("TICK_GAP",),
            _HOLD,
        )


# -- the policy ------------------------------------------------------------------------------------


@dataclass
class Says:
    """A policy that answers one thing."""

    answer: Callable[[Observation], Proposal]

    def propose(self, observation: Observation) -> Proposal:
        """Its answer."""
        return self.answer(observation)


def _policy(parts: PlantParts) -> Iterator[Row]:
    n_u = len(parts.outputs)

    def says(proposal: Proposal) -> Callable[[Inside], None]:
        return lambda bench: bench.use(policy=Says(lambda _: proposal))

    def action(number: float) -> Proposal:
        return Proposal(np.full(n_u, number), value=0.0, error=0.0, confidence_logit=20.0)

    def failed(status: ProposalStatus, code: str) -> Proposal:
        fault = Fault(ReasonCode(code), text="made up")
        return Proposal(np.full(n_u, nan), status, text="made up", faults=(fault,))

    def raises(_: Observation) -> Proposal:
        raise ZeroDivisionError("made up")

    for label, number in (("nan", nan), ("inf", inf), ("minus_inf", -inf)):
        yield Row(
            f"D7.{label}",
            f"the policy answers {number} and is sure of it",
            says(action(number)),
            ("ACT_NONFINITE",),
            _FALLBACK,
            latch="ACT_NONFINITE",
            each=True,
        )
    for label, number in (("low", parts.outputs.low[0]), ("high", parts.outputs.high[0])):
        yield Row(
            f"D8.stop_{label}",
            f"the policy wants its {label} stop for ever",
            says(action(float(number))),
            hold=40,
            never=("ACT_CONST",),
        )
    middle = 0.5 * (parts.outputs.low + parts.outputs.high)
    constant = Proposal(middle + 1.0, value=0.0, error=0.0, confidence_logit=20.0)
    yield Row(
        "D8.constant",
        "the policy wants one value between its stops for ever",
        says(constant),
        ("ACT_CONST",),
        hold=20,
    )
    for number in (1e3, -1e6, 1e300):
        yield Row(
            f"D9.{number:g}",
            f"the policy wants {number:g}, far beyond the range",
            says(action(number)),
            ("LIMIT_CLIPPED", "FILTER_SHAPED"),
            hold=20,
        )
    for status, code in (
        (ProposalStatus.LATE, "INFER_LATE"),
        (ProposalStatus.LATE, "INFER_HANG"),
        (ProposalStatus.CRASHED, "INFER_CRASH"),
        (ProposalStatus.ERROR, "INFER_ERROR"),
        (ProposalStatus.ABSENT, "POLICY_ABSENT"),
    ):
        number_ = {"INFER_CRASH": "D16", "POLICY_ABSENT": "D16"}.get(code, "D15")
        yield Row(
            f"{number_}.{code.lower()}",
            f"the policy's answer: {status.name.lower()}, {code}",
            says(failed(status, code)),
            (code,),
            _FALLBACK,
            each=True,
        )
    yield Row(
        "G7.crash_loop",
        "the policy's process is not started any more",
        says(failed(ProposalStatus.ABSENT, "CRASH_LOOP")),
        ("CRASH_LOOP",),
        _FALLBACK,
        latch="CRASH_LOOP",
        each=True,
    )
    yield Row(
        "D16.raises",
        "the policy raises an error of its own",
        lambda bench: bench.use(policy=Says(raises)),
        ("INFER_ERROR",),
        _FALLBACK,
        each=True,
    )
    for code, number_ in (
        ("GATE_OOD", "D22"),
        ("GATE_CONFIDENCE", "D22"),
        ("GATE_FAULT", "D23"),
    ):
        yield Row(
            f"{number_}.{code.lower()}",
            f"the gate alarms: {code}",
            lambda bench, c=code: bench.use(gate=Alarms(bench.good("gate"), c)),  # type: ignore[misc]
            (code,),
            _FALLBACK,
            each=True,
        )
    yield Row(
        "E10.flapping",
        "the gate's verdict changes with every tick",
        _flap,
        ("MODE_FLAP",),
        _FALLBACK,
        latch="MODE_FLAP",
    )


class Alarms(Gate):
    """A gate with an alarm, in some ticks or in all."""

    def __init__(self, inner: Gate, code: str, every: int = 1) -> None:
        self._inner, self._code, self._every = inner, ReasonCode(code), every
        self._asked = 0
        self.names = inner.names

    def judge(self, observation: Observation, proposal: Proposal) -> Verdict:
        """The good gate's verdict, or an alarm."""
        self._asked += 1
        verdict = self._inner.judge(observation, proposal)
        if self._asked % self._every:
            return verdict
        return replace(verdict, trusted=False, faults=(Fault(self._code, text="made up"),))

    def filtered(self, report: Any, settled: bool = True) -> None:  # noqa: ANN401
        """Handed on."""
        self._inner.filtered(report, settled)


def _flap(bench: Inside) -> None:
    """With a short patience, so that the latch is seen within a few ticks."""
    bench.modes.settings = replace(bench.modes.settings, max_raises=2, n_clean=1, t_clean_s=0.0)
    bench.use(gate=Alarms(bench.good("gate"), "GATE_OOD", every=2))
    good = bench.reset

    def reset() -> None:
        bench.modes.settings = replace(bench.modes.settings, max_raises=FOR_EVER)
        good()

    bench.reset = reset  # type: ignore[method-assign]


# -- the filter ------------------------------------------------------------------------------------


@dataclass
class Finds:
    """The filter, with something to tell about its answer."""

    inner: SafetyFilter
    code: ReasonCode

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        """The good filter's answer, with its remark."""
        made = self.inner.certify(observation, wanted, sent)
        return replace(made, faults=(*made.faults, Fault(self.code, text="made up")))


@dataclass
class _Fails:
    """A filter with a bad inside, behind the real chain."""

    answer: Callable[[Observation, Vector, Sent], Certified]
    constraints: Any

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        return self.answer(observation, wanted, sent)


def _filter(parts: PlantParts) -> Iterator[Row]:
    for code, number, demand in (
        ("FILTER_INFEASIBLE", "E1", _SAFE),
        ("FILTER_STOPPED", "E2", _SAFE),
        ("FILTER_NONFINITE", "E2", _SAFE),
        ("FILTER_RECOVER", "E3", _FALLBACK),
        ("FILTER_BACKUP", "E2", _FALLBACK),
        ("FILTER_SLACK", "E4", Source.POLICY),
    ):
        yield Row(
            f"{number}.{code.lower()}",
            f"the filter tells {code}",
            lambda bench, c=code: bench.use(  # type: ignore[misc]
                safety=Finds(bench.good("safety"), ReasonCode(c))
            ),
            (code,),
            demand,
        )

    def inside(answer: Callable[[Any, Observation, Vector, Sent], Certified]) -> Any:  # noqa: ANN401
        def do(bench: Inside) -> None:
            chain = bench.good("safety")
            inner = chain.inner
            bad = _Fails(lambda o, w, s: answer(inner, o, w, s), inner.constraints)
            bench.use(safety=type(chain)(bad, chain.limits, chain._backup))

        return do

    def raising(inner: Any, o: Observation, w: Vector, s: Sent) -> Certified:  # noqa: ANN401
        raise FloatingPointError("made up")

    def not_a_number(inner: Any, o: Observation, w: Vector, s: Sent) -> Certified:  # noqa: ANN401
        made = inner.certify(o, w, s)
        return replace(made, action=np.full(len(made.action), nan))

    def other_than_told(inner: Any, o: Observation, w: Vector, s: Sent) -> Certified:  # noqa: ANN401
        made = inner.certify(o, w, s)
        report = replace(made.report, mode=FilterMode.PASS, outcome=FilterOutcome.SOLVED)
        return replace(made, action=np.zeros(len(made.action)) + 1.25, report=report)

    yield Row(
        "E2.raises",
        "the filter raises an error",
        inside(raising),
        ("FILTER_BACKUP",),
        _FALLBACK,
    )
    yield Row(
        "E2.not_a_number",
        "the filter answers NaN",
        inside(not_a_number),
        ("FILTER_NONFINITE",),
        _SAFE,
    )
    yield Row(
        "E5.lies",
        "the filter says it passed the command, and did not",
        inside(other_than_told),
        ("FILTER_BYPASS",),
        _OFF,
        Wire.NOTHING,
        latch="FILTER_BYPASS",
    )

    def bypass(bench: Inside) -> None:
        bench.link.meddle = lambda sent: (
            replace(sent, action=sent.action + 1.0) if sent.written else sent
        )

    # the observer sees what really arrived, and misses a record of it: that is what this is about
    yield Row(
        "E5.bypassed",
        "something else goes out than was certified",
        bypass,
        ("FILTER_BYPASS",),
        _OFF,
        Wire.NOTHING,
        latch="FILTER_BYPASS",
        unrecorded=len(parts.outputs),
    )

    def heuristic_fails(bench: Inside) -> None:
        name = bench.parts.plant.observations.names[-1]
        bench.use(heuristic=_Raising(bench.good("heuristic")))
        bench.sensor(SignalFault(name, FaultKind.OFF))

    yield Row(
        "E8.heuristic_raises",
        "a measurement is bad and the heuristic raises an error",
        heuristic_fails,
        ("FALLBACK_FAIL",),
        _SAFE,
        hold=1,
    )


@dataclass
class _Raising:
    """A heuristic that breaks its word."""

    inner: Any

    def act(self, observation: Observation) -> Vector:
        raise ArithmeticError("made up")

    def track(self, observation: Observation, sent: Sent) -> None:
        self.inner.track(observation, sent)


# -- writes ----------------------------------------------------------------------------------------


def _writes(parts: PlantParts) -> Iterator[Row]:
    def told(code: str) -> Callable[[Inside], None]:
        fault = Fault(ReasonCode(code), text="made up")

        def do(bench: Inside) -> None:
            bench.link.meddle = lambda sent: replace(sent, faults=(*sent.faults, fault))

        return do

    for code, number, demand in (
        ("WRITE_FAILED", "F8", _HOLD),
        ("WRITE_UNKNOWN", "F8", _HOLD),
        ("WRITE_STALE_DROP", "F7", _HOLD),
        ("WRITE_PARTIAL", "F1", _SAFE),
        ("WRITE_CLAMPED", "F3", Source.POLICY),
    ):
        yield Row(
            f"{number}.{code.lower()}",
            f"the write of a tick tells {code}",
            told(code),
            (code,),
            demand,
            Wire.ANY,
            # held for too long, and the safe set-point not written either
            f"?{code}" if demand else "",
            hold=0 if demand is _SAFE else 1,
        )
    yield Row(
        "E9.safe_not_written",
        "not even the safe set-point is written",
        told("WRITE_PARTIAL"),
        ("WRITE_PARTIAL",),
        _OFF,
        Wire.NOTHING,
        latch="WRITE_PARTIAL",
        hold=6,
    )
    for signal in parts.outputs:
        middle, tenth = 0.5 * (signal.low + signal.high), 0.05 * (signal.high - signal.low)
        yield Row(
            f"F3.{signal.name}.narrow",
            f"{signal.name}: the plant holds it in a narrow band",
            _actuator(signal.name, FaultKind.CLAMPED, low=middle - tenth, high=middle + tenth),
            hold=8,
        )
        yield Row(
            f"F13.{signal.name}.long_at_limit",
            f"{signal.name}: held at one place for ten hours, then free",
            _actuator(signal.name, FaultKind.CLAMPED, low=middle, high=middle + 1e-6),
            hold=40,
        )
        yield Row(
            f"F2.{signal.name}.ignored",
            f"{signal.name}: the actuator does not move any more",
            _actuator(signal.name, FaultKind.IGNORED),
            hold=8,
            latch="?OBS_XCHECK",
            limits_hold=False,
        )


def _actuator(name: str, kind: FaultKind, **parameters: float) -> Callable[[Inside], None]:
    fault = SignalFault(name, kind, parameters=parameters)
    return lambda bench: bench.sensor(fault)


# -- people ----------------------------------------------------------------------------------------


def _people(parts: PlantParts) -> Iterator[Row]:
    yield Row(
        "L1.taken",
        "the plant's operator takes control",
        lambda bench: bench.grant(False),
        ("NOT_GRANTED",),
        _OFF,
        Wire.NOTHING,
        each=True,
    )

    def off(bench: Inside) -> None:
        bench.modes.request(Mode.OFF, "selftest")

    # Without its only output nothing is left to drive. Of several the others go on being driven,
    # unless the limits need the one that is out.
    alone = len(parts.outputs) == 1
    for name in parts.outputs.names:
        yield Row(
            f"L1.{name}.kept",
            f"the plant keeps {name} to itself",
            lambda bench, name=name: bench.keep(name),  # type: ignore[misc]
            ("OUTPUT_OUT",),
            _OFF if alone else Source.POLICY,
            Wire.NOTHING if alone else Wire.ANY,
            latch="" if alone else "?PARTIAL_UNSAFE",
            each=True,
        )

    yield Row("L1.mode_off", "mode off", off, ("MODE_REQUEST",), _OFF, Wire.NOTHING, each=True)

    def both(bench: Inside) -> None:
        bench.grant(False)
        bench.modes.request(Mode.LIMITED, "somebody")
        bench.modes.request(Mode.FULL, "somebody else")

    yield Row(
        "L3.both",
        "the plant takes control while a person asks for more",
        both,
        ("NOT_GRANTED",),
        _OFF,
        Wire.NOTHING,
        each=True,
    )

    def toggled(bench: Inside) -> None:
        for _ in range(50):
            bench.modes.request(Mode.OFF, "selftest")
            bench.modes.request(Mode.FULL, "selftest")

    yield Row("L5.toggled", "mode off and full fifty times between two ticks", toggled)

    def denied(bench: Inside) -> None:
        _tells("TAG_TYPE")(bench)
        step = bench.tick

        def tick() -> Any:  # noqa: ANN401
            done = step()
            try:
                if bench.modes.latches and bench.link.alter is not None:
                    bench.modes.acknowledge("selftest")
                    raise AssertionError("acknowledged while it is still there")
            except RequestError as error:
                assert error.code == "ACK_DENIED"  # noqa: S101  (a failed row, not a failed bench)
            return done

        bench.tick = tick  # type: ignore[method-assign]

    yield Row(
        "L4.denied",
        "acknowledged in every tick while the cause is there",
        denied,
        ("TAG_TYPE",),
        _OFF,
        Wire.NOTHING,
        latch="TAG_TYPE",
        each=True,
    )

    name = parts.outputs.names[0]
    high = float(parts.outputs.high[0])

    def override(bench: Inside) -> None:
        bench.modes.set_override(name, high, "selftest", "a row of the fault table", 3600.0)

    yield Row(
        "L1.override",
        f"a person overrides {name} with its high stop for an hour",
        override,
        ("OVERRIDE",),
        hold=6,
    )

    far: list[float] = []

    def taken_and_given_back(bench: Inside) -> None:
        """The plant's own control moves the actuator meanwhile; ours must begin where it is."""
        ours = bench.tick().sent.action
        bench.grant(False)
        for _ in range(8):
            last = bench.tick()
        far[:] = [float(np.abs(last.observation.applied - ours).max())]
        bench.grant(True)

    yield Row(
        "L2.handed_back",
        "the plant's operator takes control for eight periods, and gives it back",
        taken_and_given_back,
        ("NOT_GRANTED", "HANDBACK"),
        hold=6,
        wire=Wire.ANY,
        proof=lambda bench: "" if far[0] > 0.0 else "the actuator stands where we left it",
    )


# -- two at once -----------------------------------------------------------------------------------


def _together(parts: PlantParts) -> Iterator[Row]:
    name = parts.plant.observations.names[0]
    bad = SignalFault(name, FaultKind.OFF)

    def sensor_and_wire(bench: Inside) -> None:
        bench.sensor(bad)
        bench.link.state = LinkState.DOWN

    yield Row(
        "L6.sensor_and_wire",
        "a sensor is off, and the wire is cut",
        sensor_and_wire,
        ("LINK_DOWN",),
        _OFF,
        Wire.NOTHING,
        each=True,
    )

    def sensor_and_policy(bench: Inside) -> None:
        bench.sensor(bad)
        bench.use(policy=_silent(len(parts.outputs)))

    yield Row(
        "L6.sensor_and_policy",
        "a sensor is off, and the policy does not answer",
        sensor_and_policy,
        ("SAMPLE_BAD",),
        _FALLBACK,
        each=True,
    )

    def everything(bench: Inside) -> None:
        for signal in parts.plant.observations:
            bench.sensor(SignalFault(signal.name, FaultKind.OFF))
        bench.use(policy=_silent(len(parts.outputs)), heuristic=_Raising(bench.good("heuristic")))

    yield Row(
        "L6.everything_off",
        "every sensor is off, the policy silent, the heuristic broken",
        everything,
        ("FALLBACK_FAIL",),
        _SAFE,
        hold=1,
    )


def _silent(n_u: int) -> Policy:
    nothing = Proposal(np.full(n_u, nan), ProposalStatus.LATE, text="made up")
    return Says(lambda _: nothing)
