//! Asks the daemon of this host.

use std::path::{Path, PathBuf};

use paragpu_config::host::Host;
use paragpu_control::admin::{Client, Progress, Request, Response};
use paragpu_control::frame::FrameError;

use crate::error::Error;

/// A connection to the daemon's control socket.
#[derive(Debug)]
pub struct Control {
    client: Client,
}

/// The path of the control socket: `given`, or from host.toml.
pub fn place(given: Option<&Path>) -> Result<PathBuf, Error> {
    match given {
        Some(path) => Ok(path.to_owned()),
        None => Ok(Host::load()?.daemon.control),
    }
}

impl Control {
    /// Connects to the socket at `given`, or to that of host.toml.
    pub fn connect(given: Option<&Path>) -> Result<Self, Error> {
        let path = place(given)?;
        match Client::connect(&path) {
            Ok(client) => Ok(Self { client }),
            Err(source) => Err(Error::NoDaemon { path, source }),
        }
    }

    /// One question and its answer.
    pub fn ask(&self, request: &Request) -> Result<Response, Error> {
        self.order(request, |_| {})
    }

    /// An order and its end; `progress` sees what comes before.
    pub fn order(
        &self,
        request: &Request,
        progress: impl FnMut(Progress),
    ) -> Result<Response, Error> {
        match self.client.order(request, progress)? {
            Response::Error { error } => Err(Error::Refused(error)),
            response => Ok(response),
        }
    }
}

/// For an answer to another question.
pub fn unexpected() -> Error {
    let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
    Error::Answer(FrameError::Io(error))
}
