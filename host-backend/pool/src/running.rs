//! A running agent, as its holder sees it.

use std::process::{Child, ChildStdin};
use std::time::{Duration, Instant};

use paragpu_control::lease::Lease;
use rustix::process::{Pid, Signal, kill_process};

use crate::agent::HEARTBEAT;

/// A running agent, and the lease and host that it has, if any.
pub(crate) struct RunningAgent {
    pub(crate) agent: Child,
    /// Its input. The agent ends when it is closed.
    pub(crate) words: Option<ChildStdin>,
    pub(crate) lease: Option<(Lease, String)>,
    /// It has sent a version that this side supports.
    pub(crate) greeted: bool,
    pub(crate) heard: Instant,
    /// It has ended, and its host may be lost.
    pub(crate) ended: bool,
    /// Number of consecutive failed probes of its silent host, one per [`HEARTBEAT`].
    pub(crate) unanswered: u32,
    /// Its host drains.
    pub(crate) drains: bool,
}

impl RunningAgent {
    /// One that was just started, and has said nothing.
    pub(crate) fn new(mut agent: Child) -> Self {
        Self {
            words: agent.stdin.take(),
            agent,
            lease: None,
            greeted: false,
            heard: Instant::now(),
            ended: false,
            unanswered: 0,
            drains: false,
        }
    }

    /// Ends it, in a thread, because an engine that cannot reach the host waits for it for a
    /// while.
    pub(crate) fn end(mut self) {
        self.words = None;
        std::thread::spawn(move || {
            if ends_within(&mut self.agent, 2 * HEARTBEAT) {
                return;
            }
            // On TERM, srun cancels a pending job. SIGKILL would leave the job queued.
            let _ = kill_process(Pid::from_child(&self.agent), Signal::TERM);
            if ends_within(&mut self.agent, 2 * HEARTBEAT) {
                return;
            }
            let _ = self.agent.kill();
            let _ = self.agent.wait();
        });
    }
}

/// Whether a process exits by itself within a time limit.
fn ends_within(process: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Ok(Some(_)) | Err(_) = process.try_wait() {
            return true;
        }
        std::thread::sleep(HEARTBEAT / 20);
    }
    false
}
