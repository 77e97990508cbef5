"""A policy in a process of its own: same answers, and nothing it does reaches the loop."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steadyhand.controllers.errors import BundleError, ModelError
from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.child import ChildLimits, PolicyChild
from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.slot import PolicySlot
from steadyhand.runtime.worker import PolicyProcess, WorkerState
from tests.support.bundles import BundleKit
from tests.support.models import TanhPolicy, observation_signals, output_signals

PATIENCE_S = 20.0


def observe(*values: float) -> Observation:
    n = len(values)
    return Observation(1, 0.0, np.array(values), np.zeros(n), np.zeros(n, np.int8), np.zeros(1))


QUESTION = observe(1.0, -2.0, 30.0)


def spec_of(maker: TanhPolicy | None = None, label: str = "care v3") -> PolicySpec:
    maker = maker or TanhPolicy()
    return PolicySpec(
        maker.model(), observation_signals(), output_signals(), maker.golden(), label=label
    )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.005)


def ready(policy: PolicyProcess, *, not_pid: int | None = None) -> Callable[[], bool]:
    return lambda: policy.state is WorkerState.READY and policy.pid not in (None, not_pid)


@pytest.fixture
def policy() -> Iterator[PolicyProcess]:
    policy = PolicyProcess(spec_of(), deadline_s=2.0, hang_after_s=0.2)
    yield policy
    policy.close()


# -- answers ---------------------------------------------------------------------------------------


def test_same_answers_as_in_process(policy):
    inner = spec_of().build()
    rng = np.random.default_rng(0)
    for values in rng.uniform(-100, 100, (50, 3)):
        got, expected = policy.propose(observe(*values)), inner.propose(observe(*values))
        assert got.status is ProposalStatus.OK
        np.testing.assert_array_equal(got.action, expected.action)
        assert (got.value, got.error, got.confidence_logit) == (
            expected.value,
            expected.error,
            expected.confidence_logit,
        )
        assert got.latency_s > 0.0


def test_numbers_are_checked_on_this_side_too():
    wide = TanhPolicy(low=-800.0, high=900.0, seed=1)
    policy = PolicyProcess(spec_of(wide), deadline_s=2.0)
    inner = spec_of(wide).build()
    rng = np.random.default_rng(0)
    faults = 0
    for values in rng.uniform(-100, 100, (50, 3)):
        got, expected = policy.propose(observe(*values)), inner.propose(observe(*values))
        assert [f.code for f in got.faults] == [f.code for f in expected.faults]
        faults += len(got.faults)
    policy.close()
    assert faults > 0


def test_input_that_is_not_finite_does_not_reach_the_child(policy):
    proposal = policy.propose(observe(1.0, float("nan"), 3.0))
    assert proposal.status is ProposalStatus.NONFINITE
    assert [f.signal for f in proposal.faults] == ["y1"]
    assert policy.propose(QUESTION).status is ProposalStatus.OK


def test_wrong_number_of_values_is_an_error(policy):
    assert policy.propose(observe(1.0, 2.0)).status is ProposalStatus.ERROR
    assert policy.propose(QUESTION).status is ProposalStatus.OK


def test_report_tells_the_provider(policy):
    assert policy.report["provider"] == "cpu"
    assert policy.report["golden_error"] < 1e-5
    assert policy.resident_bytes() > 2**20


def test_refused_policy_is_refused_here():
    maker = TanhPolicy()
    spec = spec_of(maker)
    maker.weights["pW1"] += 0.1
    with pytest.raises(ModelError, match="known answer missed") as caught:
        PolicyProcess(
            PolicySpec(maker.model(), spec.observations, spec.outputs, spec.golden), deadline_s=1.0
        )
    assert caught.value.code == "GOLDEN"


def test_loop_process_stays_free_of_the_models_runtime():
    code = (
        "import sys, steadyhand.runtime.worker, steadyhand.runtime.slot, "
        "steadyhand.runtime.bundle.load; print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- crash -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blow", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_crash_costs_one_proposal_and_is_repaired_behind_the_loop(policy, blow):
    pid = policy.pid
    os.kill(pid, blow)
    statuses = []
    end = time.monotonic() + PATIENCE_S
    while not statuses or statuses[-1] is not ProposalStatus.OK or policy.pid == pid:
        statuses.append(policy.propose(QUESTION).status)
        assert time.monotonic() < end
    # never an exception, never a wrong status; the answer before the signal lands may be OK
    assert set(statuses) <= {ProposalStatus.OK, ProposalStatus.CRASHED, ProposalStatus.ABSENT}
    assert policy.restarts == 1
    codes = [event.code for event in policy.events]
    assert codes == [ReasonCode.INFER_CRASH, ReasonCode.RECOVERED]
    assert blow.name in policy.events[0].text


def test_crash_while_the_question_is_out_is_crashed_at_once():
    """The child is stopped with the question in its socket, then killed: no wait till deadline."""
    policy = PolicyProcess(spec_of(), deadline_s=PATIENCE_S, hang_after_s=PATIENCE_S)
    pid = policy.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
    start = time.monotonic()
    proposal = policy.propose(QUESTION)
    assert time.monotonic() - start < PATIENCE_S / 2
    assert proposal.status is ProposalStatus.CRASHED
    assert proposal.faults[0].code is ReasonCode.INFER_CRASH
    assert np.isnan(proposal.action).all()
    policy.close()


def test_third_crash_latches_until_acknowledged(policy):
    for count in range(3):
        pid = policy.pid
        os.kill(pid, signal.SIGKILL)
        if count < 2:
            wait_until(ready(policy, not_pid=pid))
    wait_until(lambda: policy.state is WorkerState.CRASH_LOOP)
    proposal = policy.propose(QUESTION)
    assert proposal.status is ProposalStatus.ABSENT
    assert proposal.faults[0].code is ReasonCode.CRASH_LOOP
    assert "acknowledge" in proposal.text
    assert "3 of 3" in proposal.text
    time.sleep(0.3)
    assert policy.state is WorkerState.CRASH_LOOP
    assert policy.acknowledge()
    wait_until(ready(policy))
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    assert not policy.acknowledge()


def test_crashes_outside_the_window_do_not_count():
    hours = iter(range(0, 10_000))
    policy = PolicyProcess(
        spec_of(), deadline_s=1e9, crash_window_s=600.0, clock=lambda: 3600.0 * next(hours)
    )
    for _ in range(4):
        pid = policy.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(ready(policy, not_pid=pid))
    assert policy.restarts == 4
    policy.close()


# -- hang ------------------------------------------------------------------------------------------


def test_hanging_child_is_late_at_once_then_replaced_without_the_loop():
    policy = PolicyProcess(spec_of(), deadline_s=0.05, hang_after_s=0.2)
    pid = policy.pid
    os.kill(pid, signal.SIGSTOP)
    late = policy.propose(QUESTION)
    assert late.status is ProposalStatus.LATE
    assert late.faults[0].code is ReasonCode.INFER_LATE
    assert late.faults[0].limit == 0.05
    # The loop asks nothing more; the supervisor alone must notice.
    wait_until(ready(policy, not_pid=pid))
    assert [e.code for e in policy.events] == [ReasonCode.INFER_HANG, ReasonCode.RECOVERED]
    wait_until(lambda: policy.propose(QUESTION).status is ProposalStatus.OK)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    policy.close()


def test_late_child_that_recovers_is_kept_and_its_stale_answer_is_never_used():
    policy = PolicyProcess(spec_of(), deadline_s=0.05, hang_after_s=PATIENCE_S)
    pid = policy.pid
    fresh = spec_of().build()
    os.kill(pid, signal.SIGSTOP)
    assert policy.propose(QUESTION).status is ProposalStatus.LATE
    assert policy.propose(QUESTION).status is ProposalStatus.LATE
    os.kill(pid, signal.SIGCONT)
    other = observe(-70.0, 20.0, 5.0)
    proposals = []
    wait_until(
        lambda: proposals.append(policy.propose(other)) or proposals[-1].status is ProposalStatus.OK
    )
    np.testing.assert_array_equal(proposals[-1].action, fresh.propose(other).action)
    assert policy.pid == pid
    policy.close()


def test_slow_but_alive_child_is_not_taken_for_hanging():
    policy = PolicyProcess(spec_of(), deadline_s=0.02, hang_after_s=0.3)
    pid = policy.pid
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        assert policy.propose(QUESTION).status is ProposalStatus.LATE
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.35)  # the answer comes, unread, long after the deadline
    assert policy.pid == pid
    assert not policy.events
    policy.close()


# -- life and death --------------------------------------------------------------------------------


def test_child_ignores_the_terminals_and_the_services_stop_signals(policy):
    os.kill(policy.pid, signal.SIGINT)
    os.kill(policy.pid, signal.SIGTERM)
    time.sleep(0.05)
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    assert policy.restarts == 0


def test_child_ends_with_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, os, signal\n"
        f"sys.path.insert(0, {str(Path.cwd())!r})\n"
        "from tests.runtime.test_worker import spec_of\n"
        "from steadyhand.runtime.worker import PolicyProcess\n"
        "policy = PolicyProcess(spec_of(), deadline_s=1.0)\n"
        "print(policy.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(gone)


def test_close_ends_child_and_thread_and_says_so():
    policy = PolicyProcess(spec_of(), deadline_s=1.0)
    pid = policy.pid
    policy.close()
    policy.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    proposal = policy.propose(QUESTION)
    assert proposal.status is ProposalStatus.ABSENT
    assert policy.state is WorkerState.CLOSED


def test_nothing_is_left_after_many_lives():
    before = open_files(), threading.active_count()
    for _ in range(5):
        PolicyProcess(spec_of(), deadline_s=1.0).close()
    assert (open_files(), threading.active_count()) == before


def test_child_is_confined(policy):
    lines = Path(f"/proc/{policy.pid}/limits").read_text().splitlines()
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max address space"][0].isdigit()
    assert limits["Max cpu time"][0] == limits["Max cpu time"][1]


@pytest.mark.slow
def test_limit_of_processor_time_is_for_loading_only():
    policy = PolicyProcess(spec_of(), deadline_s=2.0, limits=ChildLimits(cpu_s=1))
    pid = policy.pid

    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    while used_s() < 2.5:
        assert policy.propose(QUESTION).status is ProposalStatus.OK
    assert policy.restarts == 0
    policy.close()


# -- growth ----------------------------------------------------------------------------------------


@pytest.fixture
def grown(monkeypatch):
    """How many MiB the child of which policy holds, where it is not 100."""
    sizes: dict[int | None, int] = {}
    monkeypatch.setattr(
        PolicyChild, "resident_bytes", lambda child: sizes.get(child.process.pid, 100) << 20
    )
    return sizes


def test_a_child_that_grew_is_replaced_without_missing_a_question(grown):
    policy = PolicyProcess(spec_of(), deadline_s=PATIENCE_S, recycle_bytes=200 << 20, look_s=0.01)
    first = policy.pid
    expected = policy.propose(QUESTION).action
    grown[first] = 300
    asked = 0
    while policy.pid == first or asked < 200:
        asked += 1
        proposal = policy.propose(QUESTION)
        assert proposal.status is ProposalStatus.OK, proposal.text
        assert np.array_equal(proposal.action, expected)
    wait_until(lambda: len(policy.events) == 1)
    assert not Path(f"/proc/{first}").exists()
    (event,) = policy.events
    assert (event.code, event.value, event.limit) == (
        ReasonCode.MEM_RECYCLE, 300 << 20, 200 << 20
    )  # fmt: skip
    assert "held 300 MiB, more than 200 MiB: a fresh one of 100 MiB" in event.text
    assert (policy.recycles, policy.restarts, policy.state) == (1, 0, WorkerState.READY)
    pid = policy.pid
    os.kill(pid, signal.SIGKILL)  # the fresh one is watched like the first
    wait_until(ready(policy, not_pid=pid))
    assert policy.restarts == 1
    policy.close()


@pytest.mark.parametrize(
    ("limit", "becomes"), [(200, 200), (50, 125)], ids=["not above it", "always was large"]
)
def test_a_child_that_did_not_grow_too_far_stays(grown, limit, becomes):
    policy = PolicyProcess(spec_of(), deadline_s=PATIENCE_S, recycle_bytes=limit << 20, look_s=0.01)
    pid = policy.pid
    grown[pid] = becomes
    time.sleep(0.3)
    assert (policy.pid, policy.recycles, len(policy.events)) == (pid, 0, 0)
    policy.close()


def test_where_no_other_can_be_started_the_large_one_goes_on(grown, monkeypatch):
    policy = PolicyProcess(spec_of(), deadline_s=PATIENCE_S, recycle_bytes=200 << 20, look_s=0.01)

    def refused(child: PolicyChild, cancel_fd: int = -1) -> dict[str, Any]:
        child.kill()
        raise ModelError("no memory", "LIMIT")

    monkeypatch.setattr(PolicyChild, "wait_examined", refused)
    pid = policy.pid
    grown[pid] = 300
    wait_until(lambda: len(policy.events) > 0)
    time.sleep(0.2)
    assert len(policy.events) == 1, "tried again at once"
    assert "goes on, because no other can be started: no memory" in policy.events[0].text
    assert (policy.pid, policy.recycles) == (pid, 0)
    assert policy.propose(QUESTION).status is ProposalStatus.OK
    policy.close()


# -- hot swap --------------------------------------------------------------------------------------


def test_swap_under_load_leaves_no_gap():
    """Another thread asks without pause; every proposal is OK and wholly from one policy."""
    makers = {f"v{i}": TanhPolicy(seed=i) for i in range(4)}
    expected = {
        label: spec_of(maker).build().propose(QUESTION).action for label, maker in makers.items()
    }
    slot = PolicySlot(PolicyProcess(spec_of(makers["v0"]), deadline_s=PATIENCE_S), "v0")
    wrong: list[object] = []
    seen = set()
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            proposal = slot.propose(QUESTION)
            seen.add(slot.proposed_by)
            if proposal.status is not ProposalStatus.OK or not np.array_equal(
                proposal.action, expected[slot.proposed_by]
            ):
                wrong.append((slot.proposed_by, proposal))

    thread = threading.Thread(target=loop)
    thread.start()
    labels = [f"v{i % 4}" for i in range(1, 13)]
    for before, label in zip(["v0", *labels], labels, strict=False):
        fresh = PolicyProcess(spec_of(makers[label], label), deadline_s=PATIENCE_S)
        assert slot.swap(fresh, label) == before
    stop.set()
    thread.join()
    slot.close()
    assert wrong == []
    assert seen == set(makers)


def test_failed_swap_leaves_the_old_policy(tmp_path):
    kit = BundleKit(tmp_path)
    bundle = kit.load(kit.pack())
    slot = PolicySlot(PolicyProcess(bundle.spec, deadline_s=2.0), bundle.label)
    spoiled = tmp_path / "spoiled.shb"
    data = bytearray(kit.pack("next.shb", version=4).read_bytes())
    data[len(data) // 2] ^= 1
    spoiled.write_bytes(data)
    with pytest.raises(BundleError):
        following = kit.load(spoiled)
        slot.swap(PolicyProcess(following.spec, deadline_s=2.0), following.label)
    assert slot.propose(QUESTION).status is ProposalStatus.OK
    assert slot.label == slot.proposed_by == "care v3"
    slot.close()


def test_slot_takes_policies_without_a_process():
    slot = PolicySlot(spec_of().build(), "in process")
    assert slot.propose(QUESTION).status is ProposalStatus.OK
    assert slot.swap(spec_of(TanhPolicy(seed=1)).build(), "other") == "in process"
    assert slot.propose(QUESTION).status is ProposalStatus.OK
    slot.close()


def test_child_within_too_little_memory_is_refused():
    with pytest.raises(ModelError) as caught:
        PolicyProcess(
            spec_of(TanhPolicy(hidden=1500)),
            deadline_s=1.0,
            limits=ChildLimits(memory_bytes=16 * 2**20),
        )
    assert caught.value.code == "LIMIT"
