"""The doors of a running service: by which people and machines come to it from outside.

    Prometheus ─► metrics ─► numbers                 SCADA ─► OPC UA server ─┐
    browser ─► panel ─┐                                                      │
    `steadyhand …` ─► operator's socket ─► desk (`commands.py`) ◄────────────┘
                                             └► the loop, between two ticks

Control comes first: a port that is taken keeps no plant waiting. It is told, stands as an alarm,
and is tried again. What a door needs beyond that is imported where one is configured.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from steadyhand.adapters.input_file import read_word
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import assemble
from steadyhand.runtime.announcer import Announcer
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.folders import make_folder
from steadyhand.runtime.journal import Status
from steadyhand.runtime.metrics import Metrics
from steadyhand.runtime.metrics_server import MetricsServer
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.scada.server import ScadaServer
from steadyhand.runtime.status import address

if TYPE_CHECKING:
    from steadyhand.runtime.panel.server import Panel


class Doors:
    """Those that the configuration names; None: it does not name this one."""

    def __init__(self, loaded: Loaded, recorder: Recorder, announcer: Announcer) -> None:
        """Make the desk; every door is still closed.

        Args:
            loaded: the configuration.
            recorder: takes the events, and has the last ticks for the pages.
            announcer: tells which door stays closed, and why.
        """
        self.desk = Desk(record=recorder.event)
        """Where the commands of every door wait for the loop."""
        self.metrics: MetricsServer | None = None
        self.operator: OperatorServer | None = None
        self.panel: Panel | None = None
        self.scada: ScadaServer | None = None
        self._loaded, self._recorder, self._announcer = loaded, recorder, announcer
        self._open = ExitStack()

    def open(
        self,
        parts: PlantParts,
        metrics: Metrics,
        journal: Callable[[], Status],
        bundle: Callable[[], Bundle | None],
        heartbeats: Callable[[], tuple[int, int]],
    ) -> None:
        """Open every door; `close` also after this has failed.

        Args:
            parts: the plant.
            metrics: what a scrape shows.
            journal: how it fares.
            bundle: whose policy proposes now.
            heartbeats: ours and the plant's, -1 where there is none.

        Raises:
            ConfigError: a door that cannot be made as it is configured.
            OSError: a file of a door cannot be read or made.
        """
        self._open_metrics(metrics)
        self._open_operator()
        self._open_panel(parts, journal, bundle)
        self._open_scada(bundle, heartbeats)

    def close(self) -> None:
        """Close them all, the last one first. Idempotent."""
        self._open.close()

    def publish(self, status: dict[str, Any]) -> None:
        """Show this from now on; it does not change any more."""
        self.desk.publish(status)
        if self.panel is not None:
            self.panel.publish(status)
        if self.scada is not None:
            self.scada.publish(status)

    def alive(self) -> None:
        """The loop goes round, if without a tick."""
        if self.panel is not None:
            self.panel.alive()

    def faults(self) -> Iterator[Fault]:
        """Which ways in are closed now, against the configuration, or open to anybody."""
        if self.operator is not None and self.operator.problem:
            yield Fault(ReasonCode.OPERATOR_DOWN, text=self.operator.problem)
        if self.metrics is not None and self.metrics.problem:
            yield Fault(ReasonCode.METRICS_DOWN, text=self.metrics.problem)
        if self.panel is not None and self.panel.server.problem:
            yield Fault(ReasonCode.PANEL_DOWN, text=self.panel.server.problem)
        if self.scada is not None:
            yield from self.scada.faults

    def _open_metrics(self, metrics: Metrics) -> None:
        section = self._loaded.config.metrics
        if section is None:
            return
        token = ""
        if section.token_file:
            token = read_word(self._loaded.path(section.token_file))
        server = MetricsServer(
            metrics.render,
            section.listen,
            section.allow_remote,
            token,
            self._recorder.event,
            metrics,
            lambda: metrics.render(open_metrics=True),
        )
        self._open.callback(server.close)
        self.metrics = server.start()
        self._tell_closed("metrics", server.problem)

    def _open_operator(self) -> None:
        self.desk.starting(f"getting ready for {address(self._loaded.config)}")
        self._open.callback(self.desk.close)
        section = self._loaded.config.operator
        if section is None:
            return
        path = self._loaded.path(section.socket)
        make_folder(path.parent)
        settings = OperatorSettings(
            path, assemble.group_id(section.group), assemble.people(section)
        )
        self.operator = OperatorServer(settings, self.desk)
        self._open.callback(self.operator.close)
        self.operator.open()
        self._tell_closed("operator", self.operator.problem)

    def _open_panel(
        self,
        parts: PlantParts,
        journal: Callable[[], Status],
        bundle: Callable[[], Bundle | None],
    ) -> None:
        section = self._loaded.config.panel
        if section is None:
            return
        from steadyhand.runtime.panel.make import make_panel

        self.panel = make_panel(
            self._loaded, section, parts, self._recorder, self.desk, journal, bundle
        )
        self._open.callback(self.panel.close)
        self.panel.open()
        self._tell_closed("panel", self.panel.server.problem)

    def _open_scada(
        self,
        bundle: Callable[[], Bundle | None],
        heartbeats: Callable[[], tuple[int, int]],
    ) -> None:
        section = self._loaded.config.scada
        if section is None:
            return
        from steadyhand.runtime.scada.make import make_scada

        self.scada = make_scada(
            self._loaded, section, self._recorder, self.desk, bundle, heartbeats
        )
        self._open.callback(self.scada.close)
        self.scada.open()
        self._tell_closed("scada", self.scada.failed)

    def _tell_closed(self, section: str, why: str) -> None:
        if why:
            self._announcer.say(f"{section}: {why}; the loop goes on, it is tried again")
