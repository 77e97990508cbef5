"""What the demonstration's end means, and what a number without quotes is told."""

import pytest

from steadyhand.runtime.cli import complete
from steadyhand.runtime.cli_record import _words
from steadyhand.runtime.demo import meaning, progress
from steadyhand.runtime.exits import Exit, guarded


def result(cost: float, missed: int = 0, policy: float = 0.9) -> dict:
    return {
        "best_heuristic": "storage_priority", "cost": cost, "cost_optimum": 100.0,
        "cost_heuristics": {"storage_priority": 110.0},
        "ticks_missed": missed, "share_of_ticks": {"policy": policy},
    }  # fmt: skip


def test_the_end_says_what_the_table_means():
    text = meaning(result(104.5))
    assert "5.0 % less than the best rule (storage_priority)" in text
    assert "4.5 % more than the optimum" in text
    assert "too busy" not in text
    assert "10.0 % more than the best rule" in meaning(result(121.0))


@pytest.mark.parametrize(("missed", "policy"), [(3, 0.9), (0, 0.4)])
def test_a_busy_machine_is_no_evidence(missed, policy):
    text = meaning(result(104.5, missed, policy))
    assert f"{missed} ticks missed" in text
    assert "not those of docs/evaluation" in text


def test_a_log_gets_lines():
    line = progress({"source": "policy"}, {"time_s": 8100.0, "cost": 1.5})
    assert line == "day 1, 02:15 of 4 days, cost 1.50 $, policy"
    assert "no answer" in progress({}, {"time_s": 0.0, "cost": 0.0})


@pytest.mark.parametrize(
    "words", [("-50", "kW", "--reason", "x"), ("'50 kW'", "--for", "2", "h", "--reason", "x")]
)
def test_a_quantity_in_two_words_is_told_of_quotes(words, capsys):
    command = ["override", "x.yaml", "storage_discharge_kw", *words]
    assert guarded(lambda: complete()(command, standalone_mode=False)) == Exit.USAGE
    assert "put it into quotes: '" in capsys.readouterr().err


def test_events_tell_times_as_people_do():
    said = _words({"time_s": 8099.999999971, "for_s": 5400.0, "count_s": 3.0, "text": ""})
    assert said == "time_s=(2 h 15 min after the start) for_s=(1 h 30 min) count_s=3.0"
