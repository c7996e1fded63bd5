//! What the session owes its guest: replies, errors to report, kernel output.

use super::completion::Completion;
use super::errors::Errors;
use super::link::Link;
use super::output::Printing;

/// How calls are answered.
pub(crate) struct Replies {
    /// The guest's connection.
    pub(crate) link: Link,
    /// Calls that wait for the device.
    pub(crate) completion: Completion,
    /// Errors not yet reported.
    pub(crate) errors: Errors,
    /// Kernel output.
    pub(crate) printing: Printing,
}
