"""One running plant: start everything in order, tick, stop everything in order.

    start   record (one writer) ─► link ─► watches ─► doors ─► loop          `start.py` before it
    tick    observe … record (`loop.py`) ─► told, shown, kept ─► commands, swaps
    stop    loop ends ─► plant handed back ─► doors closed ─► record closed

Whatever a step opens is pushed on one stack, which closes it in the opposite order, also where a
later step fails. What comes in from outside stands in `doors.py`, what people's commands do in
`handlers.py`, which bundle serves in `serving_bundle.py`.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from steadyhand.controllers.errors import ConfigError, JournalError
from steadyhand.controllers.frames import Fault, LinkState, ProposalStatus
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import assemble
from steadyhand.runtime.alarms import Alarms, shelf_event
from steadyhand.runtime.announcer import Announcer
from steadyhand.runtime.clock import Idle
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import CrashLoop
from steadyhand.runtime.doors import Doors
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.folders import make_folder
from steadyhand.runtime.go_live import GoLive, record_name
from steadyhand.runtime.guard import deaths
from steadyhand.runtime.handlers import Handlers
from steadyhand.runtime.health import Health
from steadyhand.runtime.keepsakes import Keepsakes
from steadyhand.runtime.loop import STAGES, Loop, Parts, Tick
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.notices import Notices
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.reload import Reload
from steadyhand.runtime.reminders import reminders
from steadyhand.runtime.serving_bundle import ServingBundle
from steadyhand.runtime.signal_flag import Stop
from steadyhand.runtime.slot import PolicySlot
from steadyhand.runtime.state_folder import black_box_file, state_folder
from steadyhand.runtime.status import address, status, words
from steadyhand.runtime.trial import First
from steadyhand.runtime.vitals import ServiceVitals
from steadyhand.runtime.watches import Watches

STOP_S = 20.0
"""Longest from the last tick to the end of the process: hand-back, log-out, journal, sockets."""


class Service:
    """Everything around one loop. Use as a context manager."""

    def __init__(
        self,
        loaded: Loaded,
        first: First,
        health: Health,
        crashes: CrashLoop,
        notices: Notices,
    ) -> None:
        """Take over what was prepared; whoever makes a service must enter it.

        Args:
            loaded: the configuration, passed by the pre-flight.
            first: the policy to start with; closed with the service.
            health: tells the service manager; closed with the service.
            crashes: notes on how runs ended.
            notices: hears of every change of who drives, and why.
        """
        self.loaded, self.config = loaded, loaded.config
        self.first = first
        """What it started with."""
        self.health, self.crashes, self.notices = health, crashes, notices
        self._open = ExitStack()
        self._stop: Stop | None = None
        self._told_ready = False

    def __enter__(self) -> "Service":
        try:
            self._start()
        except OSError as error:
            self._open.close()
            raise ConfigError(f"cannot start: {words_of(error)}") from error
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # -- start -------------------------------------------------------------------------------------

    def _start(self) -> None:
        slot = self._take_over()
        self._begin_record()
        # from here on this is the one runtime of the plant: it may connect, while the rest is made
        self._connect()
        self._take_up(slot)
        self._watch()
        self._open_doors()
        self._make_loop()
        self._tell_start()

    def _take_over(self) -> PolicySlot:
        """Own what was prepared: policy and health end with this service, whatever comes."""
        bundle = self.first.bundle
        slot = PolicySlot(self.first.policy, bundle.label if bundle else "none")
        self._open.callback(slot.close)
        self.plant = assemble.make_plant(self.loaded)
        self._open.callback(self.health.close)
        return slot

    def _begin_record(self) -> None:
        """Have the one lock of this plant; from here on there is a record, on disk or in memory."""
        loaded, name = self.loaded, record_name(self.first.bundle)
        layout = assemble.make_layout(self.plant, self.first.gate.names, STAGES)
        self.recorder = Recorder(layout, loaded.digest, name)
        self.announcer = Announcer(self.notices, self.recorder)
        folder = state_folder(loaded)
        make_folder(folder)
        self.journal = assemble.make_journal(
            loaded,
            self.recorder,
            name,
            lambda head: self.announcer.say(f"journal head {head}", Priority.INFO),
        ).start()
        self._open.callback(self.journal.close)
        self._open.callback(deaths.listen(self.announcer.death).close)
        if audit := self.journal.fault():
            text = f"nothing is recorded on disk now: {audit.text}"
            self.announcer.say(text, Priority.ERROR)
        if self.recorder.black_box is None:
            file = black_box_file(loaded)
            self.announcer.say(f"no room for {file}: a kill would lose the last records")
        scale = self.config.clock.time_scale
        self.keepsakes = Keepsakes(folder, self.config.name, scale, self.recorder.event)
        self._open.callback(self.keepsakes.close)

    def _connect(self) -> None:
        self.link = assemble.make_link(self.loaded, self.plant)
        self._open.callback(self.link.close)
        self.link.open()

    def _take_up(self, slot: PolicySlot) -> None:
        """Who may drive, and with which bundle; it comes up not controlling."""
        self.modes = assemble.make_modes(self.config, self.plant, self.keepsakes.asked)
        self.go_live = GoLive.read(self.loaded)
        self.serving = ServingBundle(
            self.loaded,
            self.plant,
            self.first,
            slot,
            self.go_live,
            self.crashes,
            self.recorder,
            self.announcer,
        )

    def _watch(self) -> None:
        """What tells how it fares: alarms, what is looked at beside the loop, SIGHUP."""
        self.alarms = Alarms()
        # the plant's beat is waited for two periods long, and then there is one more tick
        self.health.patience_s = 3.0 * self._wall_period_s + 1.0
        self.reload = Reload(self.loaded.file, self.loaded.digest, self.announcer.reload)
        self.watches = Watches(self.loaded, self.link, self.recorder, self.announcer)
        self._open.callback(self.watches.close)
        self.watches.start()

    def _open_doors(self) -> None:
        config, parts, before = self.config, self.plant, self.crashes.before
        self.doors = Doors(self.loaded, self.recorder, self.announcer)
        self.metrics = Metrics(
            Identity(config.name, parts.kind.id, record_name(self.first.bundle)),
            config.period,
            parts.kind.constraints(parts.parameters).names,
            self._wall_period_s,
            lambda: self.journal.report,
            signals=parts.plant.observations,
            outputs=parts.outputs,
            plant_values=config.metrics is not None and config.metrics.plant_values,
            monitors=self.first.gate.names,
            vitals=ServiceVitals(
                self.serving,
                self.journal,
                self.health,
                self.link,
                certificates=lambda: self.watches.certificates.ends,
                refused=lambda: dict(self.doors.desk.refused),
                run_before=ReasonCode.OK if before is None else before.code,
            ),
        )
        self._open.callback(self.doors.close)
        self.doors.open(
            parts,
            self.metrics,
            journal=lambda: self.journal.report,
            bundle=lambda: self.serving.bundle,
            heartbeats=lambda: getattr(self.link, "heartbeats", (-1, -1)),
        )

    def _make_loop(self) -> None:
        config, plant = self.config, self.plant
        idle = Idle(self._between)
        self._hasten = idle.hasten
        parts = Parts(
            link=self.link,
            image_judge=assemble.make_image_judge(config, plant),
            policy=self.serving.slot,
            gate=self.first.gate,
            modes=self.modes,
            heuristic=assemble.make_heuristic(config, plant),
            transfer=Transfer(plant.outputs, config.fallback.transfer),
            safety=assemble.make_safety(config, plant),
            safe_action=plant.kind.safe_action(plant.parameters),
            leash=assemble.leash(config, plant),
            recorder=self.recorder,
            metrics=self.metrics,
            health=self.health,
            beside=self._unrecorded,
        )
        clock = assemble.make_clock(config, self.link, idle)
        handshake = assemble.make_handshake(config, plant)
        self.loop = Loop(parts, clock, self._after_tick, handshake=handshake)
        self.handlers = Handlers(
            self.loop, self.serving, self.alarms, self.keepsakes, self._stop_asked
        )
        self._open.callback(self.serving.close)
        self._open.callback(self.link.close)  # first of all: the plant is handed back

    def _tell_start(self) -> None:
        """What is odd about the bundle, and how the run before ended where not in order."""
        self.serving.warn()
        if self.serving.alarm:
            self.recorder.event({"event": "BundleRefused", "text": self.serving.alarm})
        before = self.crashes.before
        if before is not None:
            label = before.policy.label or "none"
            text = f"the run before ended: {before.text}"
            self.recorder.event(
                {"event": "Restart", "code": str(before.code), "text": text, "bundle": label}
            )
            self.keepsakes.note(Fault(before.code, text=text))
        if self.crashes.fault:
            self.recorder.event({"event": "CrashNotes", "text": self.crashes.fault})

    # -- run ---------------------------------------------------------------------------------------

    def run(self, stop: Stop, max_ticks: int | None = None) -> None:
        """Tick until `stop`; then the plant has its own control back.

        Raises:
            JournalError: another runtime has the journal now, so this one ended.
        """
        self._stop = stop
        self.health.starting(f"waiting for the plant at {address(self.config)}")
        self.doors.desk.starting(f"connecting to {address(self.config)}", accepting=True)
        self.recorder.event(
            {
                "event": "Start",
                "code": "START",
                "pid": os.getpid(),
                "bundle": self.serving.label,
                "plant": self.config.name,
                "control": self.go_live.digest,
                "go_live": self.go_live.words(self.serving.bundle),
            }
        )
        self._resume()
        self._take_realtime()
        try:
            self.loop.run(stop, max_ticks)
        finally:
            self.health.stopping("handing the plant back", STOP_S)
            self.recorder.event({"event": "Stop", "code": "STOP"})
        if self.journal.taken_over:
            raise JournalError(f"the journal was taken over: {self.journal.taken_over}")

    def _resume(self) -> None:
        """Put back what people did in the run before, and ask for the configured mode."""
        for text in self.keepsakes.resume(self.handlers.give, self.alarms):
            self.announcer.say(f"from the run before: {text}")
        initial = Mode(self.config.modes.initial)
        if initial is Mode.FULL and self.serving.refused_full("configuration"):
            initial = Mode.OFF
        self.handlers.give(
            "request", mode=initial, actor="configuration", reason="modes.initial", wish=False
        )

    def _take_realtime(self) -> None:
        """The loop's thread into the real-time class, where the configuration asks for it."""
        priority = self.config.clock.realtime_priority
        if priority == 0:
            return
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        except OSError as error:
            text = f"priority {priority} refused ({error.strerror}): ordinary scheduling"
            self.recorder.event({"event": "Realtime", "text": text})

    def _unrecorded(self) -> tuple[Fault, ...]:
        """Why the policy may not drive for want of a record, where the configuration says so."""
        report = self.journal.report
        if not (self.config.journal.required and report.cause):
            return ()
        return (Fault(ReasonCode.AUDIT_REQUIRED, text=f"{report.cause}: {report.text}"),)

    # -- between two ticks -------------------------------------------------------------------------

    def _after_tick(self) -> None:
        """After each tick, outside its deadline."""
        tick = self.loop.last
        assert tick is not None  # noqa: S101  (called after a tick)
        starting = not self._told_ready
        if starting and tick.observation.link is LinkState.UP:
            self._told_ready = True
            self.health.ready(words(self, tick))
        if tick.proposal.status is ProposalStatus.OK:
            self.serving.answered()
        self.health.status(words(self, tick))
        self.announcer.change(self, tick)
        self.serving.tell_process()
        self._see_alarms(tick, starting)
        self.keepsakes.keep(self.modes, self.alarms, tick.now_s)
        shown = status(self, tick)
        self.metrics.participation = shown["participation"]
        self.doors.publish(shown)
        self._between()

    def _see_alarms(self, tick: Tick, starting: bool) -> None:
        modes, notes, own = self.modes, self.keepsakes.notes, tuple(self._own_faults())
        there = [fault for fault in tick.faults if modes.is_there(fault.code)]
        groups = (there, tick.verdict.faults, tick.sent.faults, own)
        latches = (*modes.latches, *(note.code for note in notes))
        for ended in self.alarms.update(groups, latches, modes.situation, tick.now_s, starting):
            self.recorder.event(shelf_event("ShelfExpired", ended, ended.owner))
        self.metrics.standing, self.metrics.shelved = own, len(self.alarms.shelves)

    def _own_faults(self) -> Iterator[Fault]:
        """What is wrong beside the loop: told, and nobody drives otherwise for it."""
        yield from deaths.faults()
        yield from self.doors.faults()
        yield from self.watches.faults(self.serving.slot.policy)
        audit = self.journal.fault()
        if audit is not None:
            yield audit
        yield from reminders(self.modes, self.go_live, self.serving.bundle)
        yield from self.keepsakes.faults()
        yield from self.serving.faults()
        yield from self.keepsakes.notes

    def _between(self) -> None:
        """Operator's commands and a finished swap; the loop is not in a tick."""
        self.watches.wall.look()
        self.doors.alive()
        if self.doors.desk.drain(self.handlers.by_name):
            self._hasten()
            if self.loop.last is not None:
                self.keepsakes.keep(self.modes, self.alarms, self.loop.last.now_s)
        if self.journal.taken_over and self._stop is not None:
            self._stop.set()  # one plant has one runtime, and it is another one now
        if self._stop is not None and self._stop.is_set():
            self._hasten()  # a signal does not wait for the next planned tick, a period away
        if (made := self.serving.swapped(self.modes.mode)) is not None:
            self._use(made)
        self.reload.begin()
        if not self.link.stuck():
            self.health.waiting()
            if self._outdated():
                self._hasten()  # a slow loop would else judge and tell it a whole period later

    def _use(self, made: First) -> None:
        """The next tick is judged by the gate that came with the bundle swapped in."""
        self.loop.parts = replace(self.loop.parts, gate=made.gate)
        self.metrics.bundle = record_name(made.bundle)

    def _outdated(self) -> bool:
        """Have link or grant come or gone, or is something else wrong, since the last tick?"""
        last = self.loop.last
        if last is None:
            return False
        judged, (state, granted, faults) = last.observation, self.link.condition()
        up = state is LinkState.UP
        if up or judged.link is LinkState.UP:
            return up is not (judged.link is LinkState.UP) or granted != judged.granted
        known = {(fault.code, fault.signal) for fault in judged.faults}
        return any((fault.code, fault.signal) not in known for fault in faults)

    def _stop_asked(self) -> None:
        assert self._stop is not None  # noqa: S101  (commands are drained while running)
        self._stop.set()

    @property
    def _wall_period_s(self) -> float:
        return self.config.period / self.config.clock.time_scale
