"""The boards. Four questions: are we in control, and if not, why? What does this loop do? Is the
machine well? Can the policy be believed?
"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableRefresh
from panels import (
    AMBER,
    CONTROLS,
    FOLLOWS,
    GATES,
    GREY,
    LINKS,
    MODES,
    ORANGE,
    POLICIES,
    RED,
    SOURCE,
    SOURCES,
    Board,
    alone,
    bars,
    coded,
    number,
    one,
    rows,
    timeline,
    trend,
    with_unit,
)

DAY_S = 86400.0
PAPERS = ((None, RED), (DAY_S, ORANGE), (7 * DAY_S, AMBER), (30 * DAY_S, GREY))
"""As the alarms: red on the last day."""


def left(moment: str) -> str:
    """Seconds until a moment that is known."""
    return f"({one(moment)} > 0) - time()"


def who_drives(board: Board, width: int, height: int) -> None:
    """The one picture everybody looks at first."""
    board.add(
        timeline(SOURCES),
        "Who drives",
        "What drives the plant. Grey: the policy, or nobody because nobody asked. Amber: the "
        "heuristic, as before we came. Orange and red: last value or safe set-point.",
        {"{{instance}}": coded("steadyhand_source", "source", SOURCES)},
        "none",
        width,
        height,
        runbook="SteadyhandOnFallback",
    )


def why_not(board: Board, width: int, height: int = 4) -> None:
    """First cause."""
    board.add(
        number(text=True),
        "What holds the policy back",
        "First cause, as a reason code; OK: nothing does. `steadyhand status` says it in words.",
        {"{{reason}}": f"{one('steadyhand_cause')} == 1"},
        "none",
        width,
        height,
        instant=True,
        runbook="SteadyhandOnFallback",
    )


def near_limits(board: Board, width: int, height: int) -> None:
    """Margins."""
    board.add(
        bars().min(-0.1).max(1),
        "How near the limits",
        "Scaled distance to each limit: 1 is far away, 0 the limit, negative outside. To ride "
        "on a limit is normal, to be outside never is.",
        {"{{instance}} {{constraint}}": one("steadyhand_constraint_margin_ratio")},
        "percentunit",
        width,
        height,
        steps=((None, RED), (0.0, GREY)),
        instant=True,
        runbook="SteadyhandOutsideLimits",
    )


def overview() -> Board:
    """All loops at one glance."""
    board = Board(
        "overview",
        "steadyhand: overview",
        "Are we in control, and if not, why not?",
        several=True,
    )
    board.row("Are we in control?")
    firing = 'ALERTS{alertstate="firing",alertname=~"Steadyhand.+"}'
    board.add(
        alone(),
        "Alarms",
        "Alarms that want something done now. The list below names them.",
        {"alarms": f"count({firing}) or vector(0)"},
        "short",
        4,
        4,
        steps=((None, GREY), (1.0, AMBER)),
        instant=True,
    )
    board.add(
        alone(),
        "Loops that answer",
        "Share of the runtimes that answer. Below 100 %: see SteadyhandDown.",
        {"answer": 'avg(up{job="steadyhand"})'},
        "percentunit",
        4,
        4,
        steps=((None, RED), (1.0, GREY)),
        instant=True,
        runbook="SteadyhandDown",
    )
    board.add(
        alone(),
        "Loops the policy drives",
        "Share of the loops in which the policy drives now.",
        {"driven": f"avg({one('steadyhand_source', source='policy')})"},
        "percentunit",
        4,
        4,
        instant=True,
        runbook="SteadyhandOnFallback",
    )
    board.add(
        number(),
        "Policy's share of the day",
        "Share of the ticks of the last 24 hours in which the policy drove. Below a half for long: "
        "see the model board.",
        {"{{instance}}": one("instance:steadyhand_ticks:policy_share_1d")},
        "percentunit",
        6,
        4,
        instant=True,
        runbook="SteadyhandPolicyShareLow",
    )
    why_not(board, 6)
    who_drives(board, 16, 8)
    near_limits(board, 8, 8)
    board.row("What wants something done")
    board.add(
        rows(("Time", "__name__", "alertstate", "Value", "job"), runbooks=True),
        "Alarms now",
        "One line per alarm; its name leads to its runbook. Empty is good.",
        {"": firing},
        "none",
        12,
        8,
        instant=True,
        as_table=True,
    )
    board.add(
        timeline(LINKS),
        "Link to the plant",
        "Red: no link; the plant has its own control. Amber: on the way back.",
        {"{{instance}}": coded("steadyhand_link_state", "link", LINKS)},
        "none",
        12,
        8,
        runbook="SteadyhandLinkDown",
    )
    board.row("Papers and record")
    board.add(
        number(),
        "Bundle valid for",
        "Time until the controller's signature ends. Have a new one signed in good time.",
        {"{{instance}}": left("steadyhand_bundle_not_after_timestamp_seconds")},
        "s",
        6,
        4,
        steps=PAPERS,
        instant=True,
        runbook="SteadyhandBundleExpires",
    )
    board.add(
        number(),
        "Certificates valid for",
        "Time until the link's certificates end: ours, and the first of those we trust.",
        {
            "{{instance}} {{certificate}}": (
                f"{one('steadyhand_certificate_not_after_timestamp_seconds')} - time()"
            )
        },
        "s",
        6,
        4,
        steps=PAPERS,
        instant=True,
        runbook="SteadyhandCertificateExpires",
    )
    board.add(
        number(),
        "Go-live evidence valid for",
        "Time until what lets the bundle into mode full ends. Nothing: it needs none, or has none.",
        {"{{instance}}": left("steadyhand_evidence_not_after_timestamp_seconds")},
        "s",
        6,
        4,
        steps=PAPERS,
        instant=True,
        runbook="SteadyhandEvidenceExpires",
    )
    board.add(
        number(),
        "Space for the journal",
        "Free share of the journal's disk.",
        {
            "{{instance}}": (
                f"{one('steadyhand_journal_disk_free_bytes')} / "
                f"({one('steadyhand_journal_disk_size_bytes')} > 0)"
            )
        },
        "percentunit",
        6,
        4,
        steps=((None, RED), (0.05, AMBER), (0.2, GREY)),
        instant=True,
        runbook="SteadyhandJournalDiskFilling",
    )
    return board


def loop() -> Board:
    """One loop."""
    board = Board("loop", "steadyhand: loop", "What does this loop do, and why?", several=False)
    board.made.with_variable(
        dashboard.QueryVariable("signal")
        .label("Measurement")
        .datasource(SOURCE)
        .query('label_values(steadyhand_observation{instance=~"$instance"}, signal)')
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
    )
    board.row("Now")
    board.add(
        number(text=True),
        "Mode",
        "What the operator asks for.",
        {"{{mode}}": f"{one('steadyhand_mode')} == 1"},
        "none",
        4,
        4,
        instant=True,
    )
    board.add(
        number(text=True),
        "Drives",
        "What drives the plant now.",
        {"{{source}}": f"{one('steadyhand_source')} == 1"},
        "none",
        4,
        4,
        instant=True,
        runbook="SteadyhandOnFallback",
    )
    board.add(
        alone(),
        "For",
        "How long it has been driving.",
        {"for": f"time() - {one('steadyhand_source_since_timestamp_seconds')}"},
        "s",
        4,
        4,
        instant=True,
    )
    why_not(board, 4)
    board.add(
        alone(),
        "Last command",
        "Time since a command last left. Long with hands off; else at most one period.",
        {"ago": f"time() - ({one('steadyhand_last_write_timestamp_seconds')} > 0)"},
        "s",
        4,
        4,
        instant=True,
        runbook="SteadyhandWritesFailing",
    )
    board.add(
        alone(),
        "Overrides",
        "Outputs that a person holds.",
        {"overrides": one("steadyhand_overrides")},
        "short",
        2,
        4,
        steps=((None, GREY), (1.0, AMBER)),
        instant=True,
        runbook="SteadyhandOverrideForgotten",
    )
    board.add(
        alone(),
        "Shelved",
        "Alarms that somebody has moved out of the operators' way; `steadyhand status` names them.",
        {"shelved": one("steadyhand_shelved_alarms")},
        "short",
        2,
        4,
        instant=True,
    )
    board.row("History")
    who_drives(board, 12, 5)
    board.add(
        timeline(MODES),
        "Mode asked for",
        "What the operators asked for, and when.",
        {"{{instance}}": coded("steadyhand_mode", "mode", MODES)},
        "none",
        12,
        5,
    )
    board.add(
        timeline(GATES),
        "Trust gate",
        "Grey: the proposal is believed. Pale: on probation. Amber: not believed. Red: a person "
        "has to acknowledge.",
        {"{{instance}}": coded("steadyhand_gate_state", "gate", GATES)},
        "none",
        12,
        5,
        runbook="SteadyhandLatched",
    )
    board.add(
        timeline({"no": AMBER, "yes": GREY}),
        "Plant grants control",
        "Amber: the plant keeps its own control, as somebody there wants it.",
        {"{{instance}}": one("steadyhand_granted")},
        "none",
        12,
        5,
        runbook="SteadyhandNotGranted",
    )
    board.add(
        timeline(CONTROLS),
        "Handshake with the plant",
        "Grey: we write every output. Amber: we ask and something is in the way, the plant keeps "
        "some outputs, or control was lost and is not back yet.",
        {"{{instance}}": coded("steadyhand_control_state", "control", CONTROLS)},
        "none",
        12,
        5,
        runbook="SteadyhandHandsOff",
    )
    board.add(
        timeline(FOLLOWS),
        "Whom each output follows",
        "Amber: the heuristic, a person, or the plant, which keeps this one output to itself.",
        {"{{output}}": coded("steadyhand_output_participation", "follows", FOLLOWS, "output")},
        "none",
        12,
        5,
        runbook="SteadyhandOnFallback",
    )
    board.row("Limits")
    near_limits(board, 8, 8)
    board.add(
        trend(limit=True),
        "Distance to the limits",
        "Scaled; below 0 is outside. The filter slows down what comes near.",
        {"{{constraint}}": one("steadyhand_constraint_margin_ratio")},
        "percentunit",
        8,
        8,
        steps=((None, RED), (0.0, GREY)),
        runbook="SteadyhandOutsideLimits",
    )
    board.add(
        trend(),
        "Commands changed, by limit",
        "Ticks of the last hour in which the filter changed the command, by the limit nearest.",
        {"{{constraint}}": f"increase({one('steadyhand_interventions_total')}[1h])"},
        "suffix: ticks",
        8,
        8,
        runbook="SteadyhandFilterBusy",
    )
    board.row("Plant values (metrics.plant_values: true)")
    board.add(
        trend(plant_values=True),
        "Output",
        "What the policy asks for, what was written, and what the plant does, in the output's own "
        "unit. A gap: not known, or not written.",
        {
            "{{output}} proposed [{{unit}}]": with_unit("steadyhand_output_proposed", "output"),
            "{{output}} sent [{{unit}}]": with_unit("steadyhand_output_sent", "output"),
            "{{output}} applied [{{unit}}]": with_unit("steadyhand_output_applied", "output"),
        },
        "short",
        12,
        9,
        runbook="SteadyhandWritesFailing",
    )
    board.add(
        trend(plant_values=True),
        "Measurements",
        "As the loop reads them, in their own units.",
        {
            "{{signal}} [{{unit}}]": with_unit(
                "steadyhand_observation", "observation", signal="$signal"
            )
        },
        "short",
        12,
        9,
        runbook="SteadyhandMeasurementFault",
    )
    board.row("Causes")
    board.add(
        bars(),
        "Ticks with a fault, last 24 h",
        "The eight most frequent reason codes. A code that is new here is worth a look.",
        {"{{reason}}": f"topk(8, increase({one('steadyhand_faulty_ticks_total')}[1d]))"},
        "suffix: ticks",
        12,
        8,
        instant=True,
    )
    board.add(
        bars(),
        "Control lost by the policy, last 24 h",
        "How often, by first cause.",
        {"{{reason}}": f"topk(8, increase({one('steadyhand_fallback_entries_total')}[1d]))"},
        "short",
        12,
        8,
        instant=True,
        runbook="SteadyhandPolicyShareLow",
    )
    return board


def stages(quantile: float) -> dict[str, str]:
    """One quantile of every stage of a tick, over an hour: a slow loop ticks four times in it."""
    return {
        name: (
            one(f"instance:steadyhand_{name}_seconds:p99_1h")
            if quantile == 0.99
            else f"histogram_quantile({quantile}, "
            f"rate({one(f'steadyhand_{name}_seconds_bucket')}[1h]))"
        )
        for name in ("lateness", "cycle", "inference", "filter", "write")
    }


def engineering() -> Board:
    """Machine, link and record of one loop."""
    board = Board(
        "engineering",
        "steadyhand: engineering",
        "Is the machine well? Timing, link, record, process.",
        several=False,
    )
    board.row("Timing")
    for quantile, words in ((0.5, "half of the ticks"), (0.99, "99 of 100 ticks")):
        board.add(
            trend(),
            f"Stages of a tick, {words}",
            f"Within this time {words} are through each stage. Inference has its own deadline; the "
            "cycle must fit into the period.",
            stages(quantile),
            "s",
            9,
            8,
            runbook="SteadyhandOverruns",
        )
    board.add(
        alone(),
        "Period",
        "From tick to tick, real time.",
        {"period": one("steadyhand_period_seconds")},
        "s",
        3,
        4,
        instant=True,
    )
    board.add(
        alone(),
        "Last tick",
        "Time since the last tick: at most one period.",
        {"ago": f"time() - {one('steadyhand_last_tick_timestamp_seconds')}"},
        "s",
        3,
        4,
        instant=True,
        runbook="SteadyhandLoopStalled",
    )
    board.add(
        trend(),
        "Periods skipped",
        "Share of the periods of an hour in which a tick overran and the next one was skipped.",
        {"skipped": one("instance:steadyhand_periods:skipped_share_1h")},
        "percentunit",
        8,
        7,
        runbook="SteadyhandOverruns",
    )
    board.add(
        trend(),
        "Age of the oldest input, 99 of 100 ticks",
        "Plant time. More than two periods: a measurement is late.",
        {
            "age": (
                f"histogram_quantile(0.99, rate({one('steadyhand_input_age_seconds_bucket')}[1h]))"
            )
        },
        "s",
        8,
        7,
        runbook="SteadyhandMeasurementFault",
    )
    board.add(
        trend(),
        "Writes that did not take effect",
        "In the last hour, by reason; a few after a lost link are normal.",
        {"{{reason}}": f"increase({one('steadyhand_rejected_writes_total')}[1h])"},
        "suffix: ticks",
        8,
        7,
        runbook="SteadyhandWritesFailing",
    )
    board.row("Link")
    board.add(
        timeline(LINKS),
        "Link to the plant",
        "Red: no link. Amber: on the way back.",
        {"{{instance}}": coded("steadyhand_link_state", "link", LINKS)},
        "none",
        12,
        5,
        runbook="SteadyhandLinkDown",
    )
    board.add(
        alone(),
        "Connections made",
        "Since the start; more than one: it was interrupted.",
        {"connects": one("steadyhand_link_connects_total")},
        "short",
        4,
        5,
        instant=True,
        runbook="SteadyhandLinkDown",
    )
    board.add(
        alone(),
        "Plant's clock",
        "The plant server's clock minus ours. Ages allow for it; records are easier to compare "
        "when it is small.",
        {"offset": one("steadyhand_link_clock_offset_seconds")},
        "s",
        4,
        5,
        steps=((None, AMBER), (-60.0, GREY), (60.0, AMBER)),
        instant=True,
    )
    board.add(
        alone(),
        "Commands overtaken",
        "A newer command came before this one was sent: the server is slow.",
        {"overtaken": one("steadyhand_overtaken_commands_total")},
        "short",
        4,
        5,
        instant=True,
    )
    board.row("Record")
    board.add(
        trend(),
        "Journal's transaction",
        "Duration of the last one, and age of the one under way.",
        {
            "last": one("steadyhand_journal_commit_seconds"),
            "under way": one("steadyhand_journal_lag_seconds"),
        },
        "s",
        8,
        7,
        runbook="SteadyhandJournalDegraded",
    )
    board.add(
        trend(),
        "Records waiting and lost",
        "Waiting: in memory, not yet on disk. Lost is for ever.",
        {
            "waiting": one("steadyhand_journal_backlog_records"),
            "ticks lost": one("steadyhand_journal_lost_ticks_total"),
            "events lost": one("steadyhand_journal_lost_events_total"),
        },
        "suffix: records",
        8,
        7,
        runbook="SteadyhandJournalLost",
    )
    board.add(
        trend(),
        "Space left",
        "On the journal's disk.",
        {"free": one("steadyhand_journal_disk_free_bytes")},
        "bytes",
        8,
        7,
        runbook="SteadyhandJournalDiskFilling",
    )
    board.row("Process")
    board.add(
        trend(),
        "Memory",
        "Of the runtime and of the policy's process. Steps at a swap are normal, a slope is not.",
        {
            "runtime": one("process_resident_memory_bytes"),
            "policy": one("steadyhand_policy_resident_memory_bytes"),
        },
        "bytes",
        6,
        7,
        runbook="SteadyhandMemoryGrows",
    )
    board.add(
        trend(),
        "Memory's growth",
        "Of the runtime, in four hours. Around zero is good; above 8 MiB three times in a row is "
        "an alarm.",
        {"growth": one("instance:steadyhand_resident_memory_bytes:growth_4h")},
        "bytes",
        6,
        7,
        runbook="SteadyhandMemoryGrows",
    )
    board.add(
        trend(),
        "Processor",
        "Cores in use by the runtime.",
        {"cores": f"rate({one('process_cpu_seconds_total')}[$__rate_interval])"},
        "suffix: cores",
        6,
        7,
        runbook="SteadyhandOverruns",
    )
    board.add(
        trend(),
        "Descriptors and threads",
        "Flat is good. `limit` is how many descriptors there may be.",
        {
            "open": one("process_open_fds"),
            "limit": one("process_max_fds"),
            "threads": one("process_threads"),
        },
        "short",
        6,
        7,
        runbook="SteadyhandFilesExhausted",
    )
    board.add(
        timeline(POLICIES),
        "Policy's process",
        "Amber: restarting. Red: it died too often and waits for an acknowledgement.",
        {"{{instance}}": coded("steadyhand_policy_state", "policy", POLICIES)},
        "none",
        10,
        5,
        runbook="SteadyhandPolicyRestarts",
    )
    board.add(
        alone(),
        "Running for",
        "Since the last start.",
        {"for": f"time() - {one('process_start_time_seconds')}"},
        "s",
        4,
        5,
        instant=True,
        runbook="SteadyhandRestarts",
    )
    board.add(
        number(text=True),
        "The run before",
        "How it ended. OK: in order; RESTART: killed, or a crash; WATCHDOG_PREV: it hung; "
        "OOM_PREV: out of memory.",
        {"{{reason}}": f"{one('steadyhand_run_before')} == 1"},
        "none",
        4,
        5,
        instant=True,
        runbook="SteadyhandRestarts",
    )
    board.add(
        alone(),
        "Watchdog",
        "Time in which the service manager wants a sign of life; 0: nobody watches.",
        {"watchdog": one("steadyhand_watchdog_timeout_seconds")},
        "s",
        3,
        5,
        instant=True,
    )
    board.add(
        alone(),
        "Requests refused",
        "At the metrics and at the operator's socket, since the start.",
        {
            "refused": (
                f"{one('steadyhand_metrics_refused_total')} + "
                f"sum without (code) ({one('steadyhand_operator_refused_total')})"
            )
        },
        "short",
        3,
        5,
        instant=True,
        runbook="SteadyhandRefusals",
    )
    return board


def model() -> Board:
    """The policy of one loop."""
    board = Board(
        "model",
        "steadyhand: model",
        "Can the policy be believed, and what is it worth here?",
        several=False,
    )
    board.row("What runs")
    board.add(
        number(text=True),
        "Bundle",
        "Name, version and first digits of the hash.",
        {"{{bundle}}": one("steadyhand_bundle_info")},
        "none",
        8,
        4,
        instant=True,
        runbook="SteadyhandBundleRefused",
    )
    board.add(
        alone(),
        "As configured",
        "No: the configured bundle was refused, and another one or none serves.",
        {"as configured": one("steadyhand_bundle_as_configured")},
        "bool_yes_no",
        4,
        4,
        steps=((None, AMBER), (1.0, GREY)),
        instant=True,
        runbook="SteadyhandBundleRefused",
    )
    board.add(
        alone(),
        "Valid for",
        "Time until the bundle's signature ends.",
        {"valid": left("steadyhand_bundle_not_after_timestamp_seconds")},
        "s",
        4,
        4,
        steps=PAPERS,
        instant=True,
        runbook="SteadyhandBundleExpires",
    )
    board.add(
        alone(),
        "Swapped",
        "Bundles swapped in since the start.",
        {"swaps": one("steadyhand_bundle_swaps_total")},
        "short",
        4,
        4,
        instant=True,
    )
    board.add(
        alone(),
        "Policy's share of the day",
        "Share of the ticks of the last 24 hours in which the policy drove.",
        {"share": one("instance:steadyhand_ticks:policy_share_1d")},
        "percentunit",
        4,
        4,
        instant=True,
        runbook="SteadyhandPolicyShareLow",
    )
    board.row("Trust")
    board.add(
        trend(),
        "Confidence",
        "Calibrated probability that the next hours go well with the policy. Quick to fall, slow "
        "to rise.",
        {"confidence": one("steadyhand_confidence_ratio")},
        "percentunit",
        12,
        8,
        runbook="SteadyhandOnFallback",
    )
    board.add(
        trend(limit=True),
        "Scores of the monitors",
        "A monitor alarms from 1 on. Novelty near 1 for days: the plant has left what the policy "
        "was trained on.",
        {"{{monitor}}": one("steadyhand_monitor_score_ratio")},
        "short",
        12,
        8,
        steps=((None, GREY), (1.0, AMBER)),
        runbook="SteadyhandUnfamiliar",
    )
    board.add(
        timeline(GATES),
        "Trust gate",
        "Grey: believed. Pale: on probation. Amber: not believed. Red: acknowledge.",
        {"{{instance}}": coded("steadyhand_gate_state", "gate", GATES)},
        "none",
        12,
        6,
        runbook="SteadyhandLatched",
    )
    board.add(
        bars(),
        "Trust lost, last 24 h",
        "How often, by first cause.",
        {"{{gate}}": f"topk(8, increase({one('steadyhand_gate_trips_total')}[1d]))"},
        "short",
        12,
        6,
        instant=True,
        runbook="SteadyhandPolicyShareLow",
    )
    board.row("What the filter makes of it")
    board.add(
        trend(),
        "Share of commands changed, 6 h",
        "More than in the evaluation: the policy leans on the filter, and is worth less.",
        {"changed": one("instance:steadyhand_ticks:intervention_share_6h")},
        "percentunit",
        8,
        7,
        runbook="SteadyhandFilterBusy",
    )
    board.add(
        trend(),
        "Size of the change",
        "Correction as a share of the output's range, and share of the backup in the command.",
        {
            "correction": one("steadyhand_correction_ratio"),
            "backup": one("steadyhand_backup_blend_ratio"),
        },
        "percentunit",
        8,
        7,
        runbook="SteadyhandFilterBusy",
    )
    board.add(
        trend(),
        "How the filter ended",
        "Ticks of the last hour. Infeasible, time-out, not finite: the safe set-point drove.",
        {"{{outcome}}": (f"increase({one('steadyhand_filter_outcomes_total')}[1h])")},
        "suffix: ticks",
        8,
        7,
        runbook="SteadyhandFilterNoAnswer",
    )
    board.row("Shadow score (mode shadow)")
    board.add(
        trend(),
        "Proposal and plant",
        "Share of a day's proposals within a tenth of the range of what the plant did, and the "
        "distance of the last one. As `support` and `distance` in `steadyhand shadow report`.",
        {
            "near": one("instance:steadyhand_shadow_ticks:near_share_1d"),
            "distance": one("steadyhand_shadow_distance_ratio"),
        },
        "percentunit",
        16,
        7,
    )
    board.add(
        alone(),
        "Ticks compared",
        "Since the start. Evidence wants some days of them.",
        {"compared": one("steadyhand_shadow_ticks_total")},
        "suffix: ticks",
        8,
        7,
        instant=True,
    )
    board.row("Answers")
    board.add(
        trend(),
        "Answers of the policy, 99 of 100",
        "Time to an answer. Beyond its deadline it counts as late, and the heuristic drives.",
        {"inference": stages(0.99)["inference"]},
        "s",
        12,
        7,
        runbook="SteadyhandOverruns",
    )
    board.add(
        trend(),
        "Restarts of the policy's process",
        "Since the start of the runtime.",
        {"restarts": one("steadyhand_policy_restarts_total")},
        "short",
        12,
        7,
        runbook="SteadyhandPolicyRestarts",
    )
    return board


BOARDS = {"overview": overview, "loop": loop, "engineering": engineering, "model": model}
