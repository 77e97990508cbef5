"""What a policy's process says is not believed: any report that is none is one clear refusal.

The processes here are strangers: they speak on the socket of a policy's process, and say what they
like.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import child
from steadyhand.runtime.child import REPORT_BYTES, ChildLimits, PolicyChild, read_report
from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.spawn import Spawned
from steadyhand.runtime.worker import PolicyProcess, WorkerState
from tests.support.models import TanhPolicy, observation_signals, output_signals

PATIENCE_S = 20.0
GOOD = {
    "ok": True,
    "provider": "cpu",
    "notice": "",
    "golden_error": 1e-7,
    "nodes": 3,
    "elements": 10,
    "opset": 17,
    "operators": ["Gemm", "Tanh"],
}
GOOD_BYTES = json.dumps(GOOD).encode()
MAKER = TanhPolicy()
SPEC = PolicySpec(MAKER.model(), observation_signals(), output_signals(), MAKER.golden())
N_NUMBERS = len(SPEC.outputs) + 3
QUESTION = Observation(
    1, 0.0, np.array([1.0, -2.0, 30.0]), np.zeros(3), np.zeros(3, np.int8), np.zeros(1)
)

STRANGER = """
import socket, struct, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
channel.recv(1 << 16)
{words}
time.sleep(600)
"""
ANSWERS = """
channel.send({good!r})
while True:
    sequence, = struct.unpack_from("<Q", channel.recv(1 << 16))
    numbers = struct.pack("<{n}d", *[0.0] * {n})
    {answer}
"""


class Stranger(Spawned):
    """Some other program where a policy's process should be."""

    words = ""

    def __init__(self) -> None:
        self.spec_fd = os.memfd_create("nothing", os.MFD_CLOEXEC)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", STRANGER.format(words=self.words), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        MADE.append(self.process)


MADE: list["subprocess.Popen[bytes]"] = []


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put a program that says `words` in the place of every process started from now on."""

    def put(words: str) -> None:
        monkeypatch.setattr(child, "Spawned", type("Put", (Stranger,), {"words": words}))

    MADE.clear()
    yield put
    for process in MADE:
        assert process.poll() is not None, "a stranger was left behind"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.005)


# -- the report, as bytes --------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GOOD, "code", "message", "x"]), inner, max_size=9)
    ),
    max_leaves=12,
)


def refusal(data: bytes) -> ModelError | None:
    try:
        report = read_report(data)
    except ModelError as error:
        return error
    assert set(GOOD) <= set(report)
    assert report["ok"] is True
    assert 0.0 <= report["golden_error"] < float("inf")
    return None


@given(st.binary(max_size=300))
@example(b"")
@example(b"\xff\xfe")
@example(b"[" * 60_000)
@example(b"1" * 60_000)
@example(GOOD_BYTES[:-1])
@example(GOOD_BYTES + b"}")
@example(b" " * REPORT_BYTES + GOOD_BYTES)
@example(GOOD_BYTES.replace(b"1e-07", b"NaN"))
@example(GOOD_BYTES.replace(b"1e-07", b"1e999"))
@example(GOOD_BYTES.replace(b"1e-07", b"-1"))
@example(GOOD_BYTES.replace(b"1e-07", b"9" * 400))
@example(GOOD_BYTES.replace(b"true", b"1"))
def test_random_bytes_are_one_refusal(data: bytes) -> None:
    error = refusal(data)
    assert error is not None
    assert error.code == "LOAD"
    assert "no proper report" in str(error)
    assert len(str(error)) < 300


@given(ANYTHING)
def test_any_json_is_a_report_or_a_refusal(value: object) -> None:
    refusal(json.dumps(value).encode())


@given(st.sampled_from(sorted(GOOD)), ANYTHING)
def test_a_field_of_another_kind_is_a_refusal(name: str, value: object) -> None:
    data = json.dumps(GOOD | {name: value}).encode()
    error = refusal(data)
    if error is None:
        assert json.loads(data).keys() == GOOD.keys()
        assert isinstance(value, (type(GOOD[name]), int))
        assert not (isinstance(value, bool) and name != "ok")


def test_a_good_report_is_taken_and_a_refusal_keeps_its_code() -> None:
    assert read_report(GOOD_BYTES) == GOOD
    with pytest.raises(ModelError, match="too wild") as caught:
        read_report(b'{"ok": false, "code": "GOLDEN", "message": "too wild"}')
    assert caught.value.code == "GOLDEN"


# -- the report, from a process --------------------------------------------------------------------

REPORTS = {
    "garbage": r"channel.send(bytes(range(256)))",
    "half a report": f"channel.send({GOOD_BYTES[:40]!r})",
    "huge": "channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
    "channel.send(b'x' * 100_000)",
    "a list": "channel.send(b'[]')",
    "not finite": f"channel.send({GOOD_BYTES.replace(b'1e-07', b'NaN')!r})",
    "an empty datagram, and it lives on": "channel.send(b'')",
    "its socket closed, and it lives on": "channel.close()",
    "its end": "sys.exit(3)",
    "its death": "import os; os.kill(os.getpid(), 11)",
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_process_that_does_not_report_is_refused_and_ended(
    stranger: Callable[[str], None], name: str
) -> None:
    stranger(REPORTS[name])
    with pytest.raises(ModelError) as caught:
        PolicyChild(SPEC, ChildLimits(start_s=PATIENCE_S), serve=True).wait_examined()
    assert caught.value.code == "LOAD"
    if name in ("its end", "its death"):
        assert ("status 3" if name == "its end" else "SIGSEGV") in str(caught.value)


def test_a_start_that_hangs_has_a_deadline(stranger: Callable[[str], None]) -> None:
    stranger("")
    with pytest.raises(ModelError, match=r"not loaded within 0\.2 s") as caught:
        PolicyProcess(SPEC, deadline_s=1.0, limits=ChildLimits(start_s=0.2))
    assert caught.value.code == "LIMIT"


def test_closing_does_not_wait_for_a_start_that_hangs(stranger: Callable[[str], None]) -> None:
    stranger("")
    policy = PolicyProcess(SPEC, deadline_s=1.0, wait=False)
    refused: list[ModelError] = []

    def wait() -> None:
        try:
            policy.wait_examined()
        except ModelError as error:
            refused.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: bool(MADE))
    started = time.monotonic()
    policy.close()
    waiting.join(PATIENCE_S)
    assert time.monotonic() - started < 0.5 * ChildLimits().start_s
    assert [error.code for error in refused] == ["CANCELLED"]
    assert policy.propose(QUESTION).status is ProposalStatus.ABSENT


# -- while it serves -------------------------------------------------------------------------------

WRONG_ANSWERS = {
    "short": "channel.send(struct.pack('<Qq', sequence, 0) + numbers[:-1])",
    "long": "channel.send(struct.pack('<Qq', sequence, 0) + numbers + b'x')",
    "longer than the buffer": "channel.send(struct.pack('<Qq', sequence, 2) + bytes(9999))",
    "empty": "channel.send(b'')",
    "of another question": "channel.send(struct.pack('<Qq', sequence + 1, 0) + numbers)",
    "of an older question": "channel.send(struct.pack('<Qq', sequence - 1, 0) + numbers)",
    "of an unknown kind": "channel.send(struct.pack('<Qq', sequence, 77) + numbers)",
    "of a negative kind": "channel.send(struct.pack('<Qq', sequence, -1) + numbers)",
    "random": "channel.send(bytes((7 * i) % 251 for i in range(16 + len(numbers))))",
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_an_answer_that_is_none_costs_the_process(
    stranger: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stranger(ANSWERS.format(good=GOOD_BYTES, n=N_NUMBERS, answer=WRONG_ANSWERS[name]))
    policy = PolicyProcess(SPEC, deadline_s=PATIENCE_S)
    pid = policy.pid
    monkeypatch.undo()  # the next one is a real one
    proposal = policy.propose(QUESTION)
    assert proposal.status is ProposalStatus.CRASHED
    assert np.isnan(proposal.action).all()
    wait_until(lambda: policy.state is WorkerState.READY and policy.pid not in (None, pid))
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    assert policy.events[0].code in (ReasonCode.INFER_ERROR, ReasonCode.INFER_CRASH)
    policy.close()


def test_numbers_that_are_not_finite_are_a_status(stranger: Callable[[str], None]) -> None:
    answer = (
        "channel.send(struct.pack('<Qq', sequence, 0) "
        f"+ struct.pack('<{N_NUMBERS}d', *[float('nan')] * {N_NUMBERS}))"
    )
    stranger(ANSWERS.format(good=GOOD_BYTES, n=N_NUMBERS, answer=answer))
    policy = PolicyProcess(SPEC, deadline_s=PATIENCE_S)
    assert policy.propose(QUESTION).status is ProposalStatus.NONFINITE
    policy.close()


@pytest.mark.parametrize("name", REPORTS)
def test_a_restart_that_goes_wrong_is_counted_and_never_ends_the_supervisor(
    stranger: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    policy = PolicyProcess(SPEC, deadline_s=2.0, restart_pause_s=0.01)
    stranger(REPORTS[name])
    os.kill(policy.pid or 0, 9)
    wait_until(lambda: policy.state is WorkerState.CRASH_LOOP)
    ends = [event.text for event in policy.events if event.code is ReasonCode.INFER_CRASH]
    assert ["restart failed" in text for text in ends] == [False, True, True]
    monkeypatch.undo()
    assert policy.acknowledge()
    wait_until(lambda: policy.state is WorkerState.READY)
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    policy.close()


def test_a_defect_of_the_supervisor_itself_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = PolicyProcess(SPEC, deadline_s=2.0)
    pid = policy.pid

    def broken(_self: PolicyProcess) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(PolicyProcess, "_watch", broken)
    os.kill(pid or 0, 9)  # the one that watches now returns; the next one is broken
    wait_until(lambda: policy.state is WorkerState.CRASH_LOOP)
    assert any("RuntimeError: defect" in event.text for event in policy.events)
    monkeypatch.undo()
    assert policy.acknowledge()
    wait_until(lambda: policy.state is WorkerState.READY)
    policy.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid or 0, 0)
        raise AssertionError("the first child is still there")


def test_a_process_that_nobody_takes_ends_with_its_socket() -> None:
    spawned = Spawned()
    spawned.socket.close()
    assert spawned.process.wait(PATIENCE_S) == 0
    os.close(spawned.spec_fd)


def test_a_process_started_before_is_the_one_that_serves() -> None:
    spawned = Spawned()
    policy = PolicyProcess(SPEC, deadline_s=2.0, spawned=spawned)
    assert policy.pid == spawned.process.pid
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    policy.close()
    assert spawned.process.poll() is not None
