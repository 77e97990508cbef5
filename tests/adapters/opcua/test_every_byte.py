"""A19: the connection ends at any byte of its making, and the link comes back by itself.

Recorded are hello, endpoints, secure channel, session, the first reads, the subscription and the
first command with its read-back. Then the same is cut at each byte, one way and the other, by a
reset and as if it were closed by turns.
"""

import gc
import logging
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from asyncua import ua

from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.reasons import ReasonCode
from tests.support import results

RESULTS = results.RESULTS / "cuts.json"
COMMAND = "python -m pytest -m slow --timeout 14400 tests/adapters/opcua/test_every_byte.py"
PARTS = ("open to_client", "open to_server", "encrypted to_client", "encrypted to_server")
EACH_PART = pytest.mark.parametrize("part", PARTS)
SAMPLE = 16
"""Cuts of each part in an ordinary run, one in each of so many equal shares of the bytes."""
BACK_S = 10.0
"""Generous, for a busy machine: nothing here waits for longer than a request, which has 1 s."""
STEP = 1e-3
"""Between two commands, so that each is another number: 10⁵ of them are inside the limits."""
NAMED = {ReasonCode.LINK_DOWN, ReasonCode.LINK_TIMEOUT}
KEEP_EVERY = 200
SPARE_FDS = 6
"""Descriptors of connections that either side is about to close."""


class Cutter:
    """A link at work, the wire, and an observer at the server's end of it."""

    def __init__(self, opcua, drive, security) -> None:
        server = opcua.server(secure=security)
        self.until, self.server = opcua.until, server
        self.proxy = opcua.proxy(server)
        self.arrived: list[float] = []
        self.handed: list[float] = []
        self.refused: list[float] = []
        self.pinned: list[tuple[float, LinkState, set[str]]] = []
        """Every state that the link showed since the last cut began."""
        self.figures = Counter()
        self.noticed_s: list[float] = []
        self.back_s: list[float] = []
        self._commanded = self._tried = -1
        server.on_write(self._observe)
        more = {} if security is None else {"security": security.security()}
        # as many losses as there are bytes are no flapping here, and no pause for it
        self.driver = drive(
            self.proxy.endpoint,
            opcua.tag_map(opcua.full_handshake()),
            subscribe=True,
            flap_count=1_000_000,
            backoff_first_s=0.01,
            **more,
        )
        board, genuine = self.driver.link._board, self.driver.link._board.pin

        def pin(snapshot):
            genuine(snapshot)
            now = (time.monotonic(), snapshot.state, {fault.code for fault in snapshot.faults})
            self.pinned.append(now)

        board.pin = pin
        self.until(self.at_work)

    def _observe(self, event) -> None:
        for one in event.request_params.NodesToWrite:
            if one.NodeId == ua.NodeId("valve", self.server.index):
                self.arrived.append(one.Value.Value.Value)

    def tick(self) -> None:
        """What a loop does: look, and command, once in each session and once without one."""
        link = self.driver.link
        up, number = self.driver.read().link is LinkState.UP, link.connects
        if number == (self._commanded if up else self._tried):
            return
        value = (len(self.handed) + len(self.refused)) * STEP
        sent = self.driver.write(value)
        (self.handed if sent.written else self.refused).append(value)
        if up:
            self._commanded = number
        else:
            self._tried = number

    def at_work(self) -> bool:
        """Is the newest command of this session what the plant shows?"""
        self.tick()
        shown = self.driver.read()
        return (
            shown.link is LinkState.UP
            and self._commanded == self.driver.link.connects
            and shown.applied[0] == self.handed[-1]
        )

    def record(self, to_client: bool) -> bytes:
        """Every byte of one way, from the first one to the first command that is read back."""
        self.proxy.count_anew()
        number = self.driver.link.connects
        self.until(lambda: self.driver.link.connects > number and self.at_work())
        return bytes(self.proxy.carried[to_client])

    def cut(self, stream: bytes, to_client: bool, at: int) -> None:
        """Cut at one byte, and look at what became of it.

        Raises:
            AssertionError: at which byte of which frame, and what was wrong.
        """
        cuts, arrived = len(self.proxy.cuts_s), len(self.arrived)
        self.pinned.clear()
        self.proxy.count_anew((to_client, at, at % 2 == 0))
        self.until(lambda: self.at_work() and len(self.proxy.cuts_s) > cuts, BACK_S)
        self.until(lambda: self.at_work() and self._ended(self.proxy.cuts_s[-1]), BACK_S)
        cut_s = self.proxy.cuts_s[-1]
        after = [one for one in self.pinned if one[0] >= cut_s]
        down = next((one for one in after if one[1] is LinkState.DOWN), None)
        self.figures["cuts"] += 1
        if down is None:
            # the endpoints were asked for in a connection of their own, which was done with
            assert kind_at(stream, at) in (b"CLO", b"HEL", b"ACK"), "nobody noticed"
            self.figures["not_missed"] += 1
        else:
            told = next((one for one in after if one[1] is LinkState.DOWN and one[2] & NAMED), None)
            assert told is not None, f"down, and nobody says why: {after}"
            up = next(one for one in after if one[0] > down[0] and one[1] is LinkState.UP)
            self.noticed_s.append(down[0] - cut_s)
            self.back_s.append(up[0] - cut_s)
            self.figures.update(sorted(told[2] & NAMED)[:1])
        assert not any(ReasonCode.TASK_DIED in codes for _, _, codes in self.pinned)
        new = self.arrived[arrived:]
        assert set(new) <= set(self.handed), f"not commanded: {new}"
        assert new == sorted(set(new)), f"twice, or in another order: {new}"

    def _ended(self, cut_s: float) -> bool:
        """Has the session that follows the cut begun, or did the one that was made outlive it?"""
        states = [state for moment, state, _ in self.pinned if moment >= cut_s]
        if LinkState.DOWN in states:
            states = states[states.index(LinkState.DOWN) :]
        return LinkState.UP in states


def kind_at(stream: bytes, at: int) -> bytes:
    """What kind of frame the byte `at` belongs to; b"" behind the last one."""
    begin = 0
    while begin + 8 <= len(stream):
        end = begin + int.from_bytes(stream[begin + 4 : begin + 8], "little")
        if begin <= at < end:
            return stream[begin : begin + 3]
        begin = end
    return b""


class Escaped(logging.Handler):
    """Errors that somebody had to log because nobody had caught them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record) -> None:
        text = record.getMessage()
        if "asyncua/server" not in text:  # the library's server, which is only the other end here
            self.told.append(text)


@pytest.fixture
def escaped():
    handler = Escaped()
    loggers = [logging.getLogger(name) for name in ("asyncio", "steadyhand")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


def nothing_left(cutter, escaped, fds, threads) -> None:
    """Whatever was cut, the process is as it was, and no error went past everybody."""
    gc.collect()  # an error that nobody asked for is told when its task is thrown away
    assert escaped.told == []
    cutter.until(lambda: descriptors() <= fds + SPARE_FDS, BACK_S)
    assert threading.active_count() <= threads


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def begin(part, opcua, drive, pki):
    """The link at work, which way is cut, and the bytes of it."""
    kind, way = part.split()
    cutter = Cutter(opcua, drive, pki if kind == "encrypted" else None)
    to_client = way == "to_client"
    return cutter, to_client, cutter.record(to_client)


@EACH_PART
def test_a_cut_anywhere_is_told_and_the_link_comes_back(part, opcua, drive, pki, escaped):
    """One byte of each share, drawn anew with each commit; the first and the last always."""
    cutter, to_client, stream = begin(part, opcua, drive, pki)
    fds, threads = descriptors(), threading.active_count()
    draw = random.Random(results.COMMIT + part)
    bounds = [len(stream) * i // SAMPLE for i in range(SAMPLE + 1)]
    drawn = [draw.randrange(*bounds[i : i + 2]) for i in range(SAMPLE)]
    for at in (0, *drawn, len(stream)):
        cut(cutter, stream, to_client, at)
    assert cutter.figures["cuts"] == SAMPLE + 2
    nothing_left(cutter, escaped, fds, threads)


def cut(cutter, stream, to_client, at) -> None:
    try:
        cutter.cut(stream, to_client, at)
    except AssertionError as error:
        error.add_note(f"cut at byte {at} of {len(stream)}, a frame {kind_at(stream, at)!r}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(14_400)
@EACH_PART
def test_a_cut_at_every_byte(part, opcua, drive, pki, escaped):
    cutter, to_client, stream = begin(part, opcua, drive, pki)
    fds, threads = descriptors(), threading.active_count()
    for at in range(len(stream) + 1):
        cut(cutter, stream, to_client, at)
        if at % KEEP_EVERY == 0:
            write_down(part, cutter, stream, finished=False)
    nothing_left(cutter, escaped, fds, threads)
    write_down(part, cutter, stream, finished=True)


def write_down(part, cutter, stream, finished) -> None:
    """What there is so far, so that a campaign that is cut short is told as one."""
    figures = cutter.figures
    found = {
        "commit": results.COMMIT,
        "finished": finished,
        "bytes": len(stream),
        "cuts": figures["cuts"],
        "told": {str(code): figures[code] for code in sorted(NAMED)},
        "connection_was_done_with": figures["not_missed"],
        "noticed_s": spread(cutter.noticed_s),
        "back_s": spread(cutter.back_s),
        "commands_arrived": len(cutter.arrived),
        "commands_refused_while_down": len(cutter.refused),
    }
    with results.turn(RESULTS):
        parts = results.read(RESULTS).get("parts", {}) | {part: found}
        about = {
            "command": COMMAND,
            "what": "the connection ends after 0, 1, 2 ... bytes of one way, from hello to the "
            "first command that is read back; by a reset after an even number, closed after an odd",
            "parts": {name: parts[name] for name in PARTS if name in parts},
        }
        results.keep(RESULTS, about)


def spread(seconds) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    return {
        "p50": round(ordered[len(ordered) // 2], 4),
        "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 4),
        "worst": round(ordered[-1], 4),
    }


@EACH_PART
def test_what_was_cut_came_back_every_time(part):
    """The kept figures: every byte there was, a reason for each, and nothing that took long."""
    kept = results.read(RESULTS).get("parts", {}).get(part)
    if kept is None:
        pytest.skip(f"not measured: {part}; {COMMAND}")
    assert kept["finished"]
    assert kept["cuts"] == kept["bytes"] + 1
    assert sum(kept["told"].values()) + kept["connection_was_done_with"] == kept["cuts"]
    assert kept["back_s"]["worst"] < BACK_S


def test_an_observer_sees_what_nobody_commanded(opcua, drive):
    """What is asked of each cut can fail."""
    cutter = Cutter(opcua, drive, None)
    stream = cutter.record(to_client=True)
    cutter.arrived.append(50.0)
    genuine = cutter.proxy.count_anew

    def and_a_write(*args):
        genuine(*args)
        cutter.arrived.append(50.0)

    cutter.proxy.count_anew = and_a_write
    with pytest.raises(AssertionError, match="not commanded"):
        cutter.cut(stream, to_client=True, at=len(stream) // 2)
