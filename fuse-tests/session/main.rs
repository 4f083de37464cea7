//! Sessions as a person without privileges meets them: their life, their processes, their limits, through the binary.

// As in a test module, which this harness is not for the compiler.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod confine;
mod crash;
mod fleet;
mod large;
mod life;
mod limits;
mod policy;
mod quota;
mod signals;
mod world;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");

/// A test by the name of its function.
macro_rules! trials {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($name)), || {
            $module::$name();
            Ok(())
        })),*]
    };
}

fn main() -> ExitCode {
    if let Some(code) = support::as_unprivileged(BUILT) {
        return code;
    }
    let trials = trials![
        confine::open_files_of_the_caller_lead_nowhere,
        confine::sockets_of_services_are_none_of_the_commands,
        confine::only_the_hosts_named_are_reached,
        confine::abstract_sockets_of_the_host_are_none_of_the_network,
        confine::the_screen_is_reached_only_when_asked_for,
        confine::a_private_home_shows_the_persons_and_keeps_what_is_written,
        confine::a_reviewed_home_is_one_more_root,
        confine::sandboxes_within_sandboxes_apply_one_level_up,
        large::what_a_command_wrote_is_seen_whole_and_applied,
        large::a_look_at_a_mounted_session_and_its_death_lose_nothing,
        life::from_new_to_rm,
        life::several_commands_share_a_running_session,
        life::a_mounted_session_takes_commands,
        life::a_mount_ends_although_another_namespace_has_a_copy,
        life::stop_ends_daemons_too,
        life::reset_hard_makes_a_session_as_new,
        life::states_are_told_with_reason_and_way_out,
        life::a_renamed_session_keeps_what_it_has,
        life::what_was_done_is_told_to_programs,
        crash::a_killed_server_loses_nothing_and_doctor_cleans_up,
        crash::after_a_reboot_everything_is_there,
        crash::a_full_disk_loses_nothing_that_was_acknowledged,
        life::exclusive_is_held_against_restore_and_rename,
        fleet::sessions_over_one_tree_are_alone_and_accounted,
        limits::memory_and_processes_are_limited,
        limits::processor_time_is_limited_or_refused,
        limits::the_configuration_limits_and_a_project_can_only_lower,
        policy::secrets_are_hidden_by_default,
        policy::rules_hold_in_roots_through_the_binary,
        policy::rules_hold_outside_of_roots,
        policy::a_projects_file_tightens_only,
        policy::a_projects_file_that_is_none_is_refused_at_once,
        policy::rules_that_cannot_hold_are_refused_before_a_session_is_there,
        policy::secrets_of_the_environment_are_dropped,
        policy::reserved_roots_are_refused_to_others,
        policy::overlapping_changes_are_told,
        policy::no_hostile_way_out_succeeds,
        signals::a_session_stays_however_its_command_is_ended,
        signals::a_command_may_handle_what_its_whole_group_is_sent,
        signals::a_command_signals_nothing_outside,
        signals::a_suspended_session_is_told_and_can_be_stopped,
        signals::a_command_has_the_terminal,
        signals::a_signal_at_the_beginning_leaves_nothing,
        quota::bytes_are_refused_before_they_are_written,
        quota::inodes_are_limited_and_given_back,
        quota::usage_is_that_of_du_after_a_random_workload,
        quota::the_configuration_gives_the_default_and_a_mistake_is_told,
    ];
    libtest_mimic::run(&Arguments { test_threads: Some(2), ..Arguments::from_args() }, trials).exit_code()
}
