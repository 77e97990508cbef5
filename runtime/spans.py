"""Times in words: spans as hours and minutes, plant times as days and clock times."""

from datetime import UTC, datetime
from math import isfinite

DAY_S = 86_400.0
_SINCE_1970_S = 1e8
"""Plant times beyond are seconds since 1970, not since the plant's start."""


def span(seconds: float) -> str:
    """A span of time as people say it: `40 s`, `15 min`, `16 h 44 min`, `3 d 2 h`."""
    if not isfinite(seconds):
        return "for ever" if seconds > 0 else "unknown"
    if abs(seconds) < 99.5:
        return f"{seconds:.3g} s"
    sign, minutes = "-" if seconds < 0 else "", round(abs(seconds) / 60.0)
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        days, hours = divmod(hours, 24)
        return f"{sign}{days} d" + (f" {hours} h" if hours else "")
    parts = [f"{hours} h"] if hours else []
    parts += [f"{minutes} min"] if minutes or not hours else []
    return sign + " ".join(parts)


def plant_time(time_s: float) -> str:
    """A moment of plant time: `day 2, 06:45`, or the date where the plant counts from 1970."""
    if not isfinite(time_s):
        return "unknown"
    if abs(time_s) >= _SINCE_1970_S:
        return f"{datetime.fromtimestamp(round(time_s), UTC):%Y-%m-%d %H:%M:%S}Z"
    day, rest = divmod(round(time_s), int(DAY_S))
    hour, rest = divmod(rest, 3600)
    minute, second = divmod(rest, 60)
    return f"day {day + 1}, {hour:02d}:{minute:02d}" + (f":{second:02d}" if second else "")
