//! `paragpu-worker` for this crate's tests. Cargo builds examples with the
//! tests, so that the worker is never missing and never stale.
#![forbid(unsafe_code)]

use clap::Parser as _;
use paragpu_worker::arguments::Arguments;
use paragpu_worker::lifecycle;

fn main() {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    lifecycle::run(&arguments)
}
