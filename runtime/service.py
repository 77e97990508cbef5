"""One running plant: start everything in order, tick, stop everything in order.

start: pre-flight and policy (`start.py`) → journal (one writer) → sockets → link → loop
stop:  loop ends → plant handed back → journal closed → sockets freed
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyhand.adapters.input_file import read_word
from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    JournalError,
    RequestError,
    SteadyhandError,
)
from steadyhand.controllers.frames import Fault, LinkState, ProposalStatus
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import assemble
from steadyhand.runtime.alarms import Alarms, Shelf
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.certificate_watch import CertificateWatch
from steadyhand.runtime.clock import Idle
from steadyhand.runtime.commands import Command, Desk
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import CrashLoop
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.flood import Flood
from steadyhand.runtime.folders import make_folder
from steadyhand.runtime.go_live import GoLive, record_name
from steadyhand.runtime.guard import Death, Guarded, deaths
from steadyhand.runtime.health import Health, printable
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.keepsakes import Keepsakes
from steadyhand.runtime.loop import STAGES, Loop, Parts, Tick
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.metrics_server import MetricsServer
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.notices import LENGTH, Notices
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.provider import ProviderWatch
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.reload import Reload
from steadyhand.runtime.reminders import reminders
from steadyhand.runtime.replay import COMMAND
from steadyhand.runtime.scada.server import ScadaServer
from steadyhand.runtime.signal_flag import Stop
from steadyhand.runtime.slot import Closable, PolicySlot
from steadyhand.runtime.status import address, loudness, remedy, status, words
from steadyhand.runtime.swap import Swap
from steadyhand.runtime.tested_versions import untested
from steadyhand.runtime.trial import First, NoPolicy, counted
from steadyhand.runtime.vitals import ServiceVitals
from steadyhand.runtime.wall_watch import WallWatch
from steadyhand.runtime.worker import PolicyProcess

STOP_S = 20.0
"""Longest from the last tick to the end of the process: hand-back, log-out, journal, sockets."""

if TYPE_CHECKING:
    from steadyhand.runtime.panel.server import Panel


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
        self.health = health
        self.notices = notices
        self.crashes = crashes
        self.loaded = loaded
        self.config = loaded.config
        self.alarm = first.alarm
        """Why another policy than the configured one drives; empty when it does not."""
        self.first = first
        """What it started with."""
        self.bundle = first.bundle
        """Whose policy proposes now."""
        self._open = ExitStack()
        self._flood, self._told_change = Flood(), object()
        self._stop: Stop | None = None
        self._swap: Swap | None = None
        self.last_swap: dict[str, str] | None = None
        """What became of the last swap: file, outcome, code, text; None before the first."""
        self._keys = assemble.trusted_keys(loaded)
        """May sign bundles until the stop; what is put there later counts from the next start."""
        self._unproven: Bundle | None = None

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

    def _start(self) -> None:
        config, opened = self.config, self._open
        bundle = self._unproven = self.first.bundle
        self.policy = PolicySlot(self.first.policy, bundle.label if bundle else "none")
        opened.callback(self.policy.close)
        parts = self.plant = assemble.make_plant(self.loaded)
        opened.callback(self.health.close)
        gate = self.first.gate
        self.recorder = Recorder(
            assemble.make_layout(parts, gate.names, STAGES), self.loaded.digest, record_name(bundle)
        )
        make_folder(assemble.state_folder(self.loaded))
        self._start_journal()
        self.keepsakes = Keepsakes(
            assemble.state_folder(self.loaded), config.clock.time_scale, self.recorder.event
        )
        opened.callback(self.keepsakes.close)
        # from here on this is the one runtime of the plant: it may connect, while the rest is made
        self.link = assemble.make_link(self.loaded, parts)
        opened.callback(self.link.close)
        self.link.open()
        asked = self.keepsakes.asked or Mode(config.modes.initial)
        self.modes = assemble.make_modes(config, parts, asked)
        self.go_live = GoLive.read(self.loaded)
        self.alarms = Alarms()
        wall_period_s = config.period / config.clock.time_scale
        # the plant's beat is waited for two periods long, and then there is one more tick
        self.health.patience_s = 3.0 * wall_period_s + 1.0
        self.reload = Reload(self.loaded.file, self.loaded.digest, self._tell_reload)
        self.certificates = self._watch_certificates()
        self._wall, self._untested = WallWatch(self._tell_event), self._tell_versions()
        self.provider = ProviderWatch(self.recorder.event)
        self.vitals = self._make_vitals()
        self.metrics = Metrics(
            Identity(config.name, parts.kind.id, record_name(bundle)),
            config.period,
            parts.kind.constraints(parts.parameters).names,
            wall_period_s,
            lambda: self.journal.report,
            signals=parts.plant.observations,
            outputs=parts.outputs,
            plant_values=config.metrics is not None and config.metrics.plant_values,
            monitors=gate.names,
            vitals=self.vitals,
        )
        self._open_metrics()
        self._open_operator()
        self._open_panel()
        self._open_scada()
        self.vitals.link = self.link
        self.vitals.basis = lambda: self.go_live.basis(self.bundle)
        idle = Idle(self._between)
        self._hasten = idle.hasten
        loop_parts = Parts(
            link=self.link,
            image_judge=assemble.make_image_judge(config, parts),
            policy=self.policy,
            gate=gate,
            modes=self.modes,
            heuristic=assemble.make_heuristic(config, parts),
            transfer=Transfer(parts.outputs, config.fallback.transfer),
            safety=assemble.make_safety(config, parts),
            safe_action=parts.kind.safe_action(parts.parameters),
            leash=assemble.leash(config, parts),
            recorder=self.recorder,
            metrics=self.metrics,
            health=self.health,
            beside=self._unrecorded,
        )
        clock = assemble.make_clock(config, self.link, idle)
        handshake = assemble.make_handshake(config, parts)
        self.loop = Loop(loop_parts, clock, self._after_tick, handshake=handshake)
        opened.callback(self._drop_swap)
        opened.callback(self.link.close)  # first of all: the plant is handed back
        self._told_ready = False
        if bundle is not None:
            self._warn(bundle)
        if self.alarm:
            self.recorder.event({"event": "BundleRefused", "text": self.alarm})
        self._tell_crashes()

    def _start_journal(self) -> None:
        """Have the one lock of this plant; from here on there is a record, on disk or in memory."""
        self.journal = Journal(
            self.loaded.path(self.config.journal.directory),
            self.recorder,
            assemble.journal_limits(self.config),
            self.loaded.digest,
            record_name(self.first.bundle),
            assemble.journal_signer(self.loaded),
            black_box=assemble.black_box_file(self.loaded),
            on_head=lambda head: self.notices.say(f"steadyhand: journal head {head}"),
        ).start()
        self._open.callback(self.journal.close)
        self._open.callback(deaths.listen(self._tell_death).close)
        if audit := self.journal.fault():
            text = f"steadyhand: nothing is recorded on disk now: {audit.text}"
            self.notices.say(text, Priority.ERROR)
        if self.recorder.black_box is None:
            file = assemble.black_box_file(self.loaded)
            text = f"steadyhand: no room for {file}: a kill would lose the last records"
            self.notices.say(text, Priority.WARNING)

    def _unrecorded(self) -> tuple[Fault, ...]:
        """Why the policy may not drive for want of a record, where the configuration says so."""
        report = self.journal.report
        if not (self.config.journal.required and report.cause):
            return ()
        return (Fault(ReasonCode.AUDIT_REQUIRED, text=f"{report.cause}: {report.text}"),)

    def _tell_death(self, death: Death) -> None:
        """A thread of ours died; in that thread."""
        code = str(ReasonCode.TASK_DIED)
        self.recorder.event({"event": "TaskDied", "code": code, "text": death.text})
        self.notices.say(f"steadyhand: {code}: {death.text}\n{death.trace}", Priority.ERROR)

    def _tell_crashes(self) -> None:
        """How the run before ended, where that was not in order."""
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

    def run(self, stop: Stop, max_ticks: int | None = None) -> None:
        """Tick until `stop`; then the plant has its own control back.

        Raises:
            JournalError: another runtime has the journal now, so this one ended.
        """
        self._stop = stop
        self.health.starting(f"waiting for the plant at {address(self.config)}")
        self.desk.starting(f"connecting to {address(self.config)}", accepting=True)
        self.recorder.event(
            {
                "event": "Start",
                "code": "START",
                "pid": os.getpid(),
                "bundle": self.policy.label,
                "plant": self.config.name,
                "control": self.go_live.digest,
                "go_live": self.go_live.words(self.bundle),
            }
        )
        for text in self.keepsakes.resume(self._command, self.alarms):
            self.notices.say(f"steadyhand: from the run before: {text}", Priority.WARNING)
        initial = Mode(self.config.modes.initial)
        if initial is Mode.FULL and self._unproven_for_full(self.bundle, "configuration"):
            initial = Mode.OFF
        self._command(
            "request",
            mode=initial,
            actor="configuration",
            reason="modes.initial",
            wish=False,
        )
        self._take_realtime()
        try:
            self.loop.run(stop, max_ticks)
        finally:
            self.health.stopping("handing the plant back", STOP_S)
            self.recorder.event({"event": "Stop", "code": "STOP"})
        if self.journal.taken_over:
            raise JournalError(f"the journal was taken over: {self.journal.taken_over}")

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

    def _watch_certificates(self) -> CertificateWatch:
        """Tells when a certificate of the link or of SCADA runs out."""
        watch = CertificateWatch(
            assemble.watched_certificates(self.loaded),
            self.recorder.event,
            lambda: getattr(self.link, "server_ends_s", 0.0),
        )
        self._open.callback(watch.close)
        watch.start()
        return watch

    def _tell_versions(self) -> tuple[Fault, ...]:
        """Libraries that nobody has tried; an alarm for as long as they are in use."""
        found = untested()
        for fault in found:
            self._tell_event({"event": "Version", "code": str(fault.code), "text": fault.text})
        return found

    def _make_vitals(self) -> ServiceVitals:
        bundle, before = self.first.bundle, self.crashes.before
        return ServiceVitals(
            self.policy,
            self.journal,
            self.health,
            lambda: self.certificates.ends,
            lambda: self.alarm,
            0.0 if bundle is None else bundle.manifest.not_after.timestamp(),
            evidence_not_after_s=self._evidence_ends_s,
            run_before=ReasonCode.OK if before is None else before.code,
        )

    def _evidence_ends_s(self) -> float:
        """Wall seconds since 1970; 0 where the bundle needs no evidence, or has none."""
        end = self.go_live.not_after(self.bundle)
        return 0.0 if end is None else end.timestamp()

    def _open_metrics(self) -> None:
        self.metrics_server: MetricsServer | None = None
        section = self.config.metrics
        if section is None:
            return
        token = ""
        if section.token_file:
            token = read_word(self.loaded.path(section.token_file))
        server = MetricsServer(
            self.metrics.render,
            section.listen,
            section.allow_remote,
            token,
            self.recorder.event,
            self.metrics,
            lambda: self.metrics.render(open_metrics=True),
        )
        self._open.callback(server.close)
        self.metrics_server = server.start()
        self._tell_closed("metrics", server.problem)

    def _tell_closed(self, section: str, why: str) -> None:
        """Control comes first: a port that is taken keeps no plant waiting, whoever started it."""
        if why:
            text = f"steadyhand: {section}: {why}; the loop goes on, it is tried again"
            self.notices.say(text, Priority.WARNING)

    def _open_operator(self) -> None:
        self.operator: OperatorServer | None = None
        self.desk = Desk(record=self.recorder.event)
        self.vitals.refused = lambda: dict(self.desk.refused)
        self.desk.starting(f"getting ready for {address(self.config)}")
        self._open.callback(self.desk.close)
        section = self.config.operator
        if section is None:
            return
        path = self.loaded.path(section.socket)
        make_folder(path.parent)
        settings = OperatorSettings(
            path, assemble.group_id(section.group), assemble.people(section)
        )
        self.operator = OperatorServer(settings, self.desk)
        self._open.callback(self.operator.close)
        self.operator.open()
        self._tell_closed("operator", self.operator.problem)

    def _open_panel(self) -> None:
        self.panel: Panel | None = None
        section = self.config.panel
        if section is None:
            return
        from steadyhand.runtime.panel.make import make_panel

        self.panel = make_panel(
            self.loaded,
            section,
            self.plant,
            self.recorder,
            self.desk,
            lambda: self.journal.report,
            lambda: self.bundle,
        )
        self._open.callback(self.panel.close)
        self.panel.open()
        self._tell_closed("panel", self.panel.server.problem)

    def _open_scada(self) -> None:
        self.scada: ScadaServer | None = None
        section = self.config.scada
        if section is None:
            return
        from steadyhand.runtime.scada.make import make_scada

        self.scada = make_scada(
            self.loaded, section, self.recorder, self.desk, lambda: self.bundle, self._heartbeats
        )
        self._open.callback(self.scada.close)
        self.scada.open()
        self._tell_closed("scada", self.scada.failed)

    def _heartbeats(self) -> tuple[int, int]:
        """Ours and the plant's; -1 where the link has none."""
        return getattr(self.link, "heartbeats", (-1, -1))

    def _after_tick(self) -> None:
        """After each tick, outside its deadline."""
        tick = self.loop.last
        assert tick is not None  # noqa: S101  (called after a tick)
        if not self._told_ready and tick.observation.link is LinkState.UP:
            self._told_ready = True
            self.health.ready(words(self, tick))
        if self._unproven is not None and tick.proposal.status is ProposalStatus.OK:
            self._prove(self._unproven)
        self.health.status(words(self, tick))
        self._tell_change(tick)
        self._tell_worker()
        self._see_alarms(tick)
        self.keepsakes.keep(self.modes, self.alarms, tick.now_s)
        shown = status(self, tick)
        self.metrics.participation = shown["participation"]
        self.desk.publish(shown)
        if self.panel is not None:
            self.panel.publish(shown)
        if self.scada is not None:
            self.scada.publish(shown)
        self._between()

    def _see_alarms(self, tick: Tick) -> None:
        modes, notes, own = self.modes, self.keepsakes.notes, tuple(self._own_faults())
        there = [fault for fault in tick.faults if modes.is_there(fault.code)]
        groups = (there, tick.verdict.faults, tick.sent.faults, own)
        latches = (*modes.latches, *(note.code for note in notes))
        for ended in self.alarms.update(groups, latches, modes.situation, tick.now_s):
            self._tell_shelf("ShelfExpired", ended, ended.owner)
        self.metrics.standing, self.metrics.shelved = own, len(self.alarms.shelves)

    def _own_faults(self) -> Iterator[Fault]:
        """What is wrong beside the loop: told, and nobody drives otherwise for it."""
        yield from deaths.faults()
        if self.operator is not None and self.operator.problem:
            yield Fault(ReasonCode.OPERATOR_DOWN, text=self.operator.problem)
        if self.metrics_server is not None and self.metrics_server.problem:
            yield Fault(ReasonCode.METRICS_DOWN, text=self.metrics_server.problem)
        if self.panel is not None and self.panel.server.problem:
            yield Fault(ReasonCode.PANEL_DOWN, text=self.panel.server.problem)
        if self.scada is not None:
            yield from self.scada.faults
        yield from self.certificates.look()
        yield from self.provider.look(self.policy.policy)
        audit = self.journal.fault()
        if audit is not None:
            yield audit
        yield from reminders(self.modes, self.go_live, self.bundle)
        yield from self.keepsakes.notes
        yield from self._wall.look()
        yield from self._untested

    def _tell_shelf(self, event: str, shelf: Shelf, actor: str) -> None:
        self.recorder.event(
            {
                "event": event,
                "actor": actor,
                "alarm": str(shelf.code),
                "reason": shelf.reason,
                "expires_s": shelf.expires_s,
            }
        )

    def _between(self) -> None:
        """Operator's commands and a finished swap; the loop is not in a tick."""
        self._wall.look()
        if self.panel is not None:
            self.panel.alive()
        if self.desk.drain(self._handlers()):
            self._hasten()
            if self.loop.last is not None:
                self.keepsakes.keep(self.modes, self.alarms, self.loop.last.now_s)
        if self.journal.taken_over and self._stop is not None:
            self._stop.set()  # one plant has one runtime, and it is another one now
        if self._stop is not None and self._stop.is_set():
            self._hasten()  # a signal does not wait for the next planned tick, a period away
        if self._swap is not None and self._swap.done:
            swap, self._swap = self._swap, None
            self._finish_swap(swap)
        self.reload.begin()
        if not self.link.stuck():
            self.health.waiting()
            if self._outdated():
                self._hasten()  # a slow loop would else judge and tell it a whole period later

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

    def _tell_worker(self) -> None:
        policy = self.policy.policy
        if isinstance(policy, PolicyProcess):
            with suppress(IndexError):
                while True:
                    fault = policy.events.popleft()
                    event = {"event": "PolicyProcess", "code": fault.code, "text": fault.text}
                    told = fault.code is ReasonCode.MEM_RECYCLE  # nothing else shows it
                    (self._tell_event if told else self.recorder.event)(event)

    def _prove(self, bundle: Bundle) -> None:
        """The bundle has answered in service: from now on no older one is taken unasked."""
        self._unproven = None
        # the disk may be slow, and the loop does not wait for it
        Guarded(partial(self._keep, bundle), "installed").start()

    def _keep(self, bundle: Bundle) -> None:
        try:
            assemble.installed_state(self.loaded).record(
                bundle.manifest, bundle.manifest_sha256, datetime.now(UTC), bundle.content
            )
        except (BundleError, OSError) as error:
            self.recorder.event({"event": "BundleState", "text": str(error)})

    def _warn(self, bundle: Bundle) -> None:
        for text in bundle.warnings:
            self.recorder.event({"event": "BundleWarning", "text": text})

    def _tell_event(self, event: Mapping[str, object]) -> None:
        self.notices.say(f"steadyhand: {event['text']}", Priority.WARNING)
        self.recorder.event(event)

    def _tell_reload(self, event: dict[str, object]) -> None:
        self.notices.say(f"steadyhand: reload: {event['text']}", Priority.NOTICE)
        self.recorder.event(event)

    def _tell_change(self, tick: Tick) -> None:
        """For whoever reads standard error: who drives now and why, with what to do about it."""
        modes, observation = self.modes, tick.observation
        cause = modes.why(False)[0]
        # without a plant the words say why; elsewhere they hold numbers that change every tick
        why = cause.text if observation.link is not LinkState.UP else ""
        about = (tick.source, modes.mode, cause.code, cause.signal, why, self.policy.label)
        if about == self._told_change:
            return
        left_out = self._flood.admit(str(cause.code), about)
        if left_out is None:
            return  # told as soon as it may be, unless something newer is by then
        self._told_change = about
        more = f" (and {left_out} like it before)" * bool(left_out)
        loud = loudness(self, tick, cause)
        self.notices.tell(about, lambda: words(self, tick) + remedy(self, tick, cause) + more, loud)

    # -- commands ----------------------------------------------------------------------------------

    def _handlers(self) -> Mapping[str, Callable[[Command], Mapping[str, Any]]]:
        return {
            "mode": self._mode,
            "override": self._override,
            "clear-override": self._clear_override,
            "ack": self._ack,
            "shelve": self._shelve,
            "unshelve": self._unshelve,
            "swap": self._begin_swap,
            "stop": self._stop_command,
        }

    def _command(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Give the mode machine one command, recorded first so that a replay can give it again."""
        self.recorder.event({"event": COMMAND, "method": method, "arguments": arguments})
        return getattr(self.modes, method)(**arguments)

    def _mode(self, command: Command) -> Mapping[str, Any]:
        try:
            mode = Mode(command.arguments["mode"])
        except ValueError:
            choices = ", ".join(Mode)
            raise RequestError(
                "UNKNOWN_MODE", f"no mode {command.arguments['mode']!r}; there are: {choices}"
            ) from None
        if mode is Mode.FULL and (why := self._unproven_for_full(self.bundle, command.actor)):
            raise RequestError(ReasonCode.NO_EVIDENCE, why)
        reason = command.arguments.get("reason", "")
        self._command("request", mode=mode, actor=command.actor, reason=reason)
        return {"mode": mode}

    def _unproven_for_full(self, bundle: Bundle | None, actor: str) -> str:
        """Why `bundle` may not drive in mode full, told in the record; empty when it may."""
        why = self.go_live.refusal(bundle)
        if why:
            code = str(ReasonCode.NO_EVIDENCE)
            self.recorder.event({"event": "ModeRefused", "code": code, "actor": actor, "text": why})
        return why

    def _override(self, command: Command) -> Mapping[str, Any]:
        given = command.arguments
        made = self._command(
            "set_override",
            output=given["output"],
            value=given["value"],
            owner=command.actor,
            reason=given["reason"],
            for_s=given["for_s"],
        )
        return {"output": made.output, "value": made.value, "expires_s": made.expires_s}

    def _clear_override(self, command: Command) -> Mapping[str, Any]:
        output = command.arguments["output"]
        self._command("clear_override", output=output, actor=command.actor)
        return {"output": output}

    def _ack(self, command: Command) -> Mapping[str, Any]:
        """Acknowledge what is latched: in the modes, in the gate, in the policy's process."""
        given = command.arguments.get("code")
        if given is not None and given not in list(ReasonCode):
            raise RequestError(
                "UNKNOWN_CODE",
                f"no reason code {given!r}; `steadyhand status` shows what is latched",
            )
        code = None if given is None else ReasonCode(given)
        cleared: list[str] = []
        if self.modes.latches and (code is None or code in self.modes.latches):
            # may refuse; then nothing else is cleared either
            cleared += self._command("acknowledge", actor=command.actor, code=code)
        others = self._ack_parts(code)
        if others:
            told = {"event": "Acknowledged", "code": str(ReasonCode.ACK), "actor": command.actor}
            self.recorder.event({**told, "text": f"acknowledged: {', '.join(others)}"})
        cleared += others
        if not cleared:
            notes = (note.code for note in self.keepsakes.notes)
            names = ", ".join(dict.fromkeys((*self.modes.latches, *notes)))
            why = f"not latched; latched now: {names}" if names else "nothing is latched"
            raise RequestError(ReasonCode.ACK_DENIED, why)
        return {"acknowledged": [str(code) for code in dict.fromkeys(cleared)]}

    def _shelve(self, command: Command) -> Mapping[str, Any]:
        given, last = command.arguments, self.loop.last
        shelf = self.alarms.shelve(
            given["code"],
            command.actor,
            given["reason"],
            last.now_s if last is not None else 0.0,
            given["for_s"],
        )
        self._tell_shelf("Shelved", shelf, command.actor)
        return {"alarm": str(shelf.code), "expires_s": shelf.expires_s}

    def _unshelve(self, command: Command) -> Mapping[str, Any]:
        shelf = self.alarms.unshelve(command.arguments["code"])
        self._tell_shelf("Unshelved", shelf, command.actor)
        return {"alarm": str(shelf.code)}

    def _ack_parts(self, code: ReasonCode | None) -> list[str]:
        """What waits for a person elsewhere than in the modes: all of it, or what has `code`."""
        cleared = self.keepsakes.acknowledge(code)
        if code in (None, ReasonCode.MODE_FLAP):
            self.recorder.event({"event": COMMAND, "method": "acknowledge_gate", "arguments": {}})
            if self.loop.parts.gate.acknowledge():
                cleared.append("MODE_FLAP")
        if code in (None, ReasonCode.CRASH_LOOP):
            cleared += self._ack_crashes()
            policy = self.policy.policy
            if isinstance(policy, PolicyProcess) and policy.acknowledge():
                cleared.append("CRASH_LOOP")
        return cleared

    def _ack_crashes(self) -> list[str]:
        """Bundles that took the runtime down may be started again: at the next start, or now by a
        swap.
        """
        if not self.crashes.bars:
            return []
        # the disk may be slow, and the loop does not wait for it
        Guarded(self.crashes.acknowledge, "crashes").start()
        if isinstance(self.policy.policy, NoPolicy):
            why = "acknowledged; the next restart loads the policy"
            self.alarm = why
            made = NoPolicy(len(self.plant.outputs), why, ReasonCode.POLICY_ABSENT)
            self.policy.swap(made, self.policy.label)
        return [str(ReasonCode.CRASH_LOOP)]

    def _stop_command(self, command: Command) -> Mapping[str, Any]:
        assert self._stop is not None  # noqa: S101  (commands are drained while running)
        self.recorder.event(
            {"event": "StopAsked", "actor": command.actor, "reason": command.arguments["reason"]}
        )
        self._stop.set()
        return {"stopping": True}

    def _begin_swap(self, command: Command) -> Mapping[str, Any]:
        """Verify and start the new policy in another thread; the loop goes on with the old one."""
        if self._swap is not None:
            raise RequestError("SWAP_UNDER_WAY", "a swap is under way; look at the status")
        file = Path(command.arguments["file"])
        about = {"actor": command.actor, "reason": command.arguments["reason"], "file": file.name}
        self.recorder.event({"event": "SwapAsked", "code": "SWAP", **about})
        self._swap = Swap(self.loaded, self.plant, file, self._keys)
        self._tell_swap("verifying", "SWAP", f"asked for by {command.actor}", file.name)
        return {"swap": "verifying"}

    def _tell_swap(self, outcome: str, code: str, text: str, file: str = "") -> None:
        """For the status; a new mapping each time, because the last one may be shown just now."""
        name = file or (self.last_swap or {}).get("file", "")
        text = printable(text, LENGTH)
        loud = Priority.WARNING if outcome == "refused" else Priority.NOTICE
        self.notices.say(f"steadyhand: swap to {printable(name, LENGTH)}: {outcome}: {text}", loud)
        self.last_swap = {"file": name, "outcome": outcome, "code": code, "text": text}

    def _drop_swap(self) -> None:
        """A policy that was prepared and never sat in the slot ends with the service."""
        if self._swap is not None:
            self._swap.close()

    def _finish_swap(self, swap: Swap) -> None:
        try:
            made = swap.take()
            gate, bundle = made.gate, made.bundle
            assert bundle is not None  # noqa: S101  (a swap is made from one)
            if why := self.crashes.barred(bundle.manifest_sha256):
                if isinstance(made.policy, Closable):
                    made.policy.close()
                raise ConfigError(f"{bundle.label}: {why}; acknowledge CRASH_LOOP first")
            if self.modes.mode is Mode.FULL and (why := self.go_live.refusal(bundle)):
                if isinstance(made.policy, Closable):
                    made.policy.close()
                raise ConfigError(f"{ReasonCode.NO_EVIDENCE}: {why}; or ask for mode limited first")
            if gate.names != self.recorder.layout.monitors:
                if isinstance(made.policy, Closable):
                    made.policy.close()
                raise ConfigError(
                    f"the bundle brings monitors {gate.names}, the record of this run is laid out "
                    f"for {self.recorder.layout.monitors}: restart with it instead of swapping"
                )
        except SteadyhandError as error:
            self.recorder.event(
                {"event": "SwapRefused", "code": "SWAP_REFUSED", "text": str(error)}
            )
            code = str(getattr(error, "code", "SWAP_REFUSED"))
            self._tell_swap("refused", code, str(error).removeprefix(f"{code}: "))
            return
        Guarded(partial(self.crashes.use, counted(bundle)), "crashes").start()
        old = self.policy.swap(made.policy, bundle.label)
        self.loop.parts = replace(self.loop.parts, gate=gate)
        self._unproven = self.bundle = bundle
        self.alarm = ""
        self._warn(bundle)
        self.recorder.use_bundle(record_name(bundle))
        self.metrics.bundle = record_name(bundle)
        self.vitals.bundle_not_after_s = bundle.manifest.not_after.timestamp()
        self.vitals.swaps += 1
        self.recorder.event({"event": "Swapped", "code": "SWAP", "old": old, "new": bundle.label})
        self._tell_swap("done", "SWAP", f"{record_name(bundle)} instead of {old}")
