//! `paragpu-qemu-device`: serves the PCI device of one VM.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use paragpu_protocol::chain;
use paragpu_qemu_device::settings::{Arguments, Settings};
use paragpu_qemu_device::{Error, guard, service};

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(first) if first == "--man" => return manual(),
        Some(first) if first == guard::ARGUMENT => return outcome(guard::run()),
        _ => {}
    }
    let arguments = Arguments::parse();
    let mut log = tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        // Its report of a line that cannot be written, on a full disk for example, panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // journalctl shows a line with colour codes as a blob. In a terminal NO_COLOR decides.
    if !std::io::stderr().is_terminal() {
        log = log.with_ansi(false);
    }
    log.init();
    outcome(Settings::try_from(arguments).and_then(|settings| service::run(&settings)))
}

/// The exit status, after an error was reported.
fn outcome(ended: Result<(), Error>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = chain(&error);
            eprintln!("paragpu-qemu-device: {why}");
            // Lets `systemctl status` show the reason.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(&why)]);
            ExitCode::FAILURE
        }
    }
}

/// Prints the manual page, for packages.
fn manual() -> ExitCode {
    let page = clap_mangen::Man::new(Arguments::command().name("paragpu-qemu-device")).section("8");
    match page.render(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
