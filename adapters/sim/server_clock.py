"""The clock of a simulated plant's server, which may be set wrong on purpose.

Only what clients are shown goes wrong: stamps, and the time in each reply. Nothing of the server's
own timing looks at it.
"""

from datetime import UTC, datetime, timedelta, tzinfo

from asyncua.ua import uaprotocol_auto

_offset = timedelta()


class _Wrong(datetime):
    """What the library stamps its replies with."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + _offset


def set_offset(seconds: float) -> None:
    """From now on the server's clock is `seconds` ahead; 0 sets it right. This process only."""
    global _offset  # noqa: PLW0603  (the library's protocol module has one clock, too)
    _offset = timedelta(seconds=seconds)
    uaprotocol_auto.datetime = _Wrong


def server_now() -> datetime:
    """What the server's clock says."""
    return datetime.now(UTC) + _offset
