//! `paragpu-qemu-device`: serves the PCI device of one VM.
#![forbid(unsafe_code)]

use std::error::Error as _;
use std::process::ExitCode;

use clap::Parser;
use paragpu_qemu_device::settings::{Arguments, Settings};
use paragpu_qemu_device::{Error, service};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("PARAGPU_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match Settings::try_from(arguments).and_then(|settings| service::run(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = chain(&error);
            eprintln!("paragpu-qemu-device: {why}");
            // So that whoever asked systemd to start this is told.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(&why)]);
            ExitCode::FAILURE
        }
    }
}

/// The error and what caused it, in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
