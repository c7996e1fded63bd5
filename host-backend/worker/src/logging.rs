//! Logging to the standard error that the daemon gave this process.

use std::fs::File;

use paragpu_log::{Limit, fields};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts the log of this process. A guest causes its lines, and cannot fill the disk.
pub fn start(level: LevelFilter, log: File) {
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(fields())
        .with_writer(log)
        .with_ansi(false);
    let registry = tracing_subscriber::registry();
    let registry = registry.with(level).with(Limit::of_worker());
    registry.with(lines).init();
}
