"""The catalogue of faults, number by number: which are rows of the fault table, which are tried by
another test because they need other parts, and which this product has no place for.
"""

CATALOGUE = {
    "A": 24, "B": 20, "C": 11, "D": 25, "E": 11, "F": 13, "G": 14, "H": 11, "I": 10, "J": 8, "L": 7,
}  # fmt: skip
"""How many faults there are in each group: link, measurements, time, model, gate and filter,
writes, process, configuration, record, metrics and commands, people."""

_OPCUA, _BUNDLE, _RECORD = "tests/adapters/opcua", "tests/runtime/bundle", "tests/runtime/record"
_CONFIG = "tests/runtime/test_config_broken.py"
_WATCHDOG = "tests/loop/test_watchdog.py::test_nothing_feeds_it_once_control_is_dead"
_ATACOM, _LOOP = "tests/controllers/safety/test_atacom.py", "tests/loop"
_WRITING = f"{_OPCUA}/test_writing.py"
_POLICY = "tests/controllers/policies/test_onnx_policy.py"
_DISK = f"{_RECORD}/test_journal_disk.py"

ELSEWHERE = {
    "A11": f"{_OPCUA}/test_identity.py"
    "::test_a_renewal_that_is_lost_costs_a_moment_and_not_the_link",
    "A19": f"{_OPCUA}/test_every_byte.py::test_a_cut_anywhere_is_told_and_the_link_comes_back",
    "A24": f"{_OPCUA}/test_identity.py"
    "::test_a_session_outlives_the_servers_certificate_and_the_next_one_does_not_begin",
    "C1": "tests/runtime/test_wall_watch.py"
    "::test_each_step_is_told_once_with_its_size_and_stays_an_alarm_for_an_hour",
    "C7": f"{_LOOP}/test_pauses.py"
    "::test_a_collection_longer_than_the_period_costs_one_command_and_no_more",
    "C8": f"{_LOOP}/test_watchdog.py"
    "::test_a_machine_that_is_starved_is_told_and_no_command_is_worse_for_it",
    "C9": _WATCHDOG,
    "C10": "tests/runtime/test_calendar.py"
    "::test_ticks_go_on_over_every_number_a_monotonic_clock_may_reach",
    "C11": "tests/runtime/test_clock.py"
    "::test_a_million_ticks_of_uneven_work_drift_by_less_than_a_period",
    "D1": f"{_BUNDLE}/test_refusals.py"
    "::test_any_single_bit_anywhere_is_noticed_before_the_graph_is_loaded",
    "D2": f"{_BUNDLE}/test_graphs.py::test_memory_bomb_dies_in_the_trial",
    "D3": f"{_POLICY}::test_graph_that_breaks_the_contract_is_refused",
    "D4": f"{_BUNDLE}/test_graphs.py::test_reader_refuses",
    "D5": f"{_POLICY}::test_graph_that_breaks_the_contract_is_refused",
    "D6": f"{_POLICY}::test_zeroed_head_misses_the_known_answers",
    "D10": f"{_POLICY}::test_answers_that_differ_between_passes_are_refused",
    "D11": f"{_BUNDLE}/test_graphs.py::test_missing_provider_is_told_or_refused",
    "D12": "tests/runtime/test_reported_inference.py"
    "::test_after_one_fault_a_gpu_gives_no_more_answers",
    "D17": (
        "tests/runtime/test_worker.py"
        "::test_a_child_that_grew_is_replaced_without_missing_a_question",
        f"{_POLICY}::test_a_thousand_policies_leave_no_memory_behind",
    ),
    "D18": (
        f"{_LOOP}/test_any_phase.py"
        "::test_a_thousand_swaps_at_any_phase_miss_no_tick_and_make_no_step",
        "tests/runtime/test_worker.py::test_swap_under_load_leaves_no_gap",
    ),
    "D19": f"{_BUNDLE}/test_refusals.py::test_refused",
    "D22": f"{_LOOP}/test_shifted.py::test_a_measurement_that_is_shifted_is_told",
    "D23": f"{_LOOP}/test_shifted.py::test_statistics_that_cannot_work_vouch_for_nothing",
    "D24": f"{_BUNDLE}/test_refusals.py::test_refused",
    "D25": f"{_BUNDLE}/test_refusals.py::test_refused",
    "E1": (
        f"{_ATACOM}::test_an_empty_box_is_infeasible_and_the_nearest_point_goes_out",
        f"{_ATACOM}::test_infeasible_with_a_backup_that_fails_breaks_least",
    ),
    "E2": f"{_ATACOM}::test_a_solver_that_stops_early_is_no_answer",
    "E3": (
        f"{_ATACOM}::test_recovery_is_monotone_from_anywhere",
        f"{_LOOP}/test_reported_plants.py::test_more_than_full_is_outside_and_not_extrapolated",
    ),
    "E4": f"{_ATACOM}::test_a_soft_row_that_gives_way_is_told",
    "E6": _CONFIG + "::test_a_broken_configuration_is_refused_with_place_value_and_remedy",
    "E7": "tests/properties/test_safety_properties.py"
    "::test_always_a_finite_command_within_the_limits",
    "F1": f"{_WRITING}::test_a_batch_that_half_succeeds_is_told_by_node",
    "F5": "tests/loop/test_service.py"
    "::test_a_second_runtime_is_refused_and_the_first_does_not_notice",
    "F6": f"{_RECORD}/test_journal_kill.py::test_lock_is_free_after_a_kill_though_its_file_remains",
    "F7": (
        f"{_WRITING}::test_a_command_past_its_life_is_dropped",
        f"{_OPCUA}/test_recovery.py::test_no_command_survives_a_reconnect",
    ),
    "F8": f"{_WRITING}::test_a_reply_that_is_lost_is_read_back_before_anything_else",
    "F11": f"{_OPCUA}/test_wire.py::test_a_rounded_value_is_inside_the_limits_as_stored",
    "G1": f"{_LOOP}/test_any_phase.py"
    "::test_a_thousand_stops_at_any_phase_end_with_a_whole_tick_and_a_hand_back",
    "G2": (
        f"{_LOOP}/test_endings.py::test_whoever_asks_again_gets_the_same_end",
        f"{_LOOP}/test_endings.py::test_a_hang_up_is_no_end",
        "tests/runtime/test_signal_flag.py::test_a_storm_of_signals_hangs_nothing_up",
    ),
    "G4": f"{_RECORD}/test_journal_power.py::test_twenty_five_power_cuts",
    "G5": _WATCHDOG,
    "G6": _WATCHDOG,
    "G7": (
        f"{_LOOP}/test_crash_loop.py"
        "::test_crashes_of_one_bundle_take_it_out_until_somebody_has_looked",
        "tests/runtime/test_worker.py::test_third_crash_latches_until_acknowledged",
    ),
    "G8": (
        f"{_LOOP}/test_no_plant.py::test_whoever_started_it_reads_why_there_is_no_plant",
        "tests/system/test_systemd.py::test_it_waits_for_its_plant_and_is_ready_when_it_sees_it",
    ),
    "G10": (
        "tests/runtime/test_crash_loop.py::test_how_the_run_before_ended",
        "tests/system/test_systemd.py::test_a_kill_for_want_of_memory_is_told_as_such_and_counted",
    ),
    "G12": "tests/runtime/test_health.py::test_nobody_listens_is_fine",
    "G13": f"{_RECORD}/test_journal.py::test_nowhere_to_write_is_a_refusal_to_start",
    "G14": "tests/runtime/test_tested_versions.py"
    "::test_another_version_is_named_with_the_tested_one",
    **dict.fromkeys(
        ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H10"),
        _CONFIG + "::test_a_broken_configuration_is_refused_with_place_value_and_remedy",
    ),
    "H8": "tests/system/test_systemd.py::test_a_reload_tells_what_a_restart_would_make_of_the_file",
    "H9": (
        "tests/runtime/test_config_cut.py::test_every_cut_has_an_answer",
        "tests/runtime/test_config_cut.py"
        "::test_a_reload_in_the_middle_of_a_copy_is_refused_and_what_runs_stays",
    ),
    "H11": _CONFIG + "::test_hostile_files_are_refused_in_one_line_each",
    "G11": "tests/loop/test_descriptors.py::test_control_drives_on_and_a_lost_link_is_told",
    "I1": "tests/loop/test_sick_disk.py::test_on_a_full_disk_it_drives_and_tells",
    "I2": (
        f"{_DISK}::test_kernel_reports_errors",
        "tests/loop/test_sick_disk.py::test_on_a_read_only_disk_it_drives_and_people_come_in_later",
    ),
    "I3": f"{_DISK}::test_kernel_reports_errors",
    "I4": f"{_DISK}::test_slow_disk_is_told_and_control_goes_on",
    "I5": f"{_RECORD}/test_journal_damage.py::test_bit_rot_is_named_and_the_service_starts",
    "I6": f"{_RECORD}/test_journal.py::test_rotation_loses_nothing",
    "I7": f"{_DISK}::test_file_taken_away_by_something_else",
    "I8": f"{_RECORD}/test_purge_fails.py::test_recording_outlives_a_purge_that_fails",
    "I9": (
        f"{_RECORD}/test_journal_clock.py"
        "::test_the_order_is_that_of_the_numbers_and_both_times_are_kept",
        f"{_RECORD}/test_journal.py::test_a_restart_with_the_clock_back_one_year",
    ),
    "I10": f"{_DISK}::test_no_inodes_left_for_the_next_segment",
    "J1": "tests/loop/test_starting_up.py::test_with_every_port_taken_it_drives_and_tells",
    "J2": (
        f"{_RECORD}/test_metrics_server.py::test_a_storm_is_refused_above_the_limit",
        f"{_LOOP}/test_storm.py::test_a_storm_of_scrapes_is_refused_and_the_loop_does_not_feel_it",
    ),
    "J3": f"{_RECORD}/test_metrics_server.py"
    "::test_five_hundred_half_open_connections_keep_nobody_out",
    "J4": f"{_RECORD}/test_metrics.py::test_a_hundred_thousand_words_make_no_new_series",
    "J5": f"{_RECORD}/test_metrics_server.py"
    "::test_a_defect_in_rendering_is_told_and_the_server_comes_back",
    "J6": "tests/runtime/test_operator.py::test_garbage_by_the_thousand_leaves_the_server_well",
    "J7": "tests/runtime/test_operator.py::test_a_sequence_number_is_good_once_and_only_upwards",
    "J8": "tests/runtime/test_operator.py::test_a_connection_cut_at_every_byte_is_all_or_nothing",
    "L6": "tests/runtime/test_flood.py::test_ten_a_minute_and_the_rest_is_counted",
}
"""Faults whose cause the rows do not bring about, or not alone, and the tests that do."""

NO_PLACE = {
    "B17": "no plant here has redundant sensors",
    "B19": "no plant here measures an angle; the time of day wraps in every run of a day",
    "B20": "no plant here has a counter; the day's peak power falls to zero in every run of a day",
    "C3": "schedules are the plant's own time of day; the loop knows no time zone",
    "D13": "needs a GPU",
    "D14": "needs a GPU",
    "D20": "a bundle is never changed unasked, except after a crash",
    "D21": "no policy here has a recurrent state",
    "E11": "no output here has a minimum time on or off",
}
"""Why there is no test of its own."""
