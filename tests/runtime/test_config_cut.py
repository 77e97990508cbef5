"""A configuration cut at any byte, as an editor or a copy that is not done leaves it: an answer,
never an error of ours, and what runs goes on.
"""

from pathlib import Path

import pytest

from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.runtime.check import check
from steadyhand.runtime.config import Loaded, parse_config
from steadyhand.runtime.reload import Reload

SHIPPED = Path(__file__).parents[2] / "configs" / "thermal_storage" / "steadyhand.yaml"
SHORT = b"""\
schema_version: 1
name: north  # \xe2\x80\x93 b\xc3\xbcro
plant: {id: thermal_storage, parameters: {power_cap_kw: 150 kW}}
period: 15 min
clock: {source: paced}
link: {kind: sim, days: 1}
fallback: {heuristic: storage_priority}
journal: {directory: var/journal}
modes:
  initial: "off"    # the end of a file that is whole
  clean_ticks: 4
"""
"""Also cut within a sign of two or three bytes."""


def judged(text: bytes, file: Path) -> Loaded | None:
    """What becomes of it; refused needs a reason with words."""
    found = parse_config(text, file)
    if isinstance(found, Loaded):
        return found
    assert found
    assert all(problem.message and problem.code for problem in found)
    return None


@pytest.mark.parametrize(
    ("whole", "step"), [(SHORT, 1), (SHIPPED.read_bytes(), 97)], ids=["short", "shipped"]
)
def test_every_cut_has_an_answer(whole, step):
    sound = judged(whole, SHIPPED)
    assert sound is not None
    refused = 0
    for length in range(0, len(whole), step):
        refused += judged(whole[:length], SHIPPED) is None
    assert refused > 0.6 * len(whole) / step, "cuts must not pass for configurations"


def test_check_of_every_cut_line_raises_nothing(tmp_path):
    """With its files around it, as `steadyhand check` and a reload look at it."""
    make_pki(tmp_path / "pki", "thermal_storage")
    file = tmp_path / "steadyhand.yaml"
    lines = SHORT.splitlines(keepends=True)
    sound = 0
    for count in range(len(lines) + 1):
        for rest in (b"", lines[count][:7] if count < len(lines) else b""):
            file.write_bytes(b"".join(lines[:count]) + rest)
            loaded, problems = check(file)
            assert (loaded is not None) or problems
            sound += loaded is not None and not problems
    assert 0 < sound < len(lines)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.61, 0.8])
def test_a_reload_in_the_middle_of_a_copy_is_refused_and_what_runs_stays(tmp_path, share):
    file = tmp_path / "steadyhand.yaml"
    file.write_bytes(SHORT)
    told: list[dict[str, object]] = []
    in_force = judged(SHORT, file)
    reload = Reload(file, in_force.digest, told.append)
    for text, words in (
        (SHORT[: int(share * SHORT.index(b"modes:"))], "refused, what runs goes on"),
        (SHORT, "is sound and is what runs"),
    ):
        file.write_bytes(text)
        reload.ask()
        reload.begin()
        reload._thread.join(60.0)
        assert words in told.pop()["text"]
    assert told == []
