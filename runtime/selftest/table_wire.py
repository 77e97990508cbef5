"""Rows that need a network, a server or processes of their own."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

from steadyhand.adapters.sim.chaos_proxy import Trick, Way
from steadyhand.controllers.frames import Source
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.selftest.rows import Place, Row, Wire
from steadyhand.runtime.selftest.wire import Site

_FALLBACK, _HOLD, _SAFE, _OFF = Source.FALLBACK, Source.HOLD, Source.SAFE, Source.HANDS_OFF
_DOWN = ("LINK_DOWN", "LINK_TIMEOUT")
BACK_S = 15.0
"""Longest until control is back although the fault goes on."""
MOST_BYTES = 512 << 20
"""What the runtime may hold, whatever a server sends: its libraries alone hold a third of it."""
_BLIP = (*_DOWN, "RECOVERED")
"""A link that is back within a tick is only told to be back."""

FAR_SHARE = 0.05
"""Of an output's range: what no tolerance of an actuator covers."""
TRIED_PERIODS = 6.0
"""So long may a command take to get that far."""


def declared(config: Config, parts: PlantParts) -> Iterator[Row]:
    """Rows for what the configuration itself says of a measurement, and of outputs."""
    if not isinstance(config.link, OpcUaLink):
        return
    name, measured = next(iter(config.link.signals.items()))
    used = measured.forced == "use"
    yield _row(
        f"L7.{name}.forced_in_the_plant",
        f"{name}: somebody forces it in the plant (GoodLocalOverride)",
        _op("quality", signal=name, status="GoodLocalOverride"),
        ("TAG_FORCED_USED" if used else "TAG_FORCED",),
        Source.POLICY if used else _FALLBACK,
    )
    for name, tag in config.link.outputs.items():
        if tag.follow_time is None:
            continue
        periods = tag.follow_time / parts.plant.period_s
        yield _row(
            f"F2.{name}.declared",
            f"{name}: the actuator does not move any more while a person overrides the output",
            _while_overridden(parts, name, lambda here: {"kind": "ignored"}),
            ("ACT_NOFOLLOW",),
            _FALLBACK,
            Wire.ANY,
            latch="?OBS_XCHECK",
            within_s=10.0 + periods,
        )


def _while_overridden(
    parts: PlantParts, name: str, fault: Callable[[float], dict[str, Any]]
) -> Callable[[Site], None]:
    """The fault of an actuator that stands at `here`, and then a command far from there."""

    def do(site: Site) -> None:
        here = site.plant.side.truth()["applied"][name]
        site.plant_op("fault", fault={"signal": name, **fault(here)})
        _go_far(site, parts, name, here)

    return do


def _go_far(site: Site, parts: PlantParts, name: str, here: float) -> None:
    """Override an output, far from `here`, to the side on which the filter lets it go."""
    column = parts.outputs.index(name)
    low, high = float(parts.outputs.low[column]), float(parts.outputs.high[column])
    site.overridden.add(name)

    def gone() -> bool:
        sent = site.status().get("sent", {}).get(name)
        return sent is not None and abs(sent - here) > FAR_SHARE * (high - low)

    sides = (0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high)
    for far in sorted(sides, key=lambda value: abs(value - here), reverse=True):
        site.ask("override", output=name, value=far, reason="selftest", for_s=86_400.0)
        if site.wait(gone, TRIED_PERIODS * site.wall_period_s):
            return


def rows(parts: PlantParts) -> Iterator[Row]:
    """Every such row, those that cost least first."""
    yield from _samples(parts)
    yield from _server(parts)
    yield from _commands(parts)
    yield from _people(parts)
    yield from _processes(parts)
    yield from _network()
    yield from _plant_restarts(parts)


def _row(
    number: str,
    injected: str,
    do: Callable[[Site], None],
    codes: tuple[str, ...] = (),
    demand: Source = Source.POLICY,
    wire: Wire = Wire.GOES_ON,
    **more: Any,  # noqa: ANN401
) -> Row:
    return Row(number, injected, do, codes, demand, wire, place=Place.WIRE, **more)


def _op(operation: str, **fields: Any) -> Callable[[Site], None]:  # noqa: ANN401
    def do(site: Site) -> None:
        site.plant_op(operation, **fields)

    return do


# -- what a server can say of a measurement --------------------------------------------------------


def _samples(parts: PlantParts) -> Iterator[Row]:
    names = parts.plant.observations.names
    name = names[0]
    for status in (
        "BadCommunicationError",
        "BadSensorFailure",
        "BadNotConnected",
        "BadOutOfService",
        "BadWaitingForInitialData",
    ):
        yield _row(
            f"A12.{status}",
            f"{name}: {status}",
            _op("quality", signal=name, status=status),
            ("SAMPLE_BAD",),
            _FALLBACK,
        )
    for status in (
        "Uncertain",
        "UncertainLastUsableValue",
        "UncertainSensorNotAccurate",
        "UncertainEngineeringUnitsExceeded",
        "UncertainSubNormal",
    ):
        yield _row(
            f"A13.{status}",
            f"{name}: {status}, with a value beside it",
            _op("quality", signal=name, status=status),
            ("SAMPLE_UNCERTAIN",),
            _FALLBACK,
        )
    for label, value in (
        ("null", None),
        ("empty_array", []),
        ("array", [1.0, 2.0]),
    ):
        yield _row(
            f"A14.{label}",
            f"{name}: {label.replace('_', ' ')} instead of a number",
            _op("set", signal=name, value=value),
            ("SAMPLE_TYPE",),
            _FALLBACK,
        )
    for kind in ("String", "Boolean", "Int16", "Float"):
        yield _row(
            f"B18.{kind}",
            f"{name}: served as {kind} from one moment to the next",
            _op("type", signal=name, type=kind),
            ("SAMPLE_TYPE",),
            _FALLBACK,
        )
    for label, number, code in (
        ("nan", "nan", "OBS_NONFINITE"),
        ("inf", "inf", "OBS_NONFINITE"),
        ("minus_inf", "-inf", "OBS_NONFINITE"),
        ("huge", 1e300, "OBS_RANGE"),
    ):
        number_ = "B2" if code == "OBS_RANGE" else "B1"
        yield _row(
            f"{number_}.wire_{label}",
            f"{name}: {number}",
            _op("set", signal=name, value=number),
            (code,),
            _FALLBACK,
        )
    yield _row(
        "B11.frozen_node",
        f"{name}: value and stamps stand still while the plant runs",
        _op("freeze", signal=name),
        ("OBS_STUCK", "OBS_STALE"),
        _FALLBACK,
        latch="?OBS_XCHECK",
    )
    for label, rule in (
        ("none", "none"),
        ("epoch_1970", "1970-01-01T00:00:00+00:00"),
        ("future", 3600.0),
    ):
        yield _row(
            f"B12.wire_{label}",
            f"{name}: both stamps: {rule}",
            _op("stamp", signal=name, source=rule, server=rule),
            ("OBS_TS_INVALID",),
            _FALLBACK,
        )
    yield _row(
        "B12.wire_source_1970",
        f"{name}: source stamp of 1970, server stamp sound",
        _op("stamp", signal=name, source="1970-01-01T00:00:00+00:00"),
        ("OBS_TS_INVALID",),
        _FALLBACK,
    )
    yield _row(
        "B15.wire_paused",
        "the plant's program stands still, its server answers",
        _op("pause"),
        ("OBS_REPEAT", "OBS_STUCK", "OBS_STALE"),
        _FALLBACK,
        Wire.ANY,
        hold=10,
    )
    if len(names) > 1:
        other = names[1]
        yield _row(
            "B8.swapped",
            f"{name} and {other} show each other's value",
            _op("swap", signal=name, other=other),
            ("OBS_RATE", "OBS_RANGE", "OBS_XCHECK"),
            _FALLBACK,
            latch="?OBS_XCHECK",
        )


def _refused(why: str) -> Callable[[Site], str]:
    """Requests really were refused."""

    def proof(site: Site) -> str:
        refused = site.plant.side.truth()["refused"][why]
        return "" if refused else f"no request was refused for {why}"

    return proof


def _refused_and_back(why: str) -> Callable[[Site], str]:
    """And control is there all the same: it found another way."""

    def proof(site: Site) -> str:
        if wrong := _refused(why)(site):
            return wrong
        if not site.wait(site.in_control, BACK_S):
            return f"no control while requests are refused for {why}: {site.story()}"
        return ""

    return proof


def _little_memory(site: Site) -> str:
    """However much a server sends, what is not wanted is not kept."""
    held = site.resident_bytes()
    return "" if held < MOST_BYTES else f"the runtime holds {held >> 20} MiB"


# -- what a server can do --------------------------------------------------------------------------


def _server(parts: PlantParts) -> Iterator[Row]:
    for state in ("Failed", "Suspended", "Shutdown", "Test", "CommunicationFault"):
        yield _row(
            f"A23.{state}",
            f"ServerState {state}",
            _op("server_state", state=state),
            ("SERVER_STATE",),
            _OFF,
            Wire.NOTHING,
        )
    yield _row(
        "A21.silent",
        "the subscription reports nothing, reads go on",
        _op("silence"),
        ("SUB_STALE",),
        _FALLBACK,
        within_s=15.0,
    )
    yield _row(
        "A15.ten_nodes",
        "the server takes ten nodes in one request, from one moment to the next",
        _op("limit", nodes=10),
        (),
        wire=Wire.ANY,
        hold=20,
        losses=1,
        restarts=True,  # the next runtime does not know the limit yet
        proof=_refused_and_back("too_many"),
    )
    yield _row(
        "A16.busy",
        "one request in ten is refused with BadServerTooBusy",
        _op("busy", probability=0.1),
        (),
        wire=Wire.ANY,
        latch="?WRITE_FAILED",
        hold=20,
        losses=1,
        proof=_refused_and_back("busy"),
    )
    yield _row(
        "A16.always_busy",
        "every request is refused with BadServerTooBusy",
        _op("busy", probability=1.0),
        ("SERVER_BUSY", *_DOWN),
        Source.POLICY,
        Wire.ANY,
        losses=2,
        hold=10,
        proof=_refused("busy"),
    )
    yield _row(
        "A10.sessions_dropped",
        "the server ends every session",
        _op("drop_sessions"),
        _BLIP,
        wire=Wire.ANY,
        losses=1,
    )
    yield _row(
        "A20.large_array",
        "a measurement becomes an array of 400 000 numbers",
        _op("set", signal=parts.plant.observations.names[-1], value=[1.0], times=400_000),
        (*_DOWN, "SAMPLE_TYPE"),
        _FALLBACK,
        Wire.ANY,
        losses=1,
        proof=_little_memory,
    )
    for offset_s in (300.0, -300.0, 86_400.0):
        yield _row(
            f"C2.{offset_s:g}",
            f"the server's clock is {offset_s:g} s off from one moment to the next",
            _op("clock", offset_s=offset_s),
            ("CLOCK_OFFSET",),
            wire=Wire.ANY,
            hold=10,
        )


# -- what becomes of commands ----------------------------------------------------------------------


def _commands(parts: PlantParts) -> Iterator[Row]:
    output = parts.outputs.signals[0]
    name, middle = output.name, 0.5 * (output.low + output.high)
    for status in ("BadNotWritable", "BadUserAccessDenied"):
        yield _row(
            f"A9.{status}",
            f"{name}: writes are refused with {status}",
            _op("refuse", signal=name, status=status),
            ("WRITE_DENIED",),
            _OFF,
            Wire.NOTHING,
            latch="WRITE_DENIED",
        )
    yield _row(
        "A9.access",
        f"{name}: no longer writable",
        _op("access", signal=name, writable=False),
        ("WRITE_DENIED",),
        _OFF,
        Wire.NOTHING,
        latch="WRITE_DENIED",
    )
    for status in ("BadOutOfRange", "BadDeviceFailure", "BadTypeMismatch"):
        yield _row(
            f"F9.{status}",
            f"{name}: writes are refused with {status}",
            _op("refuse", signal=name, status=status),
            ("WRITE_FAILED",),
            _HOLD,
            Wire.ANY,
            latch="?WRITE_FAILED",
        )
    yield _row(
        "F12.heartbeat",
        "the heartbeat is not accepted",
        _op("refuse", signal="controller_heartbeat", status="BadNotWritable"),
        ("WRITE_DENIED",),
        _OFF,
        Wire.NOTHING,
        latch="WRITE_DENIED",
    )
    yield _row("F10.strict", "writes with stamps or status are refused", _op("strict"), hold=8)
    little = 0.01 * (output.high - output.low)
    yield _row(
        "F3.clamped",
        f"{name}: the plant cuts what is written to where it stands while a person overrides it",
        _while_overridden(
            parts,
            name,
            lambda here: {
                "kind": "clamped",
                "parameters": {"low": here - little, "high": here + little},
            },
        ),
        ("WRITE_CLAMPED",),
        wire=Wire.ANY,
        hold=8,
        latch="?OBS_XCHECK",
    )
    yield _row(
        "F4.rival",
        f"{name}: another client writes it",
        lambda site: _rival(site, name, middle + 1.2345),
        ("WRITE_CONTENTION",),
        _OFF,
        Wire.NOTHING,
        latch="WRITE_CONTENTION",
    )
    yield _row(
        "F8.reply_lost",
        "writes act, their replies come too late",
        _op("latency", reply_s=3.0),
        ("WRITE_UNKNOWN", *_DOWN),
        _HOLD,
        Wire.ANY,
        latch="?WRITE_UNKNOWN",
        losses=2,
        hold=0,
        slow_back=True,
    )
    yield _row(
        "F7.write_blocked",
        "writes act three seconds late",
        _op("latency", write_s=3.0),
        ("WRITE_UNKNOWN", "WRITE_STALE_DROP", *_DOWN),
        _HOLD,
        Wire.ANY,
        latch="?WRITE_UNKNOWN",
        losses=2,
        hold=0,
        slow_back=True,
    )


def _rival(site: Site, name: str, value: float) -> None:
    """Again and again: one write between two of ours may never be seen by anybody."""
    for _ in range(12):
        site.plant_op("rival", signal=name, value=value)
        site.periods(0.3)


# -- people ----------------------------------------------------------------------------------------


def _people(parts: PlantParts) -> Iterator[Row]:
    yield _row(
        "L1.wire_taken",
        "the plant's operator takes control",
        lambda site: site.grant(False),
        ("NOT_GRANTED",),
        _OFF,
        Wire.NOTHING,
    )

    alone = len(parts.outputs) == 1
    for name in parts.outputs.names:
        yield _row(
            f"L1.wire_{name}_kept",
            f"the plant's operator keeps {name} to himself",
            lambda site, name=name: site.keep(name),  # type: ignore[misc]
            ("OUTPUT_OUT",),
            _OFF if alone else Source.POLICY,
            Wire.NOTHING if alone else Wire.ANY,
            latch="" if alone else "?PARTIAL_UNSAFE",
        )

    def taken_often(site: Site) -> None:
        for i in range(10):
            site.grant(False)
            site.periods(0.37 * (i % 4) + 0.1)
            site.grant(True)
            site.periods(0.5)
        site.grant(False)

    yield _row(
        "L1.taken_often",
        "control is taken and given ten times, at other moments of the tick",
        taken_often,
        ("NOT_GRANTED", "WRITE_CONTENTION"),
        _OFF,
        Wire.NOTHING,
        # a grant that is taken for less than a reading is only seen by what the plant did then
        latch="?WRITE_CONTENTION|OBS_XCHECK",
    )

    def shed(site: Site) -> None:
        name = parts.outputs.names[0]
        _go_far(site, parts, name, site.plant.side.truth()["applied"][name])
        site.plant_op("shed")

    yield _row(
        "L1.shed",
        "the plant takes its outputs back as if our heartbeat had stopped, and drives elsewhere",
        shed,
        ("NOT_GRANTED", "WRITE_CONTENTION"),
        _OFF,
        Wire.ANY,
        latch="?WRITE_CONTENTION|OBS_XCHECK",
        hold=6,
    )

    def mode_off(site: Site) -> None:
        site.ask("mode", mode="off", reason="selftest")

    yield _row("L1.wire_mode_off", "mode off", mode_off, ("MODE_REQUEST",), _OFF, Wire.NOTHING)


# -- processes -------------------------------------------------------------------------------------


def _processes(parts: PlantParts) -> Iterator[Row]:
    del parts
    for number in (signal.SIGKILL, signal.SIGSEGV):
        yield _row(
            f"D16.{number.name}",
            f"the policy's process ends with {number.name}",
            lambda site, n=number: site.kill_policy(n),  # type: ignore[misc]
            ("INFER_CRASH", "POLICY_ABSENT"),
            _FALLBACK,
            latch="?CRASH_LOOP",
            restarts=number is signal.SIGSEGV,
            may_heal=True,
        )
    yield _row(
        "D15.stopped",
        "the policy's process stands still",
        lambda site: site.freeze("policy"),
        ("INFER_LATE", "INFER_HANG"),
        _FALLBACK,
        hold=2,
        latch="?CRASH_LOOP",
        restarts=True,
    )
    yield _row(
        "C4.runtime_stopped",
        "the whole runtime stands still for two seconds",
        lambda site: site.freeze("runtime", 2.0),
        ("TICK_GAP", "TICK_OVERRUN", *_DOWN),
        _FALLBACK,
        Wire.ANY,
        losses=1,
    )
    yield _row(
        "G3.killed",
        "kill -9 of the runtime; it is started again after the plant has taken over",
        _killed,
        ("RESTART",),
        wire=Wire.ANY,
        within_s=20.0,
        unrecorded=1,
        restarts=True,
    )
    yield _row(
        "G1.stopped",
        "SIGTERM in the middle of its work; it is started again",
        _terminated,
        ("START",),
        wire=Wire.ANY,
        within_s=20.0,
    )


def _killed(site: Site) -> None:
    site.stop_runtime(signal.SIGKILL)
    if not site.wait(lambda: not site.in_control(), 10.0):
        raise AssertionError("the plant did not take over from a dead controller")
    site.start_runtime()


def _terminated(site: Site) -> None:
    status = site.stop_runtime()
    if status != 0:
        raise AssertionError(f"SIGTERM ended it with status {status}")
    if site.plant.side.truth()["controlled"]:
        raise AssertionError("the plant was not handed back")
    site.start_runtime()


# -- the network -----------------------------------------------------------------------------------


def _network() -> Iterator[Row]:
    def lost(
        number: str,
        injected: str,
        do: Callable[[Site], None],
        **more: Any,  # noqa: ANN401
    ) -> Row:
        return _row(number, injected, do, _DOWN, _OFF, Wire.NOTHING, **({"losses": 1} | more))

    def cut_off(site: Site) -> None:
        site.proxy.refuse()
        site.proxy.reset()

    yield lost("A1.reset", "the connection is reset, and so is every new one", cut_off)
    yield _row(
        "A1.reset_once",
        "the connection is reset once",
        lambda site: site.proxy.reset(),
        _BLIP,
        wire=Wire.ANY,
        losses=1,
    )
    yield _row(
        "A1.half_closed",
        "the plant's half of the connection ends",
        lambda site: site.proxy.half_close(),
        _BLIP,
        wire=Wire.ANY,
        losses=1,
    )
    yield lost(
        "A2.half_open", "nothing gets through, and nobody is told", lambda site: site.proxy.hold()
    )
    yield lost(
        "A2.stopped",
        "the plant's server stands still",
        lambda site: site.freeze("plant"),
        under_way=1,
    )
    yield lost(
        "A5.trickle",
        "one byte per second",
        lambda site: site.proxy.throttle(1.0),
        hold=8,
        under_way=1,
    )

    def flaps(site: Site) -> None:
        for _ in range(3):
            site.proxy.reset()
            site.periods(2.0)
            site.wait(lambda: site.status().get("link") == "up", 6.0)
            site.periods(1.0)

    yield _row(
        "A3.flaps",
        "the connection is reset three times within a few seconds",
        flaps,
        ("LINK_FLAP",),
        _OFF,
        Wire.NOTHING,
        losses=2,
        slow_back=True,
    )
    for share in (0.25, 0.5, 1.0, 2.0):
        yield _row(
            f"A4.{share:g}",
            f"the way to the plant and back takes {share:g} periods",
            lambda site, s=share: site.proxy.delay(0.5 * s * site.wall_period_s),  # type: ignore[misc]
            ("WRITE_LATE", "WRITE_STALE_DROP") if share >= 1.0 else (),
            wire=Wire.ANY,
            hold=10,
            losses=1,
            proof=_delayed,
        )
    # two periods to get here, and an image is up to one old when it leaves: older than any may be
    yield _row(
        "A4.4",
        "the way to the plant and back takes four periods",
        lambda site: site.proxy.delay(2.0 * site.wall_period_s),
        (*_DOWN, "OBS_STALE", "OBS_REPEAT", "TICK_OVERRUN", "WRITE_STALE_DROP"),
        _FALLBACK,
        Wire.ANY,
        hold=10,
        losses=1,
        proof=_delayed,
    )
    yield lost(
        "A4.10",
        "the way to the plant and back takes ten periods",
        lambda site: site.proxy.delay(5.0 * site.wall_period_s),
        hold=10,
        under_way=1,
    )
    for trick, number in ((Trick.DUPLICATE, "A18"), (Trick.SWAP, "A18"), (Trick.DROP, "F8")):
        for way in Way:
            yield _row(
                f"{number}.{trick}_{way}",
                f"a frame {way.replace('_', ' ')}: {trick}",
                lambda site, t=trick, w=way: _play(site, t, w),  # type: ignore[misc]
                (*_BLIP, "WRITE_UNKNOWN", "WRITE_FAILED"),
                wire=Wire.ANY,
                losses=1,
                hold=10,
                proof=lambda site, t=trick, w=way: _played(site, t, w),
            )
    for offset in (0, 3, 4, 7, 8, 12, 24, 40, 60, -1):
        yield _row(
            f"A19.corrupt_{offset}",
            f"byte {offset} of a frame from the plant is flipped",
            lambda site, o=offset: site.proxy.spoil(Trick.CORRUPT, offset=o),  # type: ignore[misc]
            _BLIP,
            wire=Wire.ANY,
            losses=1,
        )
    for offset in (4, 8, 30):
        yield _row(
            f"A19.cut_{offset}",
            f"the connection ends after byte {offset} of a frame",
            lambda site, o=offset: site.proxy.spoil(Trick.CUT, offset=o),  # type: ignore[misc]
            _BLIP,
            wire=Wire.ANY,
            losses=1,
        )


def _play(site: Site, trick: Trick, way: Way) -> None:
    """Each frame is numbered, so one too many, too few or too early ends the connection."""
    site.proxy.played.clear()
    site.proxy.spoil(trick, way=way)


def _played(site: Site, trick: Trick, way: Way) -> str:
    return "" if site.proxy.played[trick, way] else f"no frame {way} was there to {trick}"


def _delayed(site: Site) -> str:
    return "" if site.proxy.delayed else "no frame was delayed"


# -- the plant's server goes and comes back --------------------------------------------------------


def _plant_restarts(parts: PlantParts) -> Iterator[Row]:
    name = parts.plant.observations.names[-1]
    output = parts.outputs.names[0]
    yield _row(
        "A1.killed",
        "the plant's server is killed",
        lambda site: site.kill_plant(),
        _DOWN,
        _OFF,
        Wire.NOTHING,
        losses=1,
    )
    yield _row(
        "A6.reordered",
        "the server comes back with its namespaces in another order, decoys where we looked",
        lambda site: site.restart_plant(reorder=True),
        ("NS_REMAP",),
        _OFF,
        Wire.ANY,
        losses=1,
        within_s=20.0,
    )

    def removed(site: Site) -> None:
        site.plant_op("remove", signal=name)

    yield _row(
        "A7.removed",
        f"{name}: the node is gone",
        _then_restart(removed),
        ("TAG_MISSING", *_DOWN),
        _OFF,
        Wire.NOTHING,
        losses=1,
    )
    for what, do in (
        ("type", _op("type", signal=name, type="Int16")),
        ("output_type", _op("type", signal=output, type="Float")),
    ):
        yield _row(
            f"A8.{what}",
            f"{name if what == 'type' else output}: another type when the session is made anew",
            _reconnecting(do),
            ("TAG_TYPE",),
            _OFF,
            Wire.NOTHING,
            latch="TAG_TYPE",
            losses=1,
            each=True,
        )
    yield _row(
        "B10.unit",
        f"{name}: another engineering unit when the session is made anew",
        _reconnecting(_op("unit", signal=name, unit="K")),
        ("TAG_TYPE",),
        _OFF,
        Wire.NOTHING,
        latch="TAG_TYPE",
        losses=1,
        each=True,
    )
    yield _row(
        "A17.no_slot",
        "the server has no session left",
        _reconnecting(_op("slots", sessions=-1)),
        ("NO_SESSION_SLOT",),
        _OFF,
        Wire.NOTHING,
        losses=1,
        slow_back=True,
    )
    yield _row(
        "A22.stranger",
        "another server answers at the plant's address",
        lambda site: site.stranger(),
        ("CERT_CHANGED", "SERVER_ID"),
        _OFF,
        Wire.NOTHING,
        latch="CERT_CHANGED",
        losses=1,
        each=True,
        within_s=15.0,
    )


def _reconnecting(do: Callable[[Site], None]) -> Callable[[Site], None]:
    """`do`, and the session has to be made anew."""

    def both(site: Site) -> None:
        do(site)
        site.proxy.reset()

    return both


def _then_restart(do: Callable[[Site], None]) -> Callable[[Site], None]:
    """`do`, to be mended by a restart of the server alone."""

    def both(site: Site) -> None:
        do(site)
        site.renew = True

    return both
