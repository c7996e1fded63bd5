//! The device over vfio-user, for QEMU 10.1 and later (`vfio-user-pci`) and
//! Cloud Hypervisor (`--user-device`).
//!
//! An ivshmem client has the device's descriptors and rings eventfds itself. A vfio-user
//! client sends each register access as a message and waits for the answer, which blocks
//! its virtual processor and all that waits for the same lock. So a thread does nothing but
//! answer: [`server`] translates accesses to the eventfds that an ivshmem client would
//! ring, and forwards interrupts to the eventfd that the client passed. The rest of the
//! process does not know the difference.

pub mod config_space;
pub mod connection;
pub mod guest_memory;
pub mod server;
#[cfg(test)]
mod tests;
pub mod wire;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::connection::{Connection, ConnectionEnd};
use self::server::{DeviceEnds, Server};
use crate::Error;
use crate::eventfd::EventFd;

/// How long a thread has to end once its client is disconnected.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A client and the thread that answers it. Dropping it ends both.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    ended: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Serves the client at the other end of `socket`. Ringing `interrupt` interrupts its
    /// guest.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn serve(socket: UnixStream, ends: DeviceEnds, interrupt: EventFd) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::system("serve the hypervisor")(errno)
        };
        // Sending answers may block; only this client's thread does.
        socket.set_nonblocking(false).map_err(failed)?;
        let ended = Arc::new(EventFd::new()?);
        let service = Service {
            connection: Connection::new(socket.try_clone().map_err(failed)?),
            server: Server::new(ends),
            interrupt,
        };
        let end = RungAtEnd(Arc::clone(&ended));
        let thread = std::thread::Builder::new()
            .name("vfio-user".into())
            .spawn(move || {
                let _end = end;
                service.run();
            })
            .map_err(failed)?;
        Ok(Self {
            socket,
            ended,
            thread: Some(thread),
        })
    }
}

impl Client {
    /// Whether the client is still connected.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the thread to end. A hostile hypervisor can make its eventfd blocking
    /// again and keep the thread in a write to it; the process must end nevertheless.
    fn ends_in_time(&self) -> bool {
        loop {
            let mut list = [PollFd::new(&self.ended, PollFlags::IN)];
            match poll(&mut list, Some(&PATIENCE)) {
                Err(Errno::INTR) => {}
                ready => return ready.is_ok_and(|count| count > 0),
            }
        }
    }
}

/// A descriptor that is readable once the client is gone.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if !self.ends_in_time() {
            tracing::warn!("the hypervisor's eventfd blocks: a thread that rings it stays behind");
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the rest of the process that the thread has ended, even by a panic.
struct RungAtEnd(Arc<EventFd>);

impl Drop for RungAtEnd {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The thread's state.
struct Service {
    connection: Connection,
    server: Server,
    interrupt: EventFd,
}

impl Service {
    fn run(mut self) {
        match self.serve() {
            Err(ConnectionEnd::Closed) => {}
            Err(ConnectionEnd::Broken(why)) => {
                tracing::warn!(why, "the hypervisor violates vfio-user and is disconnected");
            }
            Ok(never) => match never {},
        }
    }

    fn serve(&mut self) -> Result<std::convert::Infallible, ConnectionEnd> {
        loop {
            let mut list = [
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::new(&self.interrupt, PollFlags::IN),
            ];
            match poll(&mut list, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(ConnectionEnd::Closed),
            }
            let [asked, interrupts] = list.map(|descriptor| !descriptor.revents().is_empty());
            if interrupts {
                self.interrupt.clear();
                self.server.interrupt();
            }
            if asked {
                self.answer()?;
            }
        }
    }

    /// Answers one command, if it is complete. Only one, so that interrupts are not
    /// delayed.
    fn answer(&mut self) -> Result<(), ConnectionEnd> {
        let Some(command) = self.connection.receive()? else {
            return Ok(());
        };
        let header = command.header;
        let reply = self.server.carry_out(command);
        if let Err(error) = &reply {
            tracing::debug!(command = header.command, %error, "refused");
        }
        self.connection.answer(&header, reply)
    }
}
