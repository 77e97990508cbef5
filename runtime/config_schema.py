"""The schema of a plant's configuration, section by section, and what must fit between them.

Of the network stands in `config_link.py`, of who comes in in `config_doors.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from steadyhand.runtime.config_doors import Metrics, Operator, Panel, Scada
from steadyhand.runtime.config_fields import (
    DAY_S,
    MIB,
    SHORTEST_PERIOD_S,
    Answer,
    Count,
    FileText,
    KeepSize,
    Memory,
    Name,
    Period,
    PlantTime,
    SchemaVersion,
    Section,
    SegmentSize,
    ShadowTime,
    Share,
    SignalName,
    SignEvery,
    only_the_word,
    refuse,
)
from steadyhand.runtime.config_link import OpcUaLink, SimLink

QUICK_WORD = "i_accept_a_controller_that_was_trained_for_seconds"
UNPROVEN_WORD = "i_accept_that_nothing_shows_what_this_controller_does_to_this_plant"
"""Does without go-live evidence."""


class Plant(Section):
    """Which plant, and where this one differs from the type's defaults."""

    id: Name
    parameters: dict[SignalName, str] = Field(
        default_factory=dict,
        description="numbers of this plant with their units; see steadyhand plant show",
    )


class Clock(Section):
    """When to tick."""

    source: Literal["paced", "plant"] = Field(
        default="paced", description="our own schedule, or the plant's sequence number"
    )
    time_scale: Annotated[float, Field(ge=1e-3, le=1e6)] = Field(
        default=1.0, description="plant seconds per second; 1 on a real plant"
    )
    realtime_priority: Annotated[int, Field(ge=0, le=99)] = Field(
        default=0, description="SCHED_FIFO priority; 0: ordinary scheduling"
    )


class Bundle(Section):
    """The controller."""

    file: FileText
    trusted_keys: FileText = Field(description="directory of public keys that may sign bundles")
    accept_quick: str | None = Field(
        default=None,
        description=f"only the word {QUICK_WORD} lets a bundle of `train --quick` in",
    )

    @field_validator("accept_quick")
    @classmethod
    def _the_word(cls, value: str | None) -> str | None:
        only_the_word(QUICK_WORD, value, "CFG_QUICK")
        return value


class Inference(Section):
    """Where the policy runs."""

    isolation: Literal["process", "thread"] = "process"
    provider: Literal["cpu", "cuda"] = "cpu"
    require_provider: bool = Field(
        default=False,
        description="true refuses a bundle that would not run on provider; false runs it on the "
        "CPU and tells it",
    )
    deadline: Answer = Field(default=0.5, description="real time the policy has to answer")
    memory: Memory = Field(default=2.0**31, description="most memory of the child process")
    recycle: Memory | None = Field(
        default=None,
        description="a child process that holds more is replaced by a fresh one without missing a "
        "question; default: three quarters of memory",
    )

    @model_validator(mode="after")
    def _recycled_in_time(self) -> "Inference":
        if self.recycle is not None and self.recycle >= self.memory:
            raise refuse(
                "CFG_BOUNDS",
                f"recycle={self.recycle / MIB:g} MiB is not below memory={self.memory / MIB:g} "
                "MiB, where the process ends by itself; lower recycle or raise memory",
            )
        return self


class Fallback(Section):
    """Who takes over when trust is lost."""

    heuristic: Name
    transfer: PlantTime = Field(default=1800.0, description="plant time of a bumpless take-over")


class Trust(Section):
    """What this site asks of every bundle. A bundle can only be stricter."""

    minimum_confidence: Annotated[float, Field(ge=0, le=0.999999)] = Field(
        default=0.0, description="the policy is not trusted below this, whatever its bundle says"
    )


class Modes(Section):
    """Patience of the mode machine; times are plant time."""

    initial: Literal["off", "shadow", "advisory", "limited", "full"] = Field(
        default="off", description="asked for at the start; the plant still has to grant control"
    )
    clean_ticks: Count = 3
    clean_time: PlantTime | None = None
    hold_max: PlantTime | None = Field(
        default=None, description="longest hold before the safe set-point; default: two periods"
    )
    max_raises: Count = 12
    limited_share: Annotated[float, Field(ge=1e-3, le=1)] = Field(
        default=0.2,
        description="in mode limited, distance of the policy from the heuristic as a share of the "
        "output's range",
    )


class Handover(Section):
    """When the plant has itself back, and when its read-back is not believed; plant time."""

    shed: PlantTime | None = Field(
        default=None,
        description="the plant takes itself back when our heartbeat is away for longer; default: "
        "two periods",
    )
    freeze: PlantTime | None = Field(
        default=None,
        description="a read-back that keeps still for so long, though something else was sent, is "
        "not valid; default: never",
    )


class Safety(Section):
    """Tighten what the plant definition allows; nothing here can widen it."""

    process_safety_time: PlantTime | None = Field(
        default=None,
        description="time in which the plant can become unsafe; reaction must fit in half of it",
    )
    limits: dict[SignalName, dict[Literal["low", "high"], str]] = Field(default_factory=dict)


class GoLive(Section):
    """What lets a bundle into mode full: docs/commission.md."""

    evidence: FileText | None = Field(
        default=None, description="file of `steadyhand evidence make`: what the bundle has shown"
    )
    without_evidence: str | None = Field(
        default=None, description=f"only the word {UNPROVEN_WORD} does without"
    )
    minimum_time: ShadowTime = Field(
        default=7.0 * DAY_S, description="least plant time in shadow that counts as evidence here"
    )
    minimum_coverage: Share = Field(default=0.95, description="least share of ticks with an answer")
    minimum_support: Share = Field(
        default=0.2, description="least share of proposals near what the plant did"
    )
    minimum_availability: Share = Field(
        default=0.8, description="least share of ticks in which the gate trusted the policy"
    )
    maximum_violation_rate: Share = Field(
        default=0.01,
        description="most that the upper end of the interval may be, of the share of proposals "
        "that the filter could not have made safe",
    )
    maximum_correction: Share = Field(
        default=0.1, description="most that the filter may move a proposal on average"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "GoLive":
        only_the_word(
            UNPROVEN_WORD,
            self.without_evidence,
            "CFG_GO_LIVE",
            "without_evidence=",
            better="remove the line and name evidence",
        )
        if self.without_evidence is not None and self.evidence is not None:
            raise refuse(
                "CFG_GO_LIVE", "evidence and without_evidence contradict each other; remove one"
            )
        return self


class JournalSection(Section):
    """The record of every decision."""

    directory: FileText
    segment: SegmentSize = Field(default=2.0**28, description="a new file is begun at this size")
    signing_key: FileText | None = Field(
        default=None,
        description="private key, mode 0600, that signs the chain every so often; may be "
        "${CREDENTIALS_DIRECTORY}/NAME; default: nothing is signed",
    )
    sign_every: SignEvery = Field(default=600.0, description="time between two signatures")
    keep: KeepSize | None = Field(
        default=None,
        description="beyond this the oldest files are deleted, which is recorded; beside the file "
        "that is written; default: all are kept",
    )
    required: bool = Field(
        default=False,
        description="while records do not get to disk, the policy does not drive: the heuristic "
        "does (AUDIT_REQUIRED); false: control goes on as it is",
    )

    @model_validator(mode="after")
    def _keeps_one(self) -> "JournalSection":
        if self.keep is not None and self.keep < self.segment:
            raise refuse(
                "CFG_BOUNDS",
                f"keep is {self.keep:g} byte, less than one file (segment, {self.segment:g} byte): "
                "keep more, or make segment smaller",
            )
        return self


class Config(Section):
    """Everything steadyhand needs to run one plant."""

    schema_version: SchemaVersion
    name: Name
    plant: Plant
    period: Period
    clock: Clock = Clock()
    link: Annotated[OpcUaLink | SimLink, Field(discriminator="kind")]
    bundle: Bundle | None = None
    inference: Inference = Inference()
    fallback: Fallback
    trust: Trust = Trust()
    modes: Modes = Modes()
    handover: Handover = Handover()
    go_live: GoLive = GoLive()
    safety: Safety = Safety()
    journal: JournalSection
    metrics: Metrics | None = None
    panel: Panel | None = None
    operator: Operator | None = None
    scada: Scada | None = None

    @model_validator(mode="after")
    def _ports(self) -> "Config":
        if self.metrics is not None and self.panel is not None:
            same = self.metrics.listen == self.panel.listen
            if same and not self.panel.listen.endswith(":0"):
                raise refuse(
                    "CFG_LISTEN",
                    f"metrics.listen and panel.listen are both {self.panel.listen}; "
                    "give one of them another port",
                )
        return self

    @model_validator(mode="after")
    def _timing(self) -> "Config":
        wall_period_s = self.period / self.clock.time_scale
        timeout_s = self.link.request_timeout if isinstance(self.link, OpcUaLink) else 0.0
        if self.clock.source == "paced" and timeout_s > wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.request_timeout {timeout_s:g} s is longer than one period of "
                f"{wall_period_s:g} s of real time (period {self.period:g} s / time_scale "
                f"{self.clock.time_scale:g}); shorten the timeout",
            )
        if isinstance(self.link, OpcUaLink):
            self._fits(self.link, wall_period_s)
        if (
            isinstance(self.link, OpcUaLink) or self.clock.source == "paced"
        ) and self.inference.deadline >= wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"inference.deadline {self.inference.deadline:g} s must be below one period of "
                f"{wall_period_s:g} s of real time",
            )
        reaction_s = self.period + timeout_s * self.clock.time_scale
        limit_s = self.safety.process_safety_time
        if limit_s is not None and reaction_s > 0.5 * limit_s:
            raise refuse(
                "CFG_TIMING",
                f"detect and react takes up to period {self.period:g} s + request_timeout = "
                f"{reaction_s:g} s, more than half of process_safety_time {limit_s:g} s; "
                "shorten the period",
            )
        return self

    def _fits(self, link: OpcUaLink, wall_period_s: float) -> None:
        """Times of the link against one period of real time."""
        period = (
            f"one period of {wall_period_s:g} s of real time (period {self.period:g} s / "
            f"time_scale {self.clock.time_scale:g})"
        )
        if wall_period_s < SHORTEST_PERIOD_S:
            raise refuse(
                "CFG_TIMING",
                f"{period} is shorter than the {SHORTEST_PERIOD_S:g} s a networked loop can keep; "
                "lower time_scale",
            )
        if link.publishing is not None and link.publishing > 0.5 * wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.publishing {link.publishing:g} s is longer than half of {period}: images "
                "would be missed; shorten it or leave it out",
            )
        if link.command_life is not None and link.command_life > 2.0 * wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.command_life {link.command_life:g} s is longer than two of {period}: a "
                "command that old is not wanted any more; shorten it or leave it out",
            )


def json_schema() -> dict[str, Any]:
    """JSON Schema for editors."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "steadyhand configuration"
    return schema
