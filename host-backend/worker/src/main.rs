//! `paragpu-worker`: executes the calls of one guest session on one GPU.
#![forbid(unsafe_code)]

use clap::Parser;
use paragpu_worker::arguments::Arguments;
use paragpu_worker::serve;

fn main() {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    serve::run(&arguments)
}
