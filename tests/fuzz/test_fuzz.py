"""A bounded share of the fuzzing, with hypothesis so that what it finds comes out small.

The same targets by the million: `python tests/fuzz/run.py --inputs 1000000`.
"""

import json
import random
import signal
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.limit import TRIES, TooSlowError, within
from tests.fuzz.mutate import OPS, apply, edits
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.timeout(240, method="thread")  # SIGALRM is for the single inputs
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
EXAMPLES = {
    "config": 50, "opcua_link": 2, "scada_bytes": 20, "panel_http": 100, "metrics_http": 100,
    "operator_socket": 100, "journal": 60, "manifest": 100,
}  # fmt: skip
EDIT = st.tuples(st.sampled_from(OPS), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_too_broken(name):
    target = TARGETS[name]()

    @settings(
        max_examples=EXAMPLES.get(name, 150),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 15), st.lists(EDIT, max_size=6))
    def broken(which, wanted):
        within(target.run, apply(target.seeds, target.words, which, wanted))

    try:
        for seed in target.seeds:
            within(target.run, seed)
        broken()
        target.after()
    finally:
        target.close()


def test_a_seed_gives_the_same_inputs_again():
    made = [
        [apply([b"abcdef", b"xyz"], [b"w"], source.randrange(9), edits(source)) for _ in range(200)]
        for source in (random.Random(5), random.Random(5))
    ]
    assert made[0] == made[1]
    assert len(set(made[0])) > 100, "and not always the same one"


def test_what_has_been_found_before_stays_mended():
    """Bytes that once made something fail in a way it does not promise."""
    cases = {
        # the registry of units stumbles over a dangling operator
        "quantity": [b"3 kW*/min", b"1 (", b"1 kW**", b"9 kW**kW**kW"],
        # an array of nothing: forty bytes that announce two thousand million elements
        "opcua_reply": [
            b"\x00" + b"\x01\x00\x7a\x02" + b"\0" * 24 + struct.pack("<i", 1) + b"\x01\x80"
            + struct.pack("<i", 2**31 - 1)
        ],
    }  # fmt: skip
    for name, inputs in cases.items():
        target = TARGETS[name]()
        for data in inputs:
            within(target.run, data)
        target.close()


def test_an_input_that_blocks_is_found():
    """It waits, costs no time of the processor, and catches whatever it can."""
    tried = []

    def blocks(data):
        tried.append(data)
        try:
            time.sleep(30.0)
        except Exception:  # noqa: BLE001
            time.sleep(30.0)

    with pytest.raises(TooSlowError):
        within(blocks, b"x", 0.05)
    assert tried == [b"x"] * TRIES
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_slow_once_is_the_machine():
    pauses = iter([30.0, 0.0])
    within(lambda _: time.sleep(next(pauses)), b"", 0.05)
    assert list(pauses) == []


def test_an_error_is_no_matter_of_time():
    with pytest.raises(ZeroDivisionError):
        within(lambda _: 1 / 0, b"")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


KEPT = json.loads((Path(__file__).parent / "results" / "fuzz.json").read_text("utf-8"))


def test_the_figures_that_were_kept_are_without_findings():
    assert KEPT["findings"] == 0
    assert set(KEPT["targets"]) == set(TARGETS)
    assert KEPT["inputs"] == sum(one["inputs"] for one in KEPT["targets"].values())
    assert all(one["findings"] == [] for one in KEPT["targets"].values())


def test_the_page_tells_how_many_inputs_each_had():
    rows = [f"| `{name}` | {one['inputs']} |" for name, one in sorted(KEPT["targets"].items())]
    rows.append(f"| all | {KEPT['inputs']} |")
    print("\n".join(rows))
    told = PAGE.read_text("utf-8").partition("## Fuzzing")[2].splitlines()
    assert [line for line in told if line.startswith(("| `", "| all"))] == rows
