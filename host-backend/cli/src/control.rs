//! Asks the daemon of this host.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use paragpu_config::host::Host;
use paragpu_daemon::admin::{Request, Response};

use crate::error::Error;

/// A connection to the daemon's control socket.
#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
}

/// Where the control socket is: `given`, or as host.toml says.
pub fn place(given: Option<&Path>) -> Result<PathBuf, Error> {
    match given {
        Some(path) => Ok(path.to_owned()),
        None => Ok(Host::load()?.daemon.control),
    }
}

impl Control {
    /// Connects to the socket at `given`, or as host.toml says.
    pub fn connect(given: Option<&Path>) -> Result<Self, Error> {
        let path = place(given)?;
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self { stream }),
            Err(source) => Err(Error::NoDaemon { path, source }),
        }
    }

    /// One question and its answer.
    pub fn ask(&self, request: &Request) -> Result<Response, Error> {
        self.order(request, |_, _, _, _| {})
    }

    /// An order and its end; `progress` is told the session, the phase, bytes
    /// carried and all bytes.
    pub fn order(
        &self,
        request: &Request,
        mut progress: impl FnMut(u64, u8, u64, u64),
    ) -> Result<Response, Error> {
        let mut line = serde_json::to_vec(request).map_err(|error| Error::Answer(error.into()))?;
        line.push(b'\n');
        (&self.stream).write_all(&line).map_err(Error::Answer)?;
        let mut lines = BufReader::new(&self.stream);
        loop {
            let mut answer = String::new();
            lines.read_line(&mut answer).map_err(Error::Answer)?;
            match serde_json::from_str(&answer) {
                Ok(Response::Error { error }) => return Err(Error::Refused(error)),
                Ok(Response::Progress {
                    session,
                    phase,
                    done,
                    all,
                }) => progress(session, phase, done, all),
                Ok(response) => return Ok(response),
                Err(error) => return Err(Error::Answer(error.into())),
            }
        }
    }
}

/// For an answer to another question.
pub fn unexpected() -> Error {
    Error::Answer(ErrorKind::InvalidData.into())
}
