//! Asks the daemon of this host.

use std::path::{Path, PathBuf};

use paragpu_config::host::Host;
use paragpu_control::admin::{Client, Progress, Request, Response};
use paragpu_control::frame::{FrameError, NOT_UNDERSTOOD};

use paragpu_protocol::handshake::VERSION;

use crate::error::Error;

/// A connection to the daemon's control socket.
#[derive(Debug)]
pub struct Control {
    client: Client,
    path: PathBuf,
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
            Ok(client) => Ok(Self { client, path }),
            Err(source) if source.kind() == std::io::ErrorKind::WouldBlock => {
                Err(Error::Silent { path })
            }
            Err(reason) => Err(Error::NoDaemon { path, reason }),
        }
    }

    /// One question that the daemon answers at once, and its answer.
    pub fn ask(&self, request: &Request) -> Result<Response, Error> {
        self.understood(self.client.ask(request))
    }

    /// An order and its end, however long it takes; `progress` sees what comes before.
    pub fn order(
        &self,
        request: &Request,
        progress: impl FnMut(Progress),
    ) -> Result<Response, Error> {
        self.understood(self.client.order(request, progress))
    }

    fn understood(&self, answer: Result<Response, FrameError>) -> Result<Response, Error> {
        match answer {
            Ok(Response::Error { error }) => Err(match error.starts_with(NOT_UNDERSTOOD) {
                true => self.other().unwrap_or(Error::Refused(error)),
                false => Error::Refused(error),
            }),
            Ok(response) => Ok(response),
            Err(FrameError::Silent(_)) => Err(Error::Silent {
                path: self.path.clone(),
            }),
            // The stream ended, within a line or before one, or is broken.
            Err(FrameError::Io(_) | FrameError::Length) => Err(Error::Ended {
                path: self.path.clone(),
            }),
            Err(error @ FrameError::Content(_)) => {
                Err(self.other().unwrap_or_else(|| error.into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A warning about a daemon of another release; `None` if it is the same. The
    /// question for the version is the same in every release.
    fn other(&self) -> Option<Error> {
        let client = Client::connect(&self.path).ok()?;
        let Ok(Response::Version {
            daemon, protocol, ..
        }) = client.ask(&Request::Version {})
        else {
            return None;
        };
        let (release, own) = (env!("CARGO_PKG_VERSION"), VERSION.to_string());
        ((daemon.as_str(), &protocol) != (release, &own)).then(|| {
            let plain = |text: &str| -> String {
                let text = text.chars().filter(|letter| !letter.is_control());
                text.take(40).collect()
            };
            Error::Refused(format!(
                "paragpud is release {} with protocol {}, this paragpu is release {release} with \
                 protocol {own}, and they do not understand each other here: install the same \
                 release, and restart paragpud",
                plain(&daemon),
                plain(&protocol),
            ))
        })
    }
}

/// For an answer to another question.
pub fn unexpected() -> Error {
    let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
    Error::Answer(FrameError::Io(error))
}
