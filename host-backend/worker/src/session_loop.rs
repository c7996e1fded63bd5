//! The loop that serves a session.
//!
//! One thread executes all calls in order. It never blocks in the device: a call
//! that has to wait becomes pending ([`crate::completion`]), and the calls of other
//! guest threads continue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error as TravelError, Receiver, Sender as _, Wait};
use paragpu_protocol::frame::Control;

use crate::error::SessionEnd;
use crate::intake::BATCH;
use crate::session::link::{Link, Reconnected};
use crate::session::pacer::Pace;
use crate::session::sender::DurableSender;
use crate::session::transfer::TaskKind;
use crate::session::{Session, Setup};
use crate::transfer::checkpoint::Checkpoint;
use crate::transfer::orders::{AWAY, DISCONNECTED, Departure, Order};
use crate::transfer::source::Source;

/// Maximum wait for calls while the session moves to another worker.
const MOVING: Duration = Duration::from_micros(50);
/// Maximum time for the last frames to a guest that does not read.
const PARTING: Duration = Duration::from_secs(1);
/// Maximum time to look for a goodbye among the frames of a lost connection.
const FAREWELL: Duration = Duration::from_secs(1);
/// Maximum wait for calls between two attempts to stop the session.
const RESTING: Duration = Duration::from_millis(10);

/// The parts of the frame that prints on the program's standard error why its session ended.
pub(crate) fn parting_words(reason: &dyn std::fmt::Display) -> [Vec<u8>; 2] {
    let line = format!("paragpu: the host ended the session: {reason}\n");
    [2_u32.to_le_bytes().to_vec(), line.into_bytes()]
}

/// Closes the connection once the guest's side has accepted all frames: the process ends next, and
/// with it the thread that writes them in the background.
pub(crate) fn part(sender: &DurableSender) {
    let _ = sender.settle(Instant::now() + PARTING);
    sender.close();
}

impl Link {
    fn report_end(&self, end: &SessionEnd) {
        let [stream, line] = parting_words(end);
        self.try_send(Control::Output.kind(), &[&stream, &line]);
    }
}

impl Session {
    /// Serves a whole connection.
    pub fn run(setup: Setup, connection: Connection) -> SessionEnd {
        Self::new(setup, connection.sender, connection.window).serve(connection.receiver)
    }

    /// Serves the session until it ends, and closes the connection. The device's
    /// resources are freed when the process exits.
    pub fn serve(&mut self, mut receiver: Box<dyn Receiver>) -> SessionEnd {
        self.set_waker(receiver.as_ref());
        let end = loop {
            // First the orders: one that came before the receiver could be woken ends no wait.
            let turned = match self.carry_out_orders(receiver.as_mut()) {
                Ok(()) if self.transfer.holds_calls() => {
                    // No call waits for the next step of the move: all do.
                    self.transfer.caught_up();
                    std::thread::sleep(MOVING);
                    Ok(())
                }
                Ok(()) => self.turn(receiver.as_mut()),
                ended => ended,
            };
            match turned {
                Ok(()) => {}
                // Another process owns the connection now. Dropping the receiver
                // would close it.
                Err(SessionEnd::Moved) => {
                    std::mem::forget(receiver);
                    return SessionEnd::Moved;
                }
                Err(SessionEnd::Connection(error)) if error.is_loss() => {
                    if self.said_goodbye(receiver.as_mut()) {
                        break SessionEnd::Goodbye;
                    }
                    match self.resume(error) {
                        Ok(next) => {
                            self.set_waker(next.as_ref());
                            receiver = next;
                        }
                        Err(end) => break end,
                    }
                }
                Err(end) => break end,
            }
        };
        self.objects.host_functions.close();
        if matches!(end, SessionEnd::PutAway) {
            // No goodbye: the guest will reconnect.
            self.replies.link.sender().cut();
            return end;
        }
        if !end.is_orderly() {
            self.replies.link.report_end(&end);
        }
        self.replies.link.try_send(Control::Goodbye.kind(), &[]);
        part(self.replies.link.sender());
        end
    }

    /// Sets the receiver whose waits orders and watches interrupt.
    fn set_waker(&self, receiver: &dyn Receiver) {
        self.transfer.orders().set_waker(receiver.waker());
        self.replies.completion.set_waker(receiver.waker());
    }

    /// Whether the guest said goodbye before the connection was lost. A guest that
    /// exits may close the connection with our frames unread; the loss is then
    /// reported before the last frames are received. If the guest reconnects
    /// instead, it resends the calls that are dropped here.
    fn said_goodbye(&mut self, receiver: &mut dyn Receiver) -> bool {
        self.recall(receiver);
        // A guest of `shm` can end the connection and still write frames.
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline
            && let Ok(Some(frame)) = receiver.receive(Wait::Poll)
        {
            if frame.header.kind == Control::Goodbye.kind() {
                return true;
            }
        }
        false
    }

    /// Continues over a new connection, between two calls.
    ///
    /// The order matters. The old connection is closed first, so that no thread of a host
    /// function still sends over it. Then the guest reports which frames it received, and
    /// [`resume`](crate::session::sender) resends the others before anything new, which
    /// keeps replies in order. Last, the guest sends the contents of pinned memory that
    /// only it has. Calls are executed only after that, because the next call may read
    /// that memory.
    pub(crate) fn resume(
        &mut self,
        mut lost: TravelError,
    ) -> Result<Box<dyn Receiver>, SessionEnd> {
        self.replies.link.sender().cut();
        self.pacing.leave();
        self.copies.inbound.clear();
        self.leave_guest_memory();
        let connection = loop {
            let Some(mut next) = self.await_guest(&lost) else {
                return Err(SessionEnd::Connection(lost));
            };
            let sender = Arc::clone(&next.connection.sender);
            if !self.replies.link.sender().resume(sender, next.received) {
                // The guest opened it before a connection that has already been
                // served.
                next.connection.sender.close();
                continue;
            }
            // The guest uses it from the welcome on, even if the connection is lost next.
            if let (Some(window), Some(offset)) = (&next.connection.window, next.window) {
                self.adopt_window(window, offset, Some(self.intake.received()));
            }
            // One that came before this connection was the current one did not close it.
            if self.replies.link.has_reconnected() {
                self.replies.link.sender().cut();
                continue;
            }
            match self.await_pinned(next.connection.receiver.as_mut()) {
                Ok(()) => break next.connection,
                Err(SessionEnd::Connection(error)) if error.is_loss() => {
                    self.replies.link.sender().cut();
                    lost = error;
                }
                Err(end) => return Err(end),
            }
        };
        self.intake.acknowledged();
        Ok(connection.receiver)
    }

    /// Waits for the guest's next connection; `None` if there will be none. Orders do not wait as
    /// long.
    fn await_guest(&mut self, lost: &TravelError) -> Option<Reconnected> {
        self.transfer.orders().set_away(true);
        if self.transfer.current().is_some() && self.replies.link.stays_away(lost, AWAY) {
            for task in self.transfer.take_tasks() {
                task.give_up(self, DISCONNECTED);
            }
        }
        let received = self.intake.received();
        let (host, tokens) = (&mut self.host, &mut self.copies.tokens);
        let mut finds = |window| {
            if host.forget_window(received, window) {
                tokens.forget();
            }
            host.sharing()
        };
        let next = self.replies.link.next(lost, received, &mut finds)?;
        self.transfer.orders().set_away(false);
        Some(next)
    }

    /// Carries out the daemon's orders, between two iterations of the loop.
    fn carry_out_orders(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        if self.transfer.is_due() {
            self.step(TaskKind::Move, receiver)?;
        }
        self.pacing.end_if_due(&mut self.gpu, &self.objects.streams);
        match self.transfer.take_order() {
            None => {}
            Some(Order::Checkpoint { target, end }) => {
                let checkpoint = Checkpoint::new(target, end);
                self.transfer.begin_checkpoint(Box::new(checkpoint));
            }
            Some(Order::Migrate(departure)) => self.begin_migration(departure),
        }
        self.step(TaskKind::Checkpoint, receiver)
    }

    /// Runs the next step of a migration or checkpoint, if one is in progress.
    pub(crate) fn step(
        &mut self,
        kind: TaskKind,
        receiver: &mut dyn Receiver,
    ) -> Result<(), SessionEnd> {
        match self.transfer.begin_step(kind) {
            None => Ok(()),
            Some(task) => {
                let stepped = task.step(self, receiver);
                self.transfer.end_step(kind, stepped)
            }
        }
    }

    /// Begins a migration, if the session can move.
    pub(crate) fn begin_migration(&mut self, departure: Departure) {
        self.transfer.begin_move();
        let source = Source::begin(self, departure);
        self.transfer.begun(source);
    }

    /// Maximum wait for calls while the worker has other tasks, such as pre-copy.
    fn longest_wait(&self) -> Option<Duration> {
        let task = self.transfer.current();
        let task = task.map(|task| match task.attempts().is_due() {
            true => MOVING,
            false => RESTING,
        });
        [task, self.pacing.longest_wait()]
            .into_iter()
            .flatten()
            .min()
    }

    /// One iteration: receives and executes some calls, and answers the pending
    /// ones that are complete.
    fn turn(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        if self.intake.is_empty() {
            self.take_early(receiver)?;
        }
        if !self.intake.is_empty() {
            return self.turn_with_queue(receiver);
        }
        // No call is pending. The next call or an order (`Orders::set_waker`) wakes
        // this thread.
        let quiet = self.replies.completion.is_empty() && self.copies.tokens.is_empty();
        let is_watched =
            !quiet && self.copies.tokens.is_empty() && self.replies.completion.is_watched();
        receiver.set_polls(!is_watched);
        let mut wait = match quiet {
            true if self
                .replies
                .completion
                .expects_call(self.replies.link.executed()) =>
            {
                Wait::Poll
            }
            true => Wait::Forever,
            false if is_watched => Wait::Forever,
            false => self.pace(),
        };
        if let Some(longest) = self.longest_wait() {
            let soon = Instant::now() + longest;
            wait = match wait {
                Wait::Forever => Wait::Until(soon),
                Wait::Until(end) => Wait::Until(end.min(soon)),
                Wait::Poll => Wait::Poll,
            };
        }
        for _ in 0..BATCH {
            if self.is_staging_full() {
                break;
            }
            if !self.take_next(receiver, wait)? {
                self.transfer.caught_up();
                self.objects.streams.caught_up();
                break;
            }
            self.replies.link.flush()?;
            self.replies.completion.pacer().reset();
            if !self.intake.is_empty() {
                break;
            }
            wait = Wait::Poll;
        }
        self.answer_completed()
    }

    /// Waits for the device if the device needs the processor. Returns how long to
    /// wait for the guest afterwards.
    pub(crate) fn pace(&mut self) -> Wait {
        let most = match self
            .replies
            .completion
            .pacer()
            .pace(self.gpu.computes_on_host())
        {
            Pace::Guest(wait) => return wait,
            Pace::Device(most) => most,
        };
        let began = Instant::now();
        let copies = self.copies.tokens.stream();
        if let Some(stream) = copies.or_else(|| self.replies.completion.stream()) {
            // If the work failed, polling it reports the error.
            let _ = self.gpu.stream_doze(stream, most);
        }
        if began.elapsed() > most / 20 {
            Wait::Poll
        } else {
            // The stream was idle, so the pending call waits for something else.
            Wait::Until(began + most)
        }
    }

    /// Answers the pending calls that are complete.
    pub(crate) fn answer_completed(&mut self) -> Result<(), SessionEnd> {
        if self.replies.completion.is_empty() && self.copies.tokens.is_empty() {
            return Ok(());
        }
        if self.complete()? {
            self.replies.completion.pacer().completed();
        } else if self.replies.completion.pacer().looks_for_output() {
            self.replies.forward_output(&mut self.gpu)?;
        }
        self.replies.link.flush()
    }
}
