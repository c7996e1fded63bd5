//! Calls over a connection: posting, calling, and routing what comes back.
//!
//! There is no thread that receives: of the threads that wait for a reply one
//! at a time, the leader, reads frames and routes them to the others' slots.
//! A leader that has its own reply wakes one of the others to lead.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use paragpu_communicator::{
    Connection, Error as TravelError, Frame, Receiver, Sender, Spin, Wait, Wake,
};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::Control;
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::slots::{Misrouted, Slots, lock, with_slot};
use crate::statistics;
use crate::sys::memory::Destination;
use crate::sys::process;

/// What every call returns once the connection is lost. CUDA documents it as
/// leaving the process in a state in which all further work fails alike.
pub const LOST: Status = Status::LAUNCH_FAILED;

/// Receives the ids of host functions to run.
pub type HostFunctionSink = Box<dyn Fn(u64) + Send + Sync>;

/// A connection with calls on it.
pub struct Link {
    sender: Arc<dyn Sender>,
    receiver: Mutex<Box<dyn Receiver>>,
    waker: Arc<dyn Wake>,
    slots: Arc<Slots>,
    /// Slots of the threads that sleep.
    parked: Mutex<Vec<u16>>,
    /// 0, or the status that every call returns from now on.
    ended: AtomicU32,
    /// A device error after which the context is unusable.
    sticky: AtomicU32,
    /// Highest call sequence that the host said it executed.
    acknowledged: AtomicU64,
    spin: Duration,
    host_functions: OnceLock<HostFunctionSink>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Link")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

thread_local! {
    static HEAD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static DETAIL: Cell<String> = const { Cell::new(String::new()) };
}

/// What the host said about the calling thread's last failed call, beyond its
/// status: a loader's log, for one. May be empty.
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
    /// Calls over `connection`; a thread that waits while another one reads
    /// spins for `spin` before it sleeps.
    #[must_use]
    pub fn new(connection: Connection, spin: Duration) -> Self {
        let waker = connection.receiver.waker();
        Self {
            sender: connection.sender,
            receiver: Mutex::new(connection.receiver),
            waker,
            slots: Arc::new(Slots::new()),
            parked: Mutex::new(Vec::new()),
            ended: AtomicU32::new(0),
            sticky: AtomicU32::new(0),
            acknowledged: AtomicU64::new(0),
            spin,
            host_functions: OnceLock::new(),
        }
    }

    /// Sets who is told to run host functions; the first one stays.
    pub fn on_host_function(&self, sink: HostFunctionSink) {
        let _ = self.host_functions.set(sink);
    }

    /// Success, or what every call ends with from now on.
    ///
    /// # Errors
    /// [`LOST`], `DEINITIALIZED`, or a sticky device error.
    pub fn check(&self) -> Result<()> {
        Status(self.ended.load(Ordering::Relaxed)).ok()?;
        Status(self.sticky.load(Ordering::Relaxed)).ok()
    }

    /// Sends a call without waiting for anything but room. Returns its
    /// position in the session.
    ///
    /// # Errors
    /// As [`check`](Self::check); what the call itself ends with is told by a
    /// later one that waits.
    pub fn post<'a, C: WireCall<'a>>(&self, call: &C) -> Result<u64> {
        self.check()?;
        statistics::count_posted();
        encoded(call, |payload| self.send(C::INFO.number, 0, payload))
    }

    /// Makes sure that what was posted is on its way.
    ///
    /// # Errors
    /// [`LOST`].
    pub fn flush(&self) -> Result<()> {
        self.sender.flush().map_err(|error| self.lose(&error))
    }

    /// Sends a call and waits for its reply.
    ///
    /// # Errors
    /// What the call, or one posted earlier, ended with; as
    /// [`check`](Self::check).
    pub fn call<'a, C, R>(&self, call: &C) -> Result<R>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = R>,
    {
        self.call_with(call, None, |reply| reply)
    }

    /// As [`call`](Self::call), with a place for the bytes that come back and
    /// a function that reads the reply.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with<'a, C, R>(
        &self,
        call: &C,
        destination: Option<Destination>,
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> Result<R>
    where
        C: WireCall<'a>,
    {
        self.check()?;
        statistics::count_synchronous();
        let number = C::INFO.number;
        with_slot(&self.slots, |index, slot| {
            slot.begin(number, destination);
            let sent = encoded(call, |payload| self.send(number, index, payload))
                .and_then(|_| self.flush());
            if let Err(status) = sent {
                slot.take();
                return Err(status);
            }
            self.wait(index, slot);
            let Some(payload) = slot.take() else {
                return Err(self.check().err().unwrap_or(LOST));
            };
            let result = match reply::decode::<C::Reply<'_>>(&payload) {
                Ok(Reply::Done(value)) => Ok(read(value)),
                Ok(Reply::Failed(status, failure)) => Err(self.failed(status, failure.detail.0)),
                Err(error) => Err(self.end(
                    LOST,
                    &format!("the reply to {} cannot be read: {error}", C::INFO.name),
                )),
            };
            slot.recycle(payload);
            result
        })
        .unwrap_or(Err(Status::OUT_OF_MEMORY))
    }

    /// Position of the call sent last.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.sender.last_sequence()
    }

    /// Highest position that the host said it executed.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the session in order: the host hears a goodbye.
    pub fn close(&self) {
        if self
            .ended
            .compare_exchange(
                0,
                Status::DEINITIALIZED.0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
        {
            let _ = self
                .sender
                .try_send(Control::Goodbye.kind(), 0, Some(0), &[]);
            let _ = self.sender.flush();
        }
        self.sender.close();
        for slot in self.slots.all() {
            slot.lose();
        }
    }

    /// Reads frames for as long as `wanted` says, so that host functions are
    /// heard of while nobody waits.
    pub(crate) fn read_while(&self, wanted: impl Fn() -> bool) {
        let mut receiver = lock(&self.receiver);
        while wanted() && self.ended.load(Ordering::Relaxed) == 0 {
            self.receive_one(receiver.as_mut(), Wait::Forever);
        }
        drop(receiver);
        self.pass_on();
    }

    /// Ends a wait in [`read_while`](Self::read_while).
    pub(crate) fn wake_reader(&self) {
        self.waker.wake();
    }

    fn send(&self, number: u16, slot: u16, payload: &[&[u8]]) -> Result<u64> {
        loop {
            match self.sender.try_send(number, slot, None, payload) {
                Ok(sequence) => return Ok(sequence),
                Err(TravelError::Full) => {
                    // The host may itself wait for room towards the guest.
                    self.drain();
                    let length = payload.iter().map(|part| part.len()).sum();
                    self.sender
                        .wait_for_room(length)
                        .map_err(|error| self.lose(&error))?;
                }
                Err(error) => return Err(self.lose(&error)),
            }
        }
    }

    /// Routes what has come, unless somebody else reads.
    fn drain(&self) {
        let Ok(mut receiver) = self.receiver.try_lock() else {
            return;
        };
        while self.receive_one(receiver.as_mut(), Wait::Poll) {}
        drop(receiver);
        self.pass_on();
    }

    /// Waits until the slot's wait is over.
    fn wait(&self, index: u16, slot: &crate::slots::Slot) {
        let mut spin = Spin::new(self.spin, None);
        loop {
            if slot.is_over() || self.ended.load(Ordering::Acquire) != 0 {
                return;
            }
            if self.lead(slot) {
                return;
            }
            if spin.again() {
                continue;
            }
            lock(&self.parked).push(index);
            // A leader that left before the push saw nobody to wake.
            let led = self.lead(slot);
            if !led && !slot.is_over() && self.ended.load(Ordering::Acquire) == 0 {
                std::thread::park();
            }
            let mut parked = lock(&self.parked);
            let chosen = match parked.iter().position(|&other| other == index) {
                Some(mine) => {
                    parked.swap_remove(mine);
                    false
                }
                None => true,
            };
            drop(parked);
            if chosen && (led || slot.is_over()) {
                // Woken to lead, but with nothing left to wait for.
                self.pass_on();
            }
            if led {
                return;
            }
        }
    }

    /// Reads frames until the slot's wait is over, unless somebody else reads
    /// already (then false).
    fn lead(&self, slot: &crate::slots::Slot) -> bool {
        let mut receiver = match self.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        while !slot.is_over() && self.ended.load(Ordering::Acquire) == 0 {
            self.receive_one(receiver.as_mut(), Wait::Forever);
        }
        drop(receiver);
        self.pass_on();
        true
    }

    /// Wakes one of the sleeping threads, so that it leads.
    fn pass_on(&self) {
        let next = lock(&self.parked).pop();
        if let Some(slot) = next.and_then(|index| self.slots.get(index)) {
            slot.unpark();
        }
    }

    /// Receives and routes one frame; false where none came.
    fn receive_one(&self, receiver: &mut dyn Receiver, wait: Wait) -> bool {
        match receiver.receive(wait) {
            Ok(Some(frame)) => {
                if let Err(reason) = self.route(&frame) {
                    self.end(LOST, &reason);
                    return false;
                }
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.lose(&error);
                false
            }
        }
    }

    fn route(&self, frame: &Frame<'_>) -> Result<(), String> {
        let header = &frame.header;
        self.acknowledged
            .fetch_max(header.sequence, Ordering::Relaxed);
        let slot = || {
            self.slots
                .get(header.slot)
                .ok_or_else(|| format!("the host answers slot {}, which nobody has", header.slot))
        };
        let told = |misrouted| match misrouted {
            Misrouted::Unasked => format!(
                "the host sent a frame of kind {:#06x} that nobody asked for",
                header.kind
            ),
            Misrouted::OutOfBounds => "the host sent more bytes than were asked for".to_owned(),
        };
        if header.replied_call().is_some() {
            return slot()?.deliver(header.kind, frame.payload).map_err(told);
        }
        let mut reader = Reader::new(frame.payload);
        let malformed = |error| format!("a frame of kind {:#06x}: {error}", header.kind);
        match Control::from_kind(header.kind) {
            Some(Control::Data) => {
                let offset: u64 = reader.field().map_err(malformed)?;
                let bytes = reader.bytes(reader.remaining()).map_err(malformed)?;
                slot()?.write(offset, bytes).map_err(told)
            }
            Some(Control::HostFunc) => {
                let id: u64 = reader.field().map_err(malformed)?;
                if let Some(sink) = self.host_functions.get() {
                    sink(id);
                }
                Ok(())
            }
            Some(Control::Output) => {
                let to: u32 = reader.field().map_err(malformed)?;
                let bytes = reader.bytes(reader.remaining()).map_err(malformed)?;
                process::print(to == 2, bytes);
                Ok(())
            }
            Some(Control::Goodbye) => {
                self.end(LOST, "the host ended the session");
                Ok(())
            }
            _ => Err(format!(
                "the host sent a frame of unknown kind {:#06x}",
                header.kind
            )),
        }
    }

    /// Notes a failed call; returns what it ended with.
    fn failed(&self, status: Status, detail: &str) -> Status {
        if status.is_sticky()
            && self
                .sticky
                .compare_exchange(0, status.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            && !detail.is_empty()
        {
            eprintln!("paragpu: {status}: {detail}");
        }
        let _ = DETAIL.try_with(|kept| kept.set(detail.to_owned()));
        status
    }

    fn lose(&self, error: &TravelError) -> Status {
        self.end(LOST, &crate::error::chain(error))
    }

    /// Ends the session with `status`, saying why once.
    fn end(&self, status: Status, why: &str) -> Status {
        match self
            .ended
            .compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                eprintln!(
                    "paragpu: the session with the GPU's host is over: {why}; \
                     every further CUDA call fails. Look at the host's log (journalctl -u paragpud)."
                );
                self.sender.close();
                for slot in self.slots.all() {
                    slot.lose();
                }
                status
            }
            Err(earlier) => Status(earlier),
        }
    }
}
