"""Bookkeeping beside the usual set, in one run."""

import pytest

from steadyhand.runtime.bench_records import GOAL, bench_records


def test_a_fifth_of_the_usual_set():
    pytest.importorskip("orjson")
    figures = bench_records(rounds=12, calls=12)
    assert figures.ratio <= GOAL, figures
    assert figures.ratio_all <= 1.5 * GOAL, figures
    assert figures.usual_us == pytest.approx(
        figures.usual_metrics_us + figures.usual_record_us, rel=0.5
    ), "the parts are the whole: nothing was optimised away"
