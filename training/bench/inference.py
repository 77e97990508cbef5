"""Goal 1: one call of policy and critic."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from steadyhand.controllers.frames import Observation
from steadyhand.controllers.policies.onnx import INPUT
from steadyhand.runtime.worker import PolicyProcess
from steadyhand.training.bench.goals import Check, Measured, faster
from steadyhand.training.bench.graphs import sb3_model, tanh_policy, weights_of
from steadyhand.training.bench.turns import Setting, take_turns

N_Y, N_U = 16, 7
FLOOR_BOUND = 1.3
SIZES = {64: (0.6, 1 / 20), 256: (0.75, 1 / 8)}
"""Width → largest ratio to session.run(dict) and to stable-baselines3."""
STEP, PROPOSE, BOUND = "step", "step, checked and framed", "bare bound call"
PROCESS = "step, checked and framed, in a child process"
DEADLINE_S = 1.0
"""Of the child: far beyond what is measured, so that no call is cut short."""
DICT, SB3 = "session.run(dict)", "stable-baselines3 predict"


@contextmanager
def ways(
    hidden: int,
) -> Iterator[tuple[dict[str, Callable[[], Any]], Callable[[], dict[str, Any]]]]:
    """The calls to time, and what each gives as an action (n_u,) when asked once.

    Raises:
        ImportError: a rival is not installed.
    """
    spec = tanh_policy(N_Y, N_U, hidden)
    policy = spec.build()
    values = np.random.default_rng(1).standard_normal(N_Y)
    values32 = values.astype(np.float32)
    frame = Observation(1, 0.0, values, np.zeros(N_Y), np.zeros(N_Y, np.int8), np.zeros(N_U))
    session, feed = policy.session, {INPUT: values32[np.newaxis]}
    rival = sb3_model(weights_of(spec), N_Y, N_U)
    child = PolicyProcess(spec, deadline_s=DEADLINE_S)

    def answers() -> dict[str, Any]:
        policy.run(values)
        return {
            STEP: policy.numbers[:N_U].copy(),
            PROPOSE: policy.propose(frame).action,
            PROCESS: child.propose(frame).action,
            DICT: session.run(["action"], feed)[0][0],
            SB3: np.tanh(rival.predict(values32, deterministic=True)[0]),
        }

    calls: dict[str, Callable[[], Any]] = {
        DICT: lambda: session.run(None, feed),
        STEP: lambda: policy.run(values),
        PROPOSE: lambda: policy.propose(frame),
        PROCESS: lambda: child.propose(frame),
        BOUND: policy.run_bound,
        SB3: lambda: rival.predict(values32, deterministic=True),
    }
    try:
        yield calls, answers
    finally:
        child.close()


def measure(setting: Setting) -> Measured:
    """Both widths, all ways."""
    tables: dict[str, Any] = {}
    checks: list[Check] = []
    for hidden, (dict_bound, sb3_bound) in SIZES.items():
        title = f"2x{hidden}"
        with ways(hidden) as (calls, _):
            rows = take_turns(calls, setting)
        tables[f"{N_Y} observations, {title}, {N_U} outputs"] = [r.data() for r in rows.values()]
        checks += [
            faster(title, rows[STEP], rows[DICT], dict_bound),
            faster(title, rows[STEP], rows[SB3], sb3_bound),
            faster(title, rows[STEP], rows[BOUND], FLOOR_BOUND),
        ]
    note = f"'{STEP}' leaves the numbers in its buffer; '{PROPOSE}' makes the frame of the record"
    return Measured(tables, checks, [note])
