"""One line per training stage on the terminal; silent when nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from steadyhand.runtime.terminal import console


@dataclass(frozen=True, slots=True)
class Stage:
    """One bar. `advance` moves it and shows the newest number."""

    progress: Progress
    task: TaskID

    def advance(self, note: str = "", steps: int = 1) -> None:
        """Move by `steps` and show `note` behind the bar."""
        self.progress.update(self.task, advance=steps, note=note)


@contextmanager
def stage(title: str, total: int) -> Iterator[Stage]:
    """Show a bar of `total` steps while the block runs (on standard error)."""
    columns = (
        TextColumn("{task.description:<28}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console(stderr=True)) as progress:
        yield Stage(progress, progress.add_task(title, total=total, note=""))
