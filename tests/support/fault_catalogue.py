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
_POLICY = "tests/controllers/policies/test_onnx_policy.py"
_DISK = f"{_RECORD}/test_journal_disk.py"

ELSEWHERE = {
    "A11": f"{_OPCUA}/test_identity.py::test_the_channel_is_renewed_without_losing_a_tick",
    "A24": f"{_OPCUA}/test_identity.py"
    "::test_a_session_outlives_the_servers_certificate_and_the_next_one_does_not_begin",
    "C7": "tests/runtime/test_clock.py::test_an_overrun_is_followed_by_one_tick_on_the_grid",
    "C9": "tests/loop/test_watchdog.py::test_nothing_feeds_it_once_control_is_dead",
    "C11": "tests/runtime/test_clock.py::test_work_inside_the_period_does_not_move_the_grid",
    "D1": f"{_BUNDLE}/test_refusals.py"
    "::test_any_single_bit_anywhere_is_noticed_before_the_graph_is_loaded",
    "D2": f"{_BUNDLE}/test_graphs.py::test_memory_bomb_dies_in_the_trial",
    "D3": f"{_POLICY}::test_graph_that_breaks_the_contract_is_refused",
    "D4": f"{_BUNDLE}/test_graphs.py::test_reader_refuses",
    "D5": f"{_POLICY}::test_graph_that_breaks_the_contract_is_refused",
    "D6": f"{_POLICY}::test_zeroed_head_misses_the_known_answers",
    "D10": f"{_POLICY}::test_answers_that_differ_between_passes_are_refused",
    "D17": f"{_POLICY}::test_a_thousand_policies_leave_no_memory_behind",
    "D18": "tests/runtime/test_worker.py::test_swap_under_load_leaves_no_gap",
    "D19": f"{_BUNDLE}/test_refusals.py::test_refused",
    "D24": f"{_BUNDLE}/test_refusals.py::test_refused",
    "D25": f"{_BUNDLE}/test_refusals.py::test_refused",
    "E6": _CONFIG + "::test_a_broken_configuration_is_refused_with_place_value_and_remedy",
    "E7": "tests/properties/test_safety_properties.py"
    "::test_always_a_finite_command_within_the_limits",
    "F5": "tests/loop/test_service.py"
    "::test_a_second_runtime_is_refused_and_the_first_does_not_notice",
    "F6": f"{_RECORD}/test_journal_kill.py::test_lock_is_free_after_a_kill_though_its_file_remains",
    "F11": f"{_OPCUA}/test_wire.py::test_a_rounded_value_is_inside_the_limits_as_stored",
    "G2": "tests/loop/test_endings.py::test_a_signal",
    "G4": f"{_RECORD}/test_journal_kill.py::test_twenty_kills",
    "G5": "tests/loop/test_watchdog.py::test_nothing_feeds_it_once_control_is_dead",
    "G6": "tests/loop/test_watchdog.py::test_nothing_feeds_it_once_control_is_dead",
    "G8": "tests/loop/test_starting_up.py"
    "::test_from_the_start_on_every_command_is_answered_at_once",
    "G10": "tests/runtime/test_crash_loop.py::test_how_the_run_before_ended",
    "G12": "tests/runtime/test_health.py::test_nobody_listens_is_fine",
    "G13": f"{_RECORD}/test_journal.py::test_nowhere_to_write_is_a_refusal_to_start",
    **dict.fromkeys(
        ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H10"),
        _CONFIG + "::test_a_broken_configuration_is_refused_with_place_value_and_remedy",
    ),
    "H8": "tests/system/test_systemd.py::test_a_reload_tells_what_a_restart_would_make_of_the_file",
    "H9": "tests/system/test_systemd.py::test_a_reload_tells_what_a_restart_would_make_of_the_file",
    "H11": _CONFIG + "::test_hostile_files_are_refused_in_one_line_each",
    "G11": "tests/loop/test_descriptors.py::test_control_drives_on_and_a_lost_link_is_told",
    "I1": "tests/loop/test_sick_disk.py::test_on_a_full_disk_it_drives_and_tells",
    "I2": "tests/loop/test_sick_disk.py"
    "::test_on_a_read_only_disk_it_drives_and_people_come_in_later",
    "I3": f"{_DISK}::test_kernel_reports_errors",
    "I4": f"{_DISK}::test_slow_disk_is_told_and_control_goes_on",
    "I5": f"{_RECORD}/test_journal_damage.py::test_bit_rot_is_named_and_the_service_starts",
    "I6": f"{_RECORD}/test_journal.py::test_rotation_loses_nothing",
    "I7": f"{_DISK}::test_file_taken_away_by_something_else",
    "I8": f"{_RECORD}/test_purge_fails.py::test_recording_outlives_a_purge_that_fails",
    "I9": f"{_RECORD}/test_journal.py::test_a_restart_with_the_clock_back_one_year",
    "I10": f"{_DISK}::test_no_inodes_left_for_the_next_segment",
    "J1": "tests/loop/test_starting_up.py::test_with_every_port_taken_it_drives_and_tells",
    "J2": f"{_RECORD}/test_metrics_server.py::test_a_storm_is_refused_above_the_limit",
    "J3": f"{_RECORD}/test_metrics_server.py"
    "::test_five_hundred_half_open_connections_keep_nobody_out",
    "J4": f"{_RECORD}/test_metrics.py::test_a_hundred_thousand_words_make_no_new_series",
    "J5": f"{_RECORD}/test_metrics_server.py"
    "::test_a_defect_in_rendering_is_told_and_the_server_comes_back",
    "J6": "tests/runtime/test_operator.py::test_garbage_by_the_thousand_leaves_the_server_well",
    "J7": "tests/runtime/test_operator.py::test_a_sequence_number_is_good_once_and_only_upwards",
    "J8": "tests/runtime/test_operator.py::test_a_connection_cut_at_every_byte_is_all_or_nothing",
}
"""Faults whose parts are all there is to them, and the test that tries them."""

NO_PLACE = {
    "B17": "no plant here has redundant sensors",
    "B19": "no plant here measures an angle; the time of day wraps in every run of a day",
    "B20": "no plant here has a counter; the day's peak power falls to zero in every run of a day",
    "C3": "schedules are the plant's own time of day; the loop knows no time zone",
    "C8": "how starved a machine is cannot be asked for in a test that others run beside; "
    "what comes of it are C5 and C6",
    "C10": "the loop knows no calendar",
    "D11": "needs a GPU",
    "D12": "needs a GPU",
    "D13": "needs a GPU",
    "D14": "needs a GPU",
    "D20": "a bundle is never changed unasked, except after a crash",
    "D21": "no policy here has a recurrent state",
    "E11": "no output here has a minimum time on or off",
    "G14": "versions are pinned by the package, and not looked at again",
    "L7": "a forced tag is told by its quality: A13",
}
"""Why there is no test of its own."""
