//! Errors of posted calls.
//!
//! CUDA reports a failure of asynchronous work from a later call. The first error of a
//! posted call is stored here until a call that reports errors. An error that makes the
//! context unusable is sticky: every later call returns it.

use paragpu_device::Error;
use paragpu_protocol::status::Status;

/// An error to be reported by a later call.
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
    /// The first unreported error of a posted call.
    deferred: Option<Deferred>,
    /// The error that made the context unusable.
    sticky: Option<Deferred>,
    /// It is new: what the kernel wrote about it was not sent.
    is_new: bool,
}

impl Errors {
    /// Records an error that the device reported. A sticky one stays.
    pub(crate) fn note(&mut self, call: u16, error: &Error) {
        if error.status.is_sticky() && self.sticky.is_none() {
            let what = "the session's context is lost";
            match error.status {
                Status::ECC_UNCORRECTABLE => tracing::warn!(%error, call, "{what}"),
                // A kernel causes it at will, and its program is told.
                _ => tracing::debug!(%error, call, "{what}"),
            }
            self.sticky = Some(Deferred::new(call, error));
            self.is_new = true;
        }
    }

    /// Stores the error of a posted call. Only the first is reported.
    pub(crate) fn defer(&mut self, call: u16, error: &Error) {
        self.note(call, error);
        if self.deferred.is_none() {
            self.deferred = Some(Deferred::new(call, error));
        }
    }

    /// Whether the context became unusable since the last time.
    pub(crate) fn became_sticky(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// The error that made the context unusable.
    pub(crate) fn sticky(&self) -> Option<&Deferred> {
        self.sticky.as_ref()
    }

    /// Takes the error to report: the sticky one, or else the deferred one.
    pub(crate) fn take(&mut self) -> Option<Deferred> {
        let deferred = self.deferred.take();
        self.sticky.clone().or(deferred)
    }

    /// The unreported error of a posted call.
    pub(crate) fn deferred(&self) -> Option<&Deferred> {
        self.deferred.as_ref()
    }

    /// Replaces the deferred error and returns the previous one.
    pub(crate) fn replace_deferred(&mut self, error: Option<Deferred>) -> Option<Deferred> {
        std::mem::replace(&mut self.deferred, error)
    }

    /// Records that the error was reported in another way.
    pub(crate) fn reported(&mut self, error: &Deferred) {
        if self.deferred.as_ref() == Some(error) {
            self.deferred = None;
        }
    }
}
