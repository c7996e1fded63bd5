//! `paragpu-worker`: executes the calls of one guest session on one GPU.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use paragpu_worker::arguments::Arguments;
use paragpu_worker::{lifecycle, logging};

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "--man")
    {
        return manual();
    }
    let arguments = Arguments::parse();
    // Standard error itself will be the kernels'.
    let log = match std::io::stderr().as_fd().try_clone_to_owned() {
        Ok(log) => File::from(log),
        Err(error) => {
            eprintln!("paragpu-worker: cannot log: {error}");
            return ExitCode::FAILURE;
        }
    };
    logging::start(arguments.log, log);
    lifecycle::run(&arguments)
}

/// Prints the manual page, for packages.
fn manual() -> ExitCode {
    let page = clap_mangen::Man::new(Arguments::command()).section("8");
    match page.render(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
