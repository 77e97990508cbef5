"""The response test: each output is moved a little, within its limits, while the operator watches.

Every command goes through the safety filter, as in service; the plant has to grant control and can
take it back at any moment; at the end, whatever the end is, it has its own control back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steadyhand.controllers.errors import ConfigError, LinkError
from steadyhand.controllers.frames import Observation
from steadyhand.controllers.signals import Vector
from steadyhand.runtime import assemble
from steadyhand.runtime.assemble_opcua import opcua_settings, opcua_tags
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.responses import GOOD, Answer, Response, Sample, judge
from steadyhand.runtime.visit import Say, Visit, visiting

PATTERN = (1.0, -1.0, -1.0, 1.0)
"""Steps up and down that neither a drift nor a trend is taken for."""
_OFF = 0.4
"""Share of a period by which a sample's may be longer or shorter."""


@dataclass(frozen=True, slots=True)
class TestSettings:
    """How the test is done."""

    __test__ = False  # not one of pytest's

    step: float = 0.05
    """Share of an output's range by which it is moved each way."""
    periods: int = 12
    """Control periods per output."""
    patience_s: float = 60.0
    """Wall seconds to wait for the link and for the plant's grant."""
    outputs: tuple[str, ...] = ()
    """Which outputs; all when empty."""


@dataclass(frozen=True, slots=True)
class TestReport:
    """What came of it."""

    __test__ = False

    responses: tuple[Response, ...]
    problems: tuple[str, ...]
    """Why the test was not done, or not to its end."""
    open_doors: tuple[str, ...] = ()
    """Ways in which somebody else could write the outputs, too."""
    beyond: tuple[str, ...] = ()
    """What our own account could write, and does not: for the plant's people to take away."""

    @property
    def passed(self) -> bool:
        """Is every tag right, as far as this test can tell, and nobody else let in?"""
        right = all(item.answer in GOOD for item in self.responses)
        return right and not self.problems and not self.open_doors


def response_test(
    loaded: Loaded, settings: TestSettings, say: Say = lambda text: None
) -> TestReport:
    """Move each output and judge every measurement.

    Args:
        loaded: the configuration, passed by the pre-flight.
        settings: how.
        say: told what happens, line by line, for the operator who watches.

    Raises:
        ConfigError: the plant cannot be tested so, or an output does not exist.
        JournalError: a runtime drives this plant; it must be stopped first.
        LinkError: the plant does not answer, or does not grant control, in time.
    """
    parts = assemble.make_plant(loaded)
    if parts.kind.reconstruct is None:
        raise ConfigError(f"plant {parts.kind.id}: its state cannot be told from measurements")
    names = settings.outputs or parts.outputs.names
    for name in names:
        parts.outputs.index(name)
    with visiting("response test", loaded, parts, settings.patience_s, say) as visit:
        doors = _open_doors(loaded, visit)
        for text in doors:
            say(f"the plant's server is open: {text}")
        beyond = _beyond(loaded, visit)
        return replace(_Test(settings, visit).run(names), open_doors=doors, beyond=beyond)


def _open_doors(loaded: Loaded, visit: Visit) -> tuple[str, ...]:
    """Who else could write; nothing to find where the site has said that anybody may."""
    from steadyhand.adapters.opcua.strangers import open_doors

    settings = opcua_settings(loaded, visit.section)
    if settings.security.insecure:
        return ()
    return tuple(open_doors(settings, opcua_tags(visit.parts, visit.section)))


def _beyond(loaded: Loaded, visit: Visit) -> tuple[str, ...]:
    """What our account could write; why that is not known, where it is not."""
    from asyncua.ua import UaError

    from steadyhand.adapters.opcua.reach import own_reach

    settings = opcua_settings(loaded, visit.section)
    try:
        found = own_reach(settings, opcua_tags(visit.parts, visit.section))
    except (LinkError, OSError, UaError) as error:
        return (f"not known: {error}",)
    more = () if found.complete else (f"not known beyond the first {found.nodes} nodes",)
    return (*found.beyond, *more)


class _Test:
    """One test under way."""

    def __init__(self, settings: TestSettings, visit: Visit) -> None:
        self._settings, self._visit, self._parts = settings, visit, visit.parts

    def run(self, names: Sequence[str]) -> TestReport:
        """Look, ask for control, move one output after the other."""
        visit = self._visit
        visit.link.open()
        if problems := visit.look():
            return TestReport((), tuple(problems))
        visit.ask()
        responses: list[Response] = []
        for name in names:
            try:
                found = self._move(name)
            except LinkError as error:
                return TestReport(tuple(responses), (str(error),))
            responses += found
            wrong = [item for item in found if item.answer not in GOOD]
            for item in wrong:
                visit.say(f"{item.signal}: {item.answer}: {item.text}")
            if not any(item.answer is Answer.RIGHT for item in found[1:]):
                text = f"{name}: no measurement answers it in the model here; try at another hour"
                return TestReport(tuple(responses), (text,))
            if wrong:
                break  # nothing else is moved on a plant that answers wrongly
        return TestReport(tuple(responses), ())

    def _move(self, name: str) -> list[Response]:
        """Move one output around where it is.

        Raises:
            LinkError: control was lost, or the limits leave no room.
        """
        visit, outputs = self._visit, self._parts.outputs
        column = outputs.index(name)
        size = self._settings.step * (outputs.high[column] - outputs.low[column])
        before = visit.next()
        rest = self._rest(before, column, size)
        samples: list[Sample] = []
        periods, period_s = self._settings.periods, self._parts.plant.period_s
        unit = outputs.signals[column].unit
        for turn in range(2 * periods):
            wanted = rest.copy()
            wanted[column] += size * PATTERN[turn % len(PATTERN)]
            command = visit.command(before, wanted)
            after = visit.next()
            # the model speaks of one whole period: one that came late or twice is not compared
            if abs(after.time_s - before.time_s - period_s) < _OFF * period_s:
                samples.append(Sample(before.values, command, after.values, after.applied))
                visit.say(
                    f"{name}: period {len(samples)} of {periods}: {command[column]:.4g} {unit}, "
                    f"the plant applies {after.applied[column]:.4g}"
                )
            before = after
            if len(samples) == periods:
                break
        else:
            raise LinkError(
                f"{name}: only {len(samples)} of {2 * periods} periods were whole: the plant's "
                "images or this machine are too slow for the period"
            )
        room = float(np.ptp([sample.command[column] for sample in samples]))
        if room < 0.5 * size:
            raise LinkError(f"{name}: the limits leave no room for steps here; try another time")
        reconstruct = self._parts.kind.reconstruct
        assert reconstruct is not None  # noqa: S101  (asked before)
        held = self._parts.kind.held
        return judge(self._parts.plant, reconstruct, outputs, name, rest, samples, held)

    def _rest(self, seen: Observation, column: int, size: float) -> Vector:
        """Where the outputs are, but in the middle half of what the limits allow now: there has to
        be room for steps both ways until the last of them.
        """
        outputs, ends = self._parts.outputs, []
        for end in (outputs.low[column], outputs.high[column]):
            wanted = seen.applied.copy()
            wanted[column] = end
            ends.append(float(self._visit.certified(seen, wanted)[column]))
        rest = seen.applied.copy()
        margin = max(0.25 * (ends[1] - ends[0]), 2.0 * size)
        low, high = ends[0] + margin, ends[1] - margin
        rest[column] = min(max(rest[column], low), high) if low <= high else 0.5 * (low + high)
        return rest
