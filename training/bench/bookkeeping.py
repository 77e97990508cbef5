"""Goal 6: metrics and one complete record per tick."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from steadyhand.training.bench.bookkeeping_ways import BLOCK, our_ways, usual_ways
from steadyhand.training.bench.goals import Measured, faster
from steadyhand.training.bench.turns import Setting, take_turns

GOAL = 1 / 5
"""Largest ratio of ours to the usual set."""
LOOP, ALL = "ours, loop thread", "ours, with hash chain and file"
USUAL = "prometheus_client, pydantic, orjson"


def measure(setting: Setting) -> Measured:
    """Blocks of ticks, since the writer's thread takes records in batches too."""
    with tempfile.TemporaryDirectory() as directory:
        usual_metrics, usual_record = usual_ways(Path(directory))
        metrics, record, store = our_ways(Path(directory))

        def block(*calls: Callable[[], None]) -> Callable[[], None]:
            def many() -> None:
                for _ in range(BLOCK):
                    for call in calls:
                        call()

            return many

        def everything() -> None:
            keep_books()
            store()

        keep_books = block(metrics, record)
        rows = take_turns(
            {
                USUAL: block(usual_metrics, usual_record),
                f"{USUAL}: metrics only": block(usual_metrics),
                LOOP: keep_books,
                f"{LOOP}: metrics only": block(metrics),
                ALL: everything,
            },
            setting,
            batch=BLOCK,
        )
    return Measured(
        {"one tick: 24 measurements, 4 rows, 3 monitors": [row.data() for row in rows.values()]},
        [faster("per tick", rows[LOOP], rows[USUAL], GOAL)],
        ["times are per tick, p99 is over blocks of ticks; the chain is another thread's work"],
    )
