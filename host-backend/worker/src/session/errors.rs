//! Errors of posted calls.
//!
//! CUDA reports a failure of asynchronous work from a later call. The first error
//! of a posted call is kept here until a call that reports errors. An error that
//! makes the context unusable is sticky: every later call returns it.

use paragpu_device::Error;
use paragpu_protocol::status::Status;

/// An error that waits for a call to be reported by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deferred {
    pub(crate) status: Status,
    /// Number of the call that failed.
    pub(crate) call: u16,
    pub(crate) detail: String,
}

impl Deferred {
    pub(crate) fn new(call: u16, error: &Error) -> Self {
        Self {
            status: error.status,
            call,
            detail: error.detail.clone(),
        }
    }
}

/// A session's errors.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    /// First error of a posted call that is not reported yet.
    deferred: Option<Deferred>,
    /// The error that made the context unusable.
    sticky: Option<Deferred>,
}

impl Errors {
    /// Notes an error that the device reported: a sticky one stays.
    pub(crate) fn note(&mut self, call: u16, error: &Error) {
        if error.status.is_sticky() && self.sticky.is_none() {
            tracing::info!(%error, call, "the session's context is lost");
            self.sticky = Some(Deferred::new(call, error));
        }
    }

    /// Keeps the error of a posted call: the first is reported.
    pub(crate) fn defer(&mut self, call: u16, error: &Error) {
        self.note(call, error);
        if self.deferred.is_none() {
            self.deferred = Some(Deferred::new(call, error));
        }
    }

    /// The error that made the context unusable.
    pub(crate) fn sticky(&self) -> Option<&Deferred> {
        self.sticky.as_ref()
    }

    /// The error to report now: the lasting one, else the first deferred one.
    pub(crate) fn take(&mut self) -> Option<Deferred> {
        let deferred = self.deferred.take();
        self.sticky.clone().or(deferred)
    }

    /// The error of a posted call that is not reported yet.
    pub(crate) fn deferred(&self) -> Option<&Deferred> {
        self.deferred.as_ref()
    }

    /// Puts another in its place, and gives back which it was.
    pub(crate) fn replace_deferred(&mut self, error: Option<Deferred>) -> Option<Deferred> {
        std::mem::replace(&mut self.deferred, error)
    }

    /// The error was reported by another way.
    pub(crate) fn reported(&mut self, error: &Deferred) {
        if self.deferred.as_ref() == Some(error) {
            self.deferred = None;
        }
    }
}
