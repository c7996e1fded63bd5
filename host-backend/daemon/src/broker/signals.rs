//! Signals that stop the daemon or make it reread its configuration.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::Error;

/// Received signals, and whether the daemon is ending.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: UnixStream,
    reload: UnixStream,
    /// The daemon is ending.
    ending: bool,
}

impl Signals {
    /// Receives SIGTERM, SIGINT and SIGHUP.
    pub fn receive() -> Result<Self, Error> {
        Ok(Self {
            terminate: receiver(&[Signal::TERM, Signal::INT])?,
            reload: receiver(&[Signal::HUP])?,
            ending: false,
        })
    }

    /// Readable once SIGTERM or SIGINT arrived.
    pub fn terminate(&self) -> BorrowedFd<'_> {
        self.terminate.as_fd()
    }

    /// Readable once SIGHUP arrived.
    pub fn reload(&self) -> BorrowedFd<'_> {
        self.reload.as_fd()
    }

    /// Takes SIGTERM or SIGINT. Returns whether it is the first.
    pub fn take_terminate(&mut self) -> bool {
        let came = matches!(drain(&self.terminate), Ok(1..));
        came && !std::mem::replace(&mut self.ending, true)
    }

    /// Takes SIGHUP. Returns whether there was one.
    pub fn take_reload(&self) -> bool {
        matches!(drain(&self.reload), Ok(1..))
    }

    /// Whether the daemon is ending.
    pub fn is_ending(&self) -> bool {
        self.ending
    }
}

/// A socket that becomes readable when one of `signals` arrives.
fn receiver(signals: &[Signal]) -> Result<UnixStream, Error> {
    let failed = || "receive signals";
    let (read, write) = UnixStream::pair().map_err(Error::system(failed()))?;
    read.set_nonblocking(true)
        .map_err(Error::system(failed()))?;
    for signal in signals {
        let write = write.try_clone().map_err(Error::system(failed()))?;
        signal_hook::low_level::pipe::register(signal.as_raw(), write)
            .map_err(Error::system(failed()))?;
    }
    Ok(read)
}

/// Reads what signals wrote.
fn drain(mut socket: &UnixStream) -> std::io::Result<usize> {
    std::io::Read::read(&mut socket, &mut [0; 64])
}
