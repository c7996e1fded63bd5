//! Logging: under systemd to the journal, with the fields VM, SESSION, GPU and WORKER if
//! they apply; otherwise to standard error.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;

use paragpu_config::Level;
use paragpu_log::{Limit, fields};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

/// Changes the level of a running log.
pub type Handle = reload::Handle<LevelFilter, Registry>;

/// The filter of a configured level.
#[must_use]
pub fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

/// Starts the log of this process.
#[must_use]
pub fn start(level: Level) -> Handle {
    let (filter, handle) = reload::Layer::new(filter(level));
    let registry = tracing_subscriber::registry();
    let registry = registry.with(filter).with(Limit::of_daemon());
    match journal() {
        Some(journal) => registry.with(journal).init(),
        None => {
            let mut lines = tracing_subscriber::fmt::layer()
                .fmt_fields(fields())
                .with_writer(std::io::stderr)
                .with_target(false);
            // In a terminal NO_COLOR decides.
            if !std::io::stderr().is_terminal() {
                lines = lines.with_ansi(false);
            }
            registry.with(lines.boxed()).init();
        }
    }
    handle
}

/// The journal, if standard error is connected to it (systemd.exec(5),
/// `JOURNAL_STREAM`).
fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let (device, inode) = stream.split_once(':')?;
    let stderr = std::fs::metadata("/proc/self/fd/2").ok()?;
    let ours = device.parse() == Ok(stderr.dev()) && inode.parse() == Ok(stderr.ino());
    if ours {
        // Without a prefix: `journalctl VM=demo`, `SESSION=7`, `GPU=cuda:0`.
        let journal = tracing_journald::layer().ok()?;
        Some(journal.with_field_prefix(None))
    } else {
        None
    }
}
