"""Times in words, by hand."""

import pytest

from steadyhand.runtime.spans import plant_time, span


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"), (0.25, "0.25 s"), (40.0, "40 s"), (900.0, "15 min"), (3600.0, "1 h"),
        (6.023e4, "16 h 44 min"), (3599.9, "1 h"), (86_400.0, "24 h"), (266_400.0, "3 d 2 h"),
        (-900.0, "-15 min"), (float("inf"), "for ever"), (float("nan"), "unknown"),
    ],
)  # fmt: skip
def test_span(seconds, words):
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("time_s", "words"),
    [
        (0.0, "day 1, 00:00"), (8099.999999971, "day 1, 02:15"), (54_409.0, "day 1, 15:06:49"),
        (86_400.0, "day 2, 00:00"), (1_764_547_200.0, "2025-12-01 00:00:00Z"),
        (float("nan"), "unknown"),
    ],
)  # fmt: skip
def test_plant_time(time_s, words):
    assert plant_time(time_s) == words
