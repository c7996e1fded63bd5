//! The format of a session's state: [`paragpu_control::state`].

pub use paragpu_control::state::*;

/// An error of the device means that the session cannot move.
pub(crate) fn device<T>(result: paragpu_device::Result<T>) -> Result<T, StateError> {
    result.map_err(|error| StateError::Impossible(error.to_string()))
}
