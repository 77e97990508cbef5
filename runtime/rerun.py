"""A loop as it would run today, on recorded inputs: what `steadyhand replay` runs."""

from pathlib import Path

from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.protocols import Policy
from steadyhand.runtime import assemble
from steadyhand.runtime.admission import open_bundle
from steadyhand.runtime.clock import PacedClock
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.health import Health
from steadyhand.runtime.loop import STAGES, Loop, Parts
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.modes import ModeMachine
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.replay import RecordedFreshness, ReplayLink, ReplayReport, replay


def rerun(loaded: Loaded, journal: Path, run: str | None, ask_policy: bool) -> ReplayReport:
    """Replay one run of `journal` with the present code and the present configuration.

    Args:
        loaded: the configuration.
        journal: directory of the journal.
        run: which run; the last by default.
        ask_policy: ask the bundle's policy again instead of taking its recorded proposals.

    Raises:
        JournalError: no such run.
        BundleError, ConfigError: the loop cannot be built.
    """
    plant = assemble.make_plant(loaded)
    bundle = open_bundle(loaded, plant)

    def make_loop(link: ReplayLink, policy: Policy) -> tuple[Loop, ModeMachine]:
        modes = assemble.make_modes(loaded.config, plant)
        gate = assemble.make_gate(loaded.config, plant, bundle)
        parts = Parts(
            link=link,
            image_judge=RecordedFreshness(),
            policy=policy,
            gate=gate,
            modes=modes,
            heuristic=assemble.make_heuristic(loaded.config, plant),
            transfer=Transfer(plant.outputs, loaded.config.fallback.transfer),
            safety=assemble.make_safety(loaded.config, plant),
            safe_action=plant.kind.safe_action(plant.parameters),
            leash=assemble.leash(loaded.config, plant),
            recorder=Recorder(assemble.make_layout(plant, gate.names, STAGES), ticks=16),
            metrics=Metrics(Identity(loaded.config.name, plant.kind.id), loaded.config.period),
            health=Health(None),
        )
        handshake = assemble.make_handshake(loaded.config, plant)
        return Loop(parts, PacedClock(loaded.config.period), handshake=handshake), modes

    policy = bundle.spec.build() if ask_policy and bundle is not None else None
    with JournalReader(journal) as reader:
        return replay(reader, make_loop, policy, run)
