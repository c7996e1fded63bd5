//! The operator's controls: configuration, log level, signals.

use paragpu_config::host::Host;

use super::signals::Signals;
use crate::arguments::Arguments;
use crate::error::chain;
use crate::logging;

/// The sources of the configuration, the log whose level it sets, and the
/// operator's signals.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) arguments: Arguments,
    pub(super) log: logging::Handle,
    pub(super) signals: Signals,
}

impl Operator {
    /// Reads the configuration again. Logs why it is refused and returns `None`.
    pub(super) fn read(&self) -> Option<Host> {
        match self.arguments.sources().load::<Host>() {
            Ok(loaded) => Some(loaded.values),
            Err(error) => {
                let error = chain(&error);
                tracing::error!(
                    error,
                    "the configuration is refused; the old one stays in effect"
                );
                None
            }
        }
    }
}
