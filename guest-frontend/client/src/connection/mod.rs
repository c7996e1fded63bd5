//! A session's connection, and the ones that replace it: posting and calling.
//! Waiting threads read the replies: [`receive`].

pub(crate) mod advice;
mod batch;
pub mod connect;
mod pace;
mod pause;
mod pinned;
mod question;
mod receive;
mod reconnect;
mod reply_slots;
mod report_once;
mod signal;
mod state;
mod turns;

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use paragpu_communicator::{
    CachePadded, Connection, Error as TravelError, Receiver, Retained, Sender, Wait, Wake,
};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, Control, FrameHeader};
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::status::Status;
use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::notice::notice;
use crate::statistics;
use crate::sys::memory::{HostRows, HostSlice};
use crate::sys::process;
use crate::sys::uncancelled::Uncancelled;
use crate::thread_number::ThreadNumber;
pub(crate) use pinned::{Content, PinnedMemory};
pub(crate) use question::Question;
pub(crate) use reconnect::{Recovery, listen};
use reply_slots::{Slots, with_slot};
pub use report_once::report_once;
pub(crate) use signal::Signal;
use state::LinkState;
use turns::{Turn, Turns};

/// The result of every call once the connection is lost. CUDA documents it as
/// leaving the process in a state in which all further work fails.
pub const LOST: Status = Status::LAUNCH_FAILED;

/// Receives the ids of host functions to run.
pub type HostFunctionSink = Box<dyn Fn(u64) + Send + Sync>;

/// Maximum bytes of calls kept for the next connection. Beyond that, a call waits for an
/// acknowledgement of the host.
const MAX_KEPT: usize = 4 << 20;
/// Bytes kept between two checks of the host's acknowledgements.
const CHECK_INTERVAL: usize = 64 << 10;
/// Bytes kept beyond which acknowledgements are read even if no thread waits.
const HIGH_WATER: usize = ACKNOWLEDGE_EVERY;
/// Maximum wait for frames before other conditions are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The sending half. Calls are sent in the order of their positions.
struct Outgoing {
    sender: Arc<dyn Sender>,
    /// Position of the call sent last.
    sequence: u64,
    /// Calls that the host has not acknowledged.
    kept: Retained<HostSlice>,
    /// How much may be kept before the next check.
    look: usize,
    /// Number of earlier connections.
    generation: u64,
    /// The only thread that may send, if there is one.
    paused_by: Option<ThreadNumber>,
}

/// The receiving half.
struct Incoming {
    receiver: Box<dyn Receiver>,
    /// Counted frames received.
    received: u64,
    /// Bytes of these that are not acknowledged to the host.
    untold: usize,
    generation: u64,
}

/// Positions in the session's sequence of calls.
#[derive(Default)]
struct Positions {
    /// The last call that was given to a sender. Stored before, so that no reply precedes it.
    issued: AtomicU64,
    /// The last call that launches must follow. Stored before the call returns to its thread.
    sent: AtomicU64,
    /// Sequence number of the last call that it executed.
    executed: AtomicU64,
    /// Sequence number of the last call that it received.
    taken: AtomicU64,
}

/// How threads wait.
struct Patience {
    /// How long they poll before they sleep.
    spin: Duration,
    /// They sleep at once.
    sleeps: AtomicBool,
}

/// Who else uses the session.
#[derive(Default)]
struct Users {
    host_functions: OnceLock<HostFunctionSink>,
    /// The pinned memory, for a host that does not share the session's window.
    pinned: OnceLock<Weak<dyn PinnedMemory>>,
    /// Another session has memory of this one, or had it, or the reverse.
    share_memory: AtomicBool,
}

impl Users {
    /// Lets callbacks run, which learn of the error. No host function has this number.
    fn work_failed(&self) {
        if let Some(sink) = self.host_functions.get() {
            sink(0);
        }
    }
}

/// The connection of a session, across reconnects. What every call writes is apart from what it
/// only reads.
pub struct Link {
    outgoing: CachePadded<Mutex<Outgoing>>,
    /// The order of senders that contend.
    turns: CachePadded<Turns>,
    incoming: CachePadded<Mutex<Incoming>>,
    /// Frames wait in the sender for a flush.
    gathers: AtomicBool,
    /// The sender, so that it can be closed and used while threads wait in it.
    current: Mutex<Arc<dyn Sender>>,
    waker: Mutex<Arc<dyn Wake>>,
    /// The process that made the current connection.
    process: AtomicU32,
    /// How the session reconnects, if it can.
    recovery: Option<Recovery>,
    slots: Arc<Slots>,
    /// Slots of the threads that sleep.
    parked: Mutex<Vec<u16>>,
    state: LinkState,
    /// A device error after which the context is unusable.
    sticky: AtomicU32,
    positions: CachePadded<Positions>,
    patience: Patience,
    users: Users,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Link")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// A call to send.
#[derive(Clone, Copy)]
struct Message<'a> {
    number: u16,
    /// The reply slot; 0 for none.
    slot: u16,
    payload: &'a [&'a [u8]],
    /// The last bytes, if they are not copied.
    lent: Option<HostSlice>,
    /// Launches need not follow it.
    is_unfollowed: bool,
}

impl<'a> Message<'a> {
    fn new(number: u16, slot: u16, payload: &'a [&'a [u8]]) -> Self {
        Self {
            number,
            slot,
            payload,
            lent: None,
            is_unfollowed: false,
        }
    }

    fn length(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// While it lives, calls may be posted with borrowed bytes. When it is dropped, the
/// bytes may be reused.
pub(crate) struct Lending<'a>(&'a Link);

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        // Bytes that the host has acknowledged meanwhile need not be copied.
        self.0.drain(Wait::Poll);
        let mut outgoing = self.0.outgoing.lock();
        self.0.forget_all(&mut outgoing);
        outgoing.kept.own();
    }
}

thread_local! {
    static HEAD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static REPLY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static DETAIL: Cell<String> = const { Cell::new(String::new()) };
}

/// The host's details on the calling thread's last failed call, beyond its status, such
/// as a loader's log. May be empty.
#[must_use]
pub fn take_detail() -> String {
    DETAIL.try_with(Cell::take).unwrap_or_default()
}

/// Encodes into memory that the thread keeps.
fn encoded<'a, C: WireCall<'a>, R>(call: &C, send: impl FnOnce(&[&[u8]]) -> R) -> R {
    let mut head = HEAD.try_with(Cell::take).unwrap_or_default();
    head.clear();
    let tail = call.encode(&mut head);
    let result = send(&[&head, tail]);
    let _ = HEAD.try_with(|kept| kept.set(head));
    result
}

impl Link {
    /// A link over `connection` for queries. A thread that waits while another one reads
    /// spins for `spin` before it sleeps. The end of the link is not printed: the next
    /// query opens another link, and monitors draw on the terminal.
    #[must_use]
    pub fn for_queries(connection: Connection, spin: Duration) -> Self {
        Self {
            state: LinkState::connected(false),
            ..Self::with_recovery(connection, spin, None)
        }
    }

    /// The link of a session, with `recovery` to reconnect.
    pub(crate) fn with_recovery(
        connection: Connection,
        spin: Duration,
        recovery: Option<Recovery>,
    ) -> Self {
        let waker = connection.receiver.waker();
        Self {
            turns: CachePadded::default(),
            outgoing: CachePadded(Mutex::new(Outgoing {
                sender: Arc::clone(&connection.sender),
                sequence: 0,
                kept: Retained::default(),
                look: CHECK_INTERVAL,
                generation: 0,
                paused_by: None,
            })),
            incoming: CachePadded(Mutex::new(Incoming {
                receiver: connection.receiver,
                received: 0,
                untold: 0,
                generation: 0,
            })),
            gathers: AtomicBool::new(connection.sender.gathers()),
            current: Mutex::new(connection.sender),
            waker: Mutex::new(waker),
            process: AtomicU32::new(process::note_connected()),
            recovery,
            slots: Arc::new(Slots::new()),
            parked: Mutex::new(Vec::new()),
            state: LinkState::connected(true),
            sticky: AtomicU32::new(0),
            positions: CachePadded::default(),
            patience: Patience {
                spin,
                sleeps: AtomicBool::new(false),
            },
            users: Users::default(),
        }
    }

    /// Sets the pinned memory to send to hosts that lack it.
    pub(crate) fn bind(&self, pinned: Weak<dyn PinnedMemory>) {
        let _ = self.users.pinned.set(pinned);
    }

    fn pinned(&self) -> Option<Arc<dyn PinnedMemory>> {
        self.users.pinned.get().and_then(Weak::upgrade)
    }

    /// How long a thread that waits polls before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        match self.sleeps() {
            true => Duration::ZERO,
            false => self.patience.spin,
        }
    }

    /// Sets whether threads that wait sleep at once.
    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        self.patience.sleeps.store(sleeps, Ordering::Relaxed);
    }

    /// Whether they do.
    pub(crate) fn sleeps(&self) -> bool {
        self.patience.sleeps.load(Ordering::Relaxed)
    }

    /// Notes that another session gets memory of this one, or the reverse.
    pub(crate) fn note_shared_memory(&self) {
        self.users.share_memory.store(true, Ordering::Relaxed);
    }

    /// Whether work of other sessions, which nothing orders behind this one's, may use memory
    /// that this session's work writes.
    pub(crate) fn shares_memory(&self) -> bool {
        self.users.share_memory.load(Ordering::Relaxed)
    }

    /// Sets the receiver of host functions to run. Only the first call has an
    /// effect.
    pub fn on_host_function(&self, sink: HostFunctionSink) {
        let _ = self.users.host_functions.set(sink);
    }

    /// Success, or the error that every call returns from now on.
    ///
    /// # Errors
    /// [`LOST`], `DEINITIALIZED`, or a sticky device error.
    pub fn check(&self) -> Result<()> {
        self.state.check()?;
        Status(self.sticky.load(Ordering::Relaxed)).ok()
    }

    /// Sends a call, waiting only for room. Returns its position in the session.
    ///
    /// # Errors
    /// As [`check`](Self::check). A later call that waits reports the call's own result.
    pub fn post<'a, C: WireCall<'a>>(&self, call: &C) -> Result<u64> {
        self.post_and(call, None, |_| {})
    }

    /// As [`post`](Self::post). Passes the position to `note` before any later call is
    /// sent. If `lent` is set, the call's last bytes are not copied: they must stay
    /// unchanged until [`Lending`] ends.
    pub(crate) fn post_and<'a, C: WireCall<'a>>(
        &self,
        call: &C,
        lent: Option<HostSlice>,
        note: impl FnMut(u64),
    ) -> Result<u64> {
        self.post_as(call, |message| Message { lent, ..message }, note)
    }

    /// As [`post_and`](Self::post_and), for a call that launches need not follow.
    pub(crate) fn post_unfollowed<'a, C: WireCall<'a>>(
        &self,
        call: &C,
        note: impl FnMut(u64),
    ) -> Result<u64> {
        let is_unfollowed = true;
        self.post_as(
            call,
            |message| Message {
                is_unfollowed,
                ..message
            },
            note,
        )
    }

    /// Posts a call as `change` has its message.
    fn post_as<'a, C: WireCall<'a>>(
        &self,
        call: &C,
        change: impl for<'m> FnOnce(Message<'m>) -> Message<'m>,
        note: impl FnMut(u64),
    ) -> Result<u64> {
        self.check()?;
        statistics::count_posted();
        encoded(call, |payload| {
            let message = Message::new(C::INFO.number, 0, payload);
            self.send(change(message), note)
        })
    }

    /// Begins lending bytes.
    pub(crate) fn lending(&self) -> Lending<'_> {
        Lending(self)
    }

    /// Passes a file to the host: [`Sender::pass_file`].
    ///
    /// # Errors
    /// If the connection cannot carry files, or is lost.
    pub(crate) fn pass_file(
        &self,
        number: u64,
        file: BorrowedFd<'_>,
    ) -> std::result::Result<(), TravelError> {
        self.sender().pass_file(number, file)
    }

    /// Makes sure that posted calls are sent.
    ///
    /// # Errors
    /// [`LOST`].
    pub fn flush(&self) -> Result<()> {
        while self.gathers.load(Ordering::Relaxed) {
            let (sender, generation) = {
                let outgoing = self.outgoing.lock();
                (Arc::clone(&outgoing.sender), outgoing.generation)
            };
            match sender.flush() {
                Ok(()) => return Ok(()),
                Err(error) => self.recover(generation, &error)?,
            }
        }
        // If the connection is lost, the calls are resent over the next one.
        Ok(())
    }

    /// Sends a call and waits for its reply.
    ///
    /// # Errors
    /// The error of the call or of an earlier posted one; as
    /// [`check`](Self::check).
    pub fn call<'a, C, R>(&self, call: &C) -> Result<R>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = R>,
    {
        self.call_with(call, None, |reply| reply)
    }

    /// As [`call`](Self::call), with a destination for returned data and a function that
    /// reads the reply.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with<'a, C, R>(
        &self,
        call: &C,
        destination: Option<HostRows>,
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> Result<R>
    where
        C: WireCall<'a>,
    {
        self.call_within(call, self.spin(), destination, |_| {}, read)
    }

    /// As [`call`](Self::call), but the thread sleeps until the reply arrives.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn call_asleep<'a, C, R>(&self, call: &C) -> Result<R>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = R>,
    {
        self.call_within(call, Duration::ZERO, None, |_| {}, |reply| reply)
    }

    /// As [`call_with`](Self::call_with), polling for `spin` before the thread sleeps. `then`
    /// gets the call's slot once it was sent, before the thread waits.
    fn call_within<'a, C, R>(
        &self,
        call: &C,
        spin: Duration,
        destination: Option<HostRows>,
        then: impl FnOnce(u16),
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> Result<R>
    where
        C: WireCall<'a>,
    {
        let send = |index| {
            let sent = self.send_call(call, index)?;
            then(index);
            Ok(sent)
        };
        self.exchange(
            C::INFO.number,
            spin,
            destination,
            send,
            |payload| match reply::decode::<C::Reply<'_>>(payload) {
                Ok(Reply::Done(value)) => Ok(read(value)),
                Ok(Reply::Failed(status, failure)) => Err(self.failed(status, failure.detail.0)),
                Err(error) => Err(self.end(
                    LOST,
                    &format!("the reply to {} cannot be read: {error}", C::INFO.name),
                )),
            },
        )
    }

    /// Sends a call whose reply belongs to a slot. Returns its position.
    fn send_call<'a, C: WireCall<'a>>(&self, call: &C, slot: u16) -> Result<u64> {
        encoded(call, |payload| {
            self.send(Message::new(C::INFO.number, slot, payload), |_| {})
        })
    }

    /// Sends a call that another library of the process encoded; returns the reply's bytes.
    pub(crate) fn forward(&self, number: u16, payload: &[u8]) -> Result<Vec<u8>> {
        let send = |index| self.send(Message::new(number, index, &[payload]), |_| {});
        self.exchange(number, self.spin(), None, send, |reply| Ok(reply.to_vec()))
    }

    /// Sends a call with `send`, waits for its reply, polling for `spin` at first, and reads it
    /// with `read`.
    fn exchange<R>(
        &self,
        number: u16,
        spin: Duration,
        destination: Option<HostRows>,
        send: impl FnOnce(u16) -> Result<u64>,
        read: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        self.check()?;
        let _waiting = statistics::count_synchronous(number);
        with_slot(&self.slots, |index, slot| {
            slot.begin(
                number,
                destination,
                REPLY.try_with(Cell::take).unwrap_or_default(),
            );
            if let Err(status) = send(index).and_then(|_| self.flush()) {
                slot.take();
                return Err(status);
            }
            self.wait(index, slot, spin);
            let Some(payload) = slot.take() else {
                return Err(self.check().err().unwrap_or(LOST));
            };
            let result = read(&payload);
            let _ = REPLY.try_with(|kept| kept.set(payload));
            result
        })
        .unwrap_or(Err(Status::OUT_OF_MEMORY))
    }

    /// Without a lock: at least the position of every call that returned before this one, in
    /// whatever thread, except for launches of threads that say who they are.
    pub(crate) fn sent(&self) -> u64 {
        self.positions.sent.load(Ordering::Relaxed)
    }

    /// The last position that the host has executed.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.positions.executed.load(Ordering::Relaxed)
    }

    /// Ends the session with a goodbye to the host. In a child that has its parent's
    /// connection, it ends here only.
    pub fn close(&self) {
        if self.state.end(Status::DEINITIALIZED).is_ok() && self.is_own() {
            let sender = self.sender();
            let _ = sender.try_send(Control::Goodbye.kind(), 0, Some(0), &[]);
            let _ = sender.flush();
        }
        self.disconnect(&*self.sender());
        for slot in self.slots.all() {
            slot.fail();
        }
    }

    /// Whether this process made the current connection. A child of `_Fork` or clone(2), of
    /// which no handler learns, has its parent's.
    fn is_own(&self) -> bool {
        self.process.load(Ordering::Relaxed) == std::process::id()
    }

    /// Closes a sender of this link, unless it is the parent's.
    fn disconnect(&self, sender: &dyn Sender) {
        if self.is_own() {
            sender.close();
        }
    }

    /// The sender of the current connection.
    fn sender(&self) -> Arc<dyn Sender> {
        Arc::clone(&*self.current.lock())
    }

    fn send(&self, message: Message<'_>, mut note: impl FnMut(u64)) -> Result<u64> {
        let Message {
            number,
            slot,
            payload,
            lent,
            is_unfollowed,
        } = message;
        let mut turn = None;
        let mut polls = 0;
        loop {
            if turn.is_none() && self.turns.is_taken() {
                turn = self.turns.take(self.patience.spin);
            }
            let mut outgoing = match self.outgoing.try_lock() {
                Some(outgoing) => outgoing,
                None if self.queue_up(&mut turn) => continue,
                None => self.outgoing.lock(),
            };
            if outgoing.is_paused() {
                drop(outgoing);
                // The thread that paused takes turns, too.
                turn = None;
                self.await_resumed();
                continue;
            }
            if self.recovery.is_some() && self.is_full(&mut outgoing) {
                drop(outgoing);
                if self.queue_up(&mut turn) {
                    continue;
                }
                self.await_taken()?;
                continue;
            }
            let sequence = outgoing.sequence + 1;
            let sender = &outgoing.sender;
            self.positions.issued.store(sequence, Ordering::Relaxed);
            let sent = match lent {
                Some(_) if sender.gathers() => sender.send(number, slot, Some(sequence), payload),
                _ => sender.try_send(number, slot, Some(sequence), payload),
            };
            match sent {
                Ok(_) => {
                    outgoing.sequence = sequence;
                    if !is_unfollowed {
                        self.positions.sent.store(sequence, Ordering::Relaxed);
                    }
                    note(sequence);
                    let much = self.recovery.is_some() && self.keep(outgoing, message);
                    // Others need not wait while this thread reads.
                    drop(turn);
                    if much {
                        self.drain(Wait::Poll);
                    }
                    return Ok(sequence);
                }
                Err(TravelError::Full) => {
                    let sender = Arc::clone(&outgoing.sender);
                    let generation = outgoing.generation;
                    drop(outgoing);
                    if self.queue_up(&mut turn) {
                        continue;
                    }
                    if polls < turns::EAGER_POLLS && self.turns.has_several() {
                        polls += 1;
                        std::hint::spin_loop();
                        continue;
                    }
                    // The host may itself wait for room towards the guest.
                    self.drain(Wait::Poll);
                    if let Err(error) = sender.wait_for_room(message.length()) {
                        self.recover(generation, &error)?;
                    }
                }
                Err(error) => {
                    let generation = outgoing.generation;
                    drop(outgoing);
                    self.recover(generation, &error)?;
                }
            }
        }
    }

    /// Queues a thread that cannot send. Returns true if the thread should retry because
    /// it just got its turn.
    fn queue_up<'a>(&'a self, turn: &mut Option<Turn<'a>>) -> bool {
        if turn.is_some() {
            return false;
        }
        *turn = self.turns.take(self.patience.spin);
        turn.is_some()
    }

    /// Keeps the call that was just sent. Returns whether acknowledgements should be read.
    fn keep(&self, mut outgoing: MutexGuard<'_, Outgoing>, message: Message<'_>) -> bool {
        let sequence = outgoing.sequence;
        let taken = self.positions.taken.load(Ordering::Relaxed);
        if taken.saturating_add(1) >= sequence {
            // All earlier calls are acknowledged, so their memory is reused.
            outgoing.kept.clear();
            outgoing.look = CHECK_INTERVAL;
        }
        let header = FrameHeader::new(message.number, message.slot, sequence, message.length());
        if let Ok(header) = header {
            match (message.lent, message.payload) {
                (Some(lent), [start, _]) => outgoing.kept.push_lent(header, start, lent),
                (_, payload) => outgoing.kept.push(header, payload),
            }
        }
        if outgoing.kept.len() < outgoing.look {
            return false;
        }
        self.forget(&mut outgoing);
        outgoing.kept.len() >= HIGH_WATER
    }

    /// Drops acknowledged calls, except for a few.
    fn forget(&self, outgoing: &mut Outgoing) {
        let taken = self.positions.taken.load(Ordering::Relaxed);
        outgoing.kept.drop_until(taken);
        outgoing.look = outgoing.kept.len() + CHECK_INTERVAL;
    }

    /// Drops all acknowledged calls.
    fn forget_all(&self, outgoing: &mut Outgoing) {
        let taken = self.positions.taken.load(Ordering::Relaxed);
        outgoing.kept.trim(|header| header.sequence <= taken);
    }

    /// Whether the kept calls reach the limit, so that no call may follow.
    fn is_full(&self, outgoing: &mut Outgoing) -> bool {
        if outgoing.kept.len() < MAX_KEPT {
            return false;
        }
        // The host acknowledges calls by their bytes, so it may never acknowledge the last ones
        // of a block.
        self.forget_all(outgoing);
        outgoing.look = outgoing.kept.len() + CHECK_INTERVAL;
        outgoing.kept.len() >= MAX_KEPT
    }

    /// Waits briefly for an acknowledgement.
    fn await_taken(&self) -> Result<()> {
        let _uncancelled = Uncancelled::begin();
        self.state.check()?;
        if !self.drain(Wait::Until(Instant::now() + POLL_INTERVAL)) {
            std::thread::sleep(POLL_INTERVAL / 10);
        }
        Ok(())
    }

    /// Records a failed call and returns its error.
    fn failed(&self, status: Status, detail: &str) -> Status {
        let is_first = status.is_sticky()
            && self
                .sticky
                .compare_exchange(0, status.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_first {
            self.users.work_failed();
            if !detail.is_empty() {
                notice(format_args!("{status}: {detail}"));
            }
            if let Some(advice) = advice::after_failure(status) {
                notice(format_args!("{advice}"));
            }
        }
        if status == Status::NOT_SUPPORTED {
            report_once(status, detail);
        }
        let _ = DETAIL.try_with(|kept| kept.set(detail.to_owned()));
        status
    }

    fn end_lost(&self, error: &TravelError) -> Status {
        self.end(LOST, &crate::error::chain(error))
    }

    /// Ends the link with `status`. For a session, prints the reason once.
    pub(crate) fn end(&self, status: Status, why: &str) -> Status {
        match self.state.end(status) {
            Ok(()) => {
                if self.state.is_announced() {
                    notice(format_args!(
                        "the session with the GPU's host is over: {why}; \
                         every further CUDA call fails. Look at the host's log (journalctl -u paragpud)."
                    ));
                }
                self.disconnect(&*self.sender());
                for slot in self.slots.all() {
                    slot.fail();
                }
                status
            }
            Err(earlier) => earlier,
        }
    }
}
