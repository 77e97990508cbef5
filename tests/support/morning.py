"""A plant that no runtime drives, in its morning whenever a test begins: some load, some ice."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyhand.adapters.sim.side_client import SideChannel
from tests.support.loop_rig import PERIOD_S, Rig

MORNING_H = 9.0
PERIODS_PER_H = 3600.0 / PERIOD_S


@contextmanager
def morning_plant(folder: Path, time_scale: float, *options: str) -> Iterator[Rig]:
    """One plant with its configuration; its time stands still until somebody lets it go on.

    Args:
        folder: its own.
        time_scale: plant seconds per second.
        options: of the plant's process.
    """
    with Rig(folder, time_scale) as made:
        made.start_plant(*options)
        made.write_config()
        assert made.plant is not None
        made.plant.side.call("advance", periods=round(MORNING_H * PERIODS_PER_H))
        made.plant.side.call("pause", on=True)
        yield made


@contextmanager
def from_the_morning_on(rig: Rig, latest_h: float) -> Iterator[SideChannel]:
    """The plant's side channel while its time goes on; then whatever was wrong is right again.

    Args:
        rig: of `morning_plant`.
        latest_h: hour after which the next morning is begun with.
    """
    assert rig.plant is not None
    side, hour = rig.plant.side, rig.truth()["measurements"]["time_of_day_h"]
    if hour > latest_h:
        side.call("advance", periods=round((24.0 + MORNING_H - hour) * PERIODS_PER_H))
    side.call("pause", on=False)
    yield side
    side.call("reset")
    side.call("pause", on=True)
