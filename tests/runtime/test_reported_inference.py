"""Failures that users of other runtimes have reported: threads that spin, a GPU gone bad."""

import os
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.worker import PolicyProcess, WorkerState
from tests.support.models import TanhPolicy, observation_signals, output_signals

MAKER = TanhPolicy()


def observe(*values: float) -> Observation:
    n = len(values)
    return Observation(1, 0.0, np.array(values), np.zeros(n), np.zeros(n, np.int8), np.zeros(1))


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_policy_asked_ten_times_a_second_idles_in_between():
    """Threads that wait by spinning keep several cores busy with nothing."""
    spec = PolicySpec(MAKER.model(), observation_signals(), output_signals(), MAKER.golden())
    policy = PolicyProcess(spec, deadline_s=2.0)
    try:
        for _ in range(3):
            policy.propose(observe(1.0, 2.0, 3.0))
        began_s, used_s = time.monotonic(), processor_s(policy.pid)
        for _ in range(20):
            assert policy.propose(observe(1.0, 2.0, 3.0)).status is ProposalStatus.OK
            time.sleep(0.1)
        share = (processor_s(policy.pid) - used_s) / (time.monotonic() - began_s)
        assert share < 0.05
        threads = len(list(Path(f"/proc/{policy.pid}/task").iterdir()))
        assert threads <= 2, "one to work, and one that the interpreter's libraries may keep"
    finally:
        policy.close()


def by_table(model: onnx.ModelProto) -> None:
    """value = table[observation[0]]: an error at run time for numbers beyond the table."""
    graph = model.graph
    next(n for n in graph.node if "value" in n.output).output[0] = "old_value"
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    graph.initializer.append(numpy_helper.from_array(np.zeros(201, np.float32), "table"))
    graph.node.append(helper.make_node("Gather", ["observation", "first"], ["y0"], axis=1))
    graph.node.append(helper.make_node("Cast", ["y0"], ["index"], to=TensorProto.INT64))
    graph.node.append(helper.make_node("Gather", ["table", "index"], ["value"]))


def test_after_one_fault_a_gpu_gives_no_more_answers():
    """One fault can poison a GPU's context: later answers are garbage that looks right.

    The fault is real; that it happened on a GPU is made up.
    """
    known = MAKER.golden()
    golden = Golden(
        known.observation,
        known.action,
        np.zeros_like(known.value),
        known.error,
        known.confidence_logit,
    )
    spec = PolicySpec(MAKER.model(by_table), observation_signals(), output_signals(), golden)
    policy = PolicyProcess(spec, deadline_s=2.0)
    try:
        first = policy.pid
        failed = policy.propose(observe(1000.0, 2.0, 3.0))
        assert failed.status is ProposalStatus.ERROR
        assert policy.propose(observe(1.0, 2.0, 3.0)).status is ProposalStatus.OK
        assert policy.pid == first, "a processor is none the worse for an error"

        policy.report["provider"] = "cuda"
        failed = policy.propose(observe(1000.0, 2.0, 3.0))
        assert failed.faults[0].code is ReasonCode.INFER_ERROR
        assert np.isnan(failed.action).all()
        until_s = time.monotonic() + 20.0
        while policy.pid in (None, first) or policy.state is not WorkerState.READY:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        assert any("failed on cuda" in event.text for event in policy.events)
        assert policy.report["golden_error"] < 1e-4, "the new one has given the known answers"
        assert policy.propose(observe(1.0, 2.0, 3.0)).status is ProposalStatus.OK
    finally:
        policy.close()
