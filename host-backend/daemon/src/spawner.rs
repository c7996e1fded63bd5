//! Starts workers from a thread with a separate descriptor table.
//!
//! Until exec, a child process has its parent's descriptors, and it may be the last to
//! close them. A hostile guest could leave a descriptor in its connection whose close
//! blocks, and so delay that worker. This thread has no connections.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd as _;
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};

use paragpu_control::frame::Message;
use paragpu_control::socket::{Control, ControlError, Inbox};
use paragpu_control::spawn::Spawn;
use serde::{Deserialize, Serialize};

use crate::sys;

/// The daemon's side of the thread.
#[derive(Debug)]
pub struct Spawner {
    orders: Sender<Spawn>,
    started: Receiver<Result<Child, ControlError>>,
    /// Receives the daemon's ends of control sockets. They cannot pass through the channel:
    /// the thread has its own descriptor table.
    gate: Control,
}

/// The message that carries a control socket.
#[derive(Debug, Serialize, Deserialize)]
struct SocketFollows {}

impl Message for SocketFollows {
    const MAX_LEN: usize = 16;
}

impl Spawner {
    /// Starts the thread. It closes all descriptors of the daemon in its own table, and
    /// returns when that is done.
    pub fn start() -> io::Result<Self> {
        let broken = |error: ControlError| io::Error::other(error.to_string());
        let (gate, theirs) = Control::pair().map_err(broken)?;
        let (orders, receiver) = channel();
        let (results, started) = channel();
        let (apart, is_apart) = channel();
        let run = move || {
            // Signal handlers write to a descriptor that this thread closes, so a signal
            // handled here would be lost.
            let kept = sys::block_signals().and_then(|()| sys::keep_only(theirs.as_fd()));
            let works = kept.is_ok();
            // `start` waits for this, so that no connection exists before the table is
            // unshared.
            let _ = apart.send(kept);
            if works {
                serve(&receiver, &results, &theirs);
            }
        };
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(run)?;
        is_apart
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(Self {
            orders,
            started,
            gate,
        })
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// As [`Spawn::start`]; [`ControlError::Closed`] if the thread has ended.
    pub fn spawn(&self, spawn: &Spawn) -> Result<(Child, Control), ControlError> {
        if self.orders.send(spawn.clone()).is_err() {
            return Err(ControlError::Closed);
        }
        let child = self.started.recv().map_err(|_| ControlError::Closed)??;
        let mut inbox = Inbox::default();
        self.gate.receive(&mut inbox, true)?;
        let socket = inbox.fds.pop().ok_or(ControlError::Closed)?;
        Ok((child, Control::from_fd(socket)))
    }
}

fn serve(orders: &Receiver<Spawn>, results: &Sender<Result<Child, ControlError>>, gate: &Control) {
    for spawn in orders {
        let outcome = spawn.start().and_then(|(mut child, control)| {
            if let Err(error) = gate.send(&SocketFollows {}, &[control.as_fd()]) {
                // Without its control socket, the worker could not be told to end.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
            Ok(child)
        });
        if results.send(outcome).is_err() {
            return;
        }
    }
}
