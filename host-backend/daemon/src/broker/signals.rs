//! Signals that stop the daemon or make it reread its configuration.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::Error;

/// Signals that came, and whether the daemon ends.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: UnixStream,
    reload: UnixStream,
    /// The daemon was told to end.
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

    /// Readable once a signal to end came.
    pub fn terminate(&self) -> BorrowedFd<'_> {
        self.terminate.as_fd()
    }

    /// Readable once a signal to read the configuration came.
    pub fn reload(&self) -> BorrowedFd<'_> {
        self.reload.as_fd()
    }

    /// Takes a signal to end; whether it is the first.
    pub fn take_terminate(&mut self) -> bool {
        let came = matches!(drain(&self.terminate), Ok(1..));
        came && !std::mem::replace(&mut self.ending, true)
    }

    /// Takes a signal to read the configuration; whether there was one.
    pub fn take_reload(&self) -> bool {
        matches!(drain(&self.reload), Ok(1..))
    }

    /// Was the daemon told to end?
    pub fn is_ending(&self) -> bool {
        self.ending
    }
}

/// A socket that is readable once one of `signals` came.
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

/// Takes what a signal wrote.
fn drain(mut socket: &UnixStream) -> std::io::Result<usize> {
    std::io::Read::read(&mut socket, &mut [0; 64])
}
