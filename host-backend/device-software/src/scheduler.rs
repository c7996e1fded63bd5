//! Orders and overlaps work: a graph of operations, and the threads that execute them.
//!
//! Every operation waits for its predecessors: the last operation of its stream; for the
//! legacy default stream, the last of every blocking stream, and vice versa (CUDA Runtime
//! API, "Stream synchronization behavior"); for a wait, the event's record. An operation
//! without pending predecessors is ready. Pool threads, one per core, take ready copies and
//! the blocks of all running kernels in turn. A further thread takes only copies, so that
//! they overlap with kernels on any machine. Host functions have their own thread.

mod shares;
mod threads;

use crate::exec::block::Grid;
use crate::exec::cluster::Cluster;
use crate::kernel_memory::Held;
use paragpu_device::{Error, HostFunction};
use paragpu_protocol::status::Status;
use parking_lot::{Condvar, Mutex};
use shares::Shares;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of an operation, in the order of submission.
pub type Ticket = u64;
/// Maximum number of blocks in flight per pool thread. There are several, so that blocks
/// that wait for others find them running. A thread takes at most that many at once.
const RESIDENT: u64 = 32;

/// Time after which a thread checks for other work before it takes the next block of its
/// share.
const TURN: Duration = Duration::from_millis(4);
/// Maximum number of bytes of a kernel's blocks in flight, beyond one block per thread.
const RESIDENT_BYTES: u64 = 256 << 20;

/// A copy or fill.
pub type Task = Box<dyn FnOnce() -> Result<(), Error> + Send>;
/// Short work that is repeated until it returns `Ok(true)`.
pub type Attempt = Box<dyn FnMut() -> Result<bool, Error> + Send>;
/// The interval between attempts.
const AGAIN: Duration = Duration::from_micros(50);
/// Creates further operations, each with the indices of those on which it depends; `None`
/// at the end.
pub type Unfold = Box<dyn FnMut() -> Option<Vec<(Vec<usize>, Work)>> + Send>;
/// The time at which an event was reached.
pub type Stamp = Arc<Mutex<Option<Instant>>>;

/// The work of an operation.
pub enum Work {
    /// Nothing: a point in the order.
    Marker,
    /// Records the time.
    Record(Stamp),
    /// Short work that runs on the thread that finds it ready.
    Inline(Box<dyn FnOnce() + Send>),
    /// A copy or fill.
    Task(Task),
    /// A copy or fill that takes less time than passing it to another thread. If it is
    /// ready, the submitting thread executes it, whose processor may have the bytes in its
    /// caches.
    Short(Task),
    /// Waits for memory to change. The program itself may change it.
    Attempt(Attempt),
    /// Expands to other operations, repeatedly, each time the previous ones are complete.
    Unfold(Unfold),
    /// A host function.
    Host(HostFunction),
    /// A kernel, whether all its blocks must be resident, and a function to call at its
    /// end.
    Kernel(Arc<Grid>, bool, Box<dyn FnOnce() + Send>),
}

struct Operation {
    waits_for: usize,
    followers: Vec<Ticket>,
    work: Option<Work>,
    host: bool,
}

/// The state of a stream.
#[derive(Debug, Clone, Copy)]
struct Stream {
    last: Ticket,
    blocking: bool,
}

struct Active {
    ticket: Ticket,
    grid: Arc<Grid>,
    cooperative: bool,
    /// Blocks that have not begun.
    fresh: Shares,
    parked: VecDeque<Cluster>,
    spare: Vec<Cluster>,
    /// The memory of its blocks.
    held: Held,
    /// Number of turns of blocks in progress.
    running: usize,
    failed: bool,
    prefer_fresh: bool,
    finish: Option<Box<dyn FnOnce() + Send>>,
}

impl Active {
    fn over(&self) -> bool {
        self.running == 0 && (self.failed || self.fresh.is_empty() && self.parked.is_empty())
    }

    /// Whether a thread could take blocks, if there is memory for them.
    fn has_blocks(&self) -> bool {
        !self.failed && (self.fresh.is_ready() || !self.parked.is_empty())
    }

    /// Takes memory for another cluster, unless there is one to reuse. A cooperative launch
    /// takes all its memory at once: its blocks wait for each other, so two such launches
    /// with half of theirs would both wait forever.
    fn take_memory(&mut self) -> bool {
        let clusters = match (self.cooperative, self.held.is_empty()) {
            (true, true) => self.grid.clusters(),
            (true, false) => return true,
            (false, _) => 1,
        };
        let bytes = self.grid.cluster_bytes().saturating_mul(clusters);
        !self.spare.is_empty() || self.held.grow(bytes)
    }
}

#[derive(Default)]
struct State {
    next: Ticket,
    /// The last operation that waits for all earlier ones.
    last_all: Ticket,
    operations: HashMap<Ticket, Operation>,
    streams: HashMap<u64, Stream>,
    next_stream: u64,
    tasks: VecDeque<(Ticket, Task)>,
    host: VecDeque<(Ticket, HostFunction)>,
    /// Attempts in progress.
    attempts: Vec<(Ticket, Attempt)>,
    active: VecDeque<Active>,
    error: Option<Error>,
    /// Number of pending host functions and attempts.
    host_pending: usize,
    /// The thread that is completing an operation and then looks for work. A thread that makes
    /// work ready for it claims it instead of waking another one.
    looking: Option<Runs>,
    turns: Turns,
    stop: bool,
}

/// What a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Copies and the blocks of kernels.
    Everything,
    Copies,
}

/// The turns of threads: a copy, or a slice of the blocks of a kernel.
#[derive(Default)]
struct Turns {
    /// Number of the next one.
    next: u64,
    in_flight: BTreeSet<u64>,
    /// Number of threads that wait for the end of some.
    awaited: usize,
    /// None may begin.
    paused: bool,
}

struct Inner {
    state: Mutex<State>,
    /// Notifies pool threads.
    kernels: Condvar,
    /// Notifies the thread that takes only copies.
    copies: Condvar,
    /// Notifies the thread of host functions.
    host: Condvar,
    /// Notifies threads that wait for completion.
    done: Condvar,
    threads: usize,
    /// The threads, once they are started.
    started: OnceLock<Mutex<Vec<JoinHandle<()>>>>,
}

/// The scheduler of one device.
pub struct Scheduler {
    inner: Arc<Inner>,
    /// Starts the threads.
    starter: Option<JoinHandle<()>>,
}

/// The stream that every device has.
pub const LEGACY: u64 = 0;

impl Scheduler {
    /// Creates a scheduler with `threads` pool threads and two others. They start with the
    /// first work, if not [before](Self::begin).
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let mut state = State {
            next: 1,
            next_stream: 1,
            ..State::default()
        };
        state.streams.insert(
            LEGACY,
            Stream {
                last: 0,
                blocking: true,
            },
        );
        let inner = Arc::new(Inner {
            state: Mutex::new(state),
            kernels: Condvar::new(),
            copies: Condvar::new(),
            host: Condvar::new(),
            done: Condvar::new(),
            threads,
            started: OnceLock::new(),
        });
        Self {
            inner,
            starter: None,
        }
    }

    /// Starts the threads without waiting for them.
    pub fn begin(&mut self) {
        let inner = Arc::clone(&self.inner);
        let starter = std::thread::Builder::new().name("software-start".into());
        // Otherwise the first work starts them.
        self.starter = starter.spawn(move || inner.need_threads()).ok();
    }

    /// Starts the threads if nobody did. Those that are being started find the work.
    fn need_threads(&self) {
        if self.starter.is_none() {
            self.inner.need_threads();
        }
    }

    /// The sticky error, if there is one.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.state.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Creates a stream.
    #[must_use]
    pub fn create_stream(&self, blocking: bool) -> u64 {
        let mut state = self.inner.state.lock();
        let id = state.next_stream;
        state.next_stream += 1;
        state.streams.insert(id, Stream { last: 0, blocking });
        id
    }

    /// Removes a stream. Its work still runs.
    #[must_use]
    pub fn destroy_stream(&self, id: u64) -> bool {
        id != LEGACY && self.inner.state.lock().streams.remove(&id).is_some()
    }

    /// Submits `work` to a stream. It also waits for all of `also`. `None` if there is no
    /// such stream.
    #[must_use]
    pub fn submit(&self, stream: u64, also: &[Ticket], work: Work) -> Option<Ticket> {
        self.need_threads();
        let mut state = self.inner.state.lock();
        let mut before = state.before(stream)?;
        before.extend(also);
        let ticket = match work {
            Work::Short(task) if state.is_ready(&before) => {
                let ticket = state.ticket();
                if let Err(error) = parking_lot::MutexGuard::unlocked(&mut state, task) {
                    self.inner.fail(&mut state, error);
                }
                ticket
            }
            work => self.inner.add(&mut state, &before, work),
        };
        if let Some(s) = state.streams.get_mut(&stream) {
            s.last = ticket;
        }
        Some(ticket)
    }

    /// Submits work that waits only for `before`.
    #[must_use]
    pub fn submit_after(&self, before: &[Ticket], work: Work) -> Ticket {
        self.need_threads();
        let mut state = self.inner.state.lock();
        self.inner.add(&mut state, before, work)
    }

    /// Executes `work` when everything submitted so far is complete. Nothing waits for it.
    pub fn after_all(&self, work: Box<dyn FnOnce() + Send>) {
        let mut state = self.inner.state.lock();
        let before = state.since_all();
        state.last_all = self.inner.add(&mut state, &before, Work::Inline(work));
    }

    /// Whether the operation is complete.
    #[must_use]
    pub fn reached(&self, ticket: Ticket) -> bool {
        !self.inner.state.lock().operations.contains_key(&ticket)
    }

    /// Whether all work of a stream is complete. `None` if there is no such stream.
    #[must_use]
    pub fn idle(&self, stream: u64) -> Option<bool> {
        self.inner.state.lock().idle(stream)
    }

    /// Whether work of this stream would be ready at once. False after an error.
    #[must_use]
    pub fn is_ready(&self, stream: u64) -> bool {
        let state = self.inner.state.lock();
        let before = state.before(stream);
        before.is_some_and(|before| state.is_ready(&before))
    }

    /// Whether all work is complete.
    #[must_use]
    pub fn all_idle(&self) -> bool {
        self.inner.state.lock().operations.is_empty()
    }

    /// Waits until a stream is idle, for at most `timeout`.
    pub fn doze(&self, stream: u64, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut state = self.inner.state.lock();
        while state.idle(stream) == Some(false) && state.error.is_none() {
            if self.inner.done.wait_until(&mut state, end).timed_out() {
                return;
            }
        }
    }

    /// Waits until everything submitted so far is complete. Returns early while host
    /// functions are pending, because they may need the calling thread.
    pub fn settle(&self) {
        let mut state = self.inner.state.lock();
        let last = state.next;
        while state.host_pending == 0 && state.operations.keys().any(|&t| t < last) {
            self.inner.done.wait(&mut state);
        }
    }

    /// Waits until all copies and turns of blocks that are running now have ended, which
    /// takes milliseconds.
    pub fn quiesce(&self) {
        let mut state = self.inner.state.lock();
        let now = state.turns.next;
        state.turns.awaited += 1;
        while state.turns.in_flight.first().is_some_and(|&t| t < now) {
            self.inner.done.wait(&mut state);
        }
        state.turns.awaited -= 1;
    }

    /// Calls `action` while no copy and no turn of a block runs, without waiting for work to
    /// be complete. It must leave all memory at its address.
    pub fn pause<T>(&self, action: impl FnOnce() -> T) -> T {
        let mut state = self.inner.state.lock();
        state.turns.paused = true;
        state.turns.awaited += 1;
        while !state.turns.in_flight.is_empty() {
            self.inner.done.wait(&mut state);
        }
        state.turns.awaited -= 1;
        let result = action();
        state.turns.paused = false;
        self.inner.wake_all();
        result
    }

    /// Stops all running kernels and drops all waiting work. The error is sticky.
    pub fn cancel(&self, error: Error) {
        let mut state = self.inner.state.lock();
        self.inner.fail(&mut state, error);
        self.inner.wake_all();
        self.inner.host.notify_all();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        {
            let mut state = self.inner.state.lock();
            state.stop = true;
            for active in &state.active {
                active.grid.cancelled.store(true, Ordering::Relaxed);
            }
        }
        self.inner.wake_all();
        self.inner.host.notify_all();
        if let Some(starter) = self.starter.take() {
            let _ = starter.join();
        }
        let started = self.inner.started.get();
        for thread in started.map_or_else(Vec::new, |all| std::mem::take(&mut *all.lock())) {
            let _ = thread.join();
        }
        // Dropped here, because work that never ran holds memory and modules.
        let mut state = self.inner.state.lock();
        state.operations.clear();
        state.tasks.clear();
        state.active.clear();
        state.host.clear();
    }
}

impl State {
    /// Operations such that waiting for them means waiting for everything: the last one
    /// that waits for all earlier ones, and all later ones. So a thousand such operations
    /// after a kernel do not each depend on all others.
    fn since_all(&self) -> Vec<Ticket> {
        let pending = |ticket: &Ticket| self.operations.contains_key(ticket);
        let many = self.next - self.last_all > self.operations.len() as u64;
        if many {
            let all = self.operations.keys().copied();
            return all.filter(|ticket| *ticket >= self.last_all).collect();
        }
        (self.last_all..self.next).filter(pending).collect()
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next - 1
    }

    /// The operations that the next work of a stream waits for. `None` if there is no such
    /// stream.
    fn before(&self, stream: u64) -> Option<Vec<Ticket>> {
        let own = self.streams.get(&stream)?;
        let mut before = vec![own.last];
        if stream == LEGACY {
            // The stream's last work already waits for all that was submitted before it.
            let newer = |s: &&Stream| s.blocking && s.last > own.last;
            before.extend(self.streams.values().filter(newer).map(|s| s.last));
        } else if own.blocking {
            before.extend(self.streams.get(&LEGACY).map(|s| s.last));
        }
        Some(before)
    }

    /// Whether all dependencies of work are complete, without an error.
    fn is_ready(&self, before: &[Ticket]) -> bool {
        self.error.is_none() && !before.iter().any(|t| self.operations.contains_key(t))
    }

    /// Claims the thread that looks for work, if it can take this.
    fn claim(&mut self, what: Runs) -> bool {
        let able = matches!(self.looking, Some(runs) if runs == Runs::Everything || runs == what);
        if able {
            self.looking = None;
        }
        able
    }

    fn begin(&mut self) -> u64 {
        self.turns.next += 1;
        self.turns.in_flight.insert(self.turns.next - 1);
        self.turns.next - 1
    }

    fn idle(&self, stream: u64) -> Option<bool> {
        let own = self.streams.get(&stream)?;
        let over = |s: &Stream| !self.operations.contains_key(&s.last);
        if stream == LEGACY {
            return Some(self.streams.values().filter(|s| s.blocking).all(over));
        }
        Some(over(own))
    }
}

impl Inner {
    /// Starts the threads if they are not running. If that fails, so does the device.
    fn need_threads(self: &Arc<Self>) {
        self.started.get_or_init(|| {
            let started = self.start_threads().unwrap_or_else(|error| {
                let error = Error::new(
                    Status::OPERATING_SYSTEM,
                    format!("cannot start threads: {error}"),
                );
                self.fail(&mut self.state.lock(), error);
                Vec::new()
            });
            Mutex::new(started)
        });
    }

    fn start_threads(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let named = |name: String| std::thread::Builder::new().name(name);
        let mut handles = Vec::new();
        for n in 0..self.threads {
            let inner = Arc::clone(self);
            let run = move || inner.pool(n as u32, Runs::Everything);
            handles.push(named(format!("software-sm{n}")).spawn(run)?);
        }
        let copies = Arc::clone(self);
        handles.push(named("software-copy".into()).spawn(move || copies.pool(0, Runs::Copies))?);
        // Not joined: a host function may never return.
        let host = Arc::clone(self);
        named("software-host".into()).spawn(move || host.host_functions())?;
        Ok(handles)
    }

    fn add(&self, state: &mut State, before: &[Ticket], work: Work) -> Ticket {
        let ticket = state.ticket();
        let host = matches!(work, Work::Host(_) | Work::Attempt(_));
        state.host_pending += usize::from(host);
        let mut waits_for = 0;
        for b in before {
            // A predecessor that is listed twice already has this operation as its last
            // follower.
            if let Some(operation) = state.operations.get_mut(b)
                && operation.followers.last() != Some(&ticket)
            {
                operation.followers.push(ticket);
                waits_for += 1;
            }
        }
        state.operations.insert(
            ticket,
            Operation {
                waits_for,
                followers: Vec::new(),
                work: Some(work),
                host,
            },
        );
        if waits_for == 0 {
            self.start(state, ticket);
        }
        ticket
    }

    /// Starts a ready operation, and those that thereby become ready.
    fn start(&self, state: &mut State, ticket: Ticket) {
        let mut ready = VecDeque::from([ticket]);
        while let Some(ticket) = ready.pop_front() {
            let Some(work) = state
                .operations
                .get_mut(&ticket)
                .and_then(|o| o.work.take())
            else {
                continue;
            };
            let failed = state.error.is_some();
            match work {
                Work::Marker => self.finished(state, ticket, &mut ready),
                Work::Record(stamp) => {
                    *stamp.lock() = Some(Instant::now());
                    self.finished(state, ticket, &mut ready);
                }
                Work::Inline(action) => {
                    action();
                    self.finished(state, ticket, &mut ready);
                }
                Work::Kernel(_, _, finish) if failed => {
                    finish();
                    self.finished(state, ticket, &mut ready);
                }
                Work::Task(_) | Work::Short(_) | Work::Host(_) | Work::Attempt(_) if failed => {
                    self.finished(state, ticket, &mut ready)
                }
                Work::Task(task) | Work::Short(task) => {
                    state.tasks.push_back((ticket, task));
                    if !state.claim(Runs::Copies) {
                        self.wake_for_copy();
                    }
                }
                Work::Attempt(mut attempt) => match attempt() {
                    Ok(true) => self.finished(state, ticket, &mut ready),
                    Ok(false) => {
                        state.attempts.push((ticket, attempt));
                        self.copies.notify_one();
                    }
                    Err(error) => {
                        state.tasks.push_back((ticket, Box::new(|| Err(error))));
                        self.wake_for_copy();
                    }
                },
                Work::Unfold(_) if failed => self.finished(state, ticket, &mut ready),
                Work::Unfold(unfold) => self.unfold(state, ticket, unfold, &mut ready),
                Work::Host(function) => {
                    state.host.push_back((ticket, function));
                    self.host.notify_one();
                }
                Work::Kernel(grid, cooperative, finish) => {
                    let clusters = grid.clusters();
                    let threads = self.threads as u64;
                    let fit = RESIDENT_BYTES / grid.cluster_bytes();
                    let fresh = match cooperative {
                        true => Shares::cooperative(clusters, threads),
                        false => Shares::new(clusters, fit.min(RESIDENT * threads), threads),
                    };
                    state.active.push_back(Active {
                        ticket,
                        held: grid.device.kernel_memory.open(),
                        grid,
                        cooperative,
                        fresh,
                        parked: VecDeque::new(),
                        spare: Vec::new(),
                        running: 0,
                        failed: false,
                        prefer_fresh: true,
                        finish: Some(finish),
                    });
                    // One thread for each share, at most.
                    let looking = usize::from(state.claim(Runs::Everything));
                    for _ in looking..clusters.min(threads) as usize {
                        self.kernels.notify_one();
                    }
                }
            }
        }
    }

    fn wake_all(&self) {
        self.kernels.notify_all();
        self.copies.notify_all();
    }

    /// Wakes a thread for a copy: one that runs blocks only if the other is busy.
    fn wake_for_copy(&self) {
        if !self.copies.notify_one() {
            self.kernels.notify_one();
        }
    }

    /// Wakes another thread if there is more than the calling one takes. It does the same,
    /// so that no thread sleeps while there is work.
    fn pass_on(&self, state: &State) {
        if !state.tasks.is_empty() {
            self.wake_for_copy();
        }
        if state.active.iter().any(Active::has_blocks) {
            self.kernels.notify_one();
        }
    }

    /// Submits the next operations of an unfolding one, which waits for them.
    fn unfold(
        &self,
        state: &mut State,
        ticket: Ticket,
        mut unfold: Unfold,
        ready: &mut VecDeque<Ticket>,
    ) {
        let Some(operations) = unfold() else {
            return self.finished(state, ticket, ready);
        };
        // Begins on another thread, so that endless expansion does not hold the lock.
        let begun = self.add(state, &[], Work::Task(Box::new(|| Ok(()))));
        let mut tickets: Vec<Ticket> = Vec::with_capacity(operations.len());
        for (after, work) in operations {
            let mut before: Vec<Ticket> = after
                .iter()
                .filter_map(|&number| tickets.get(number).copied())
                .collect();
            before.push(begun);
            tickets.push(self.add(state, &before, work));
        }
        tickets.push(begun);
        let mut waits_for = 0;
        for before in tickets {
            if let Some(operation) = state.operations.get_mut(&before) {
                operation.followers.push(ticket);
                waits_for += 1;
            }
        }
        if let Some(operation) = state.operations.get_mut(&ticket) {
            operation.work = Some(Work::Unfold(unfold));
            operation.waits_for = waits_for;
        }
        if waits_for == 0 {
            ready.push_back(ticket);
        }
    }

    fn finished(&self, state: &mut State, ticket: Ticket, ready: &mut VecDeque<Ticket>) {
        let Some(operation) = state.operations.remove(&ticket) else {
            return;
        };
        state.host_pending -= usize::from(operation.host);
        for follower in operation.followers {
            if let Some(next) = state.operations.get_mut(&follower) {
                next.waits_for -= 1;
                if next.waits_for == 0 {
                    ready.push_back(follower);
                }
            }
        }
        self.done.notify_all();
    }

    fn complete(&self, state: &mut State, ticket: Ticket) {
        let mut ready = VecDeque::new();
        self.finished(state, ticket, &mut ready);
        for next in ready {
            self.start(state, next);
        }
    }

    /// Records the first error. Running kernels stop, and waiting work is dropped as it
    /// becomes ready.
    fn fail(&self, state: &mut State, error: Error) {
        if state.error.is_none() {
            tracing::debug!(%error, "the session's device failed");
            state.error = Some(error);
        }
        for active in &mut state.active {
            active.grid.cancelled.store(true, Ordering::Relaxed);
            active.failed = true;
        }
        while let Some((ticket, _)) = state.tasks.pop_front() {
            self.complete(state, ticket);
        }
        while let Some((ticket, _)) = state.host.pop_front() {
            self.complete(state, ticket);
        }
        while let Some((ticket, _)) = state.attempts.pop() {
            self.complete(state, ticket);
        }
        self.reap(state);
        self.done.notify_all();
    }

    fn reap(&self, state: &mut State) {
        while let Some(n) = state.active.iter().position(Active::over) {
            let Some(mut active) = state.active.remove(n) else {
                return;
            };
            if let Some(finish) = active.finish.take() {
                finish();
            }
            self.complete(state, active.ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn work_of_the_legacy_stream_waits_once_for_that_of_others() {
        let scheduler = Scheduler::new(1);
        let open = Arc::new(AtomicBool::new(false));
        let held = |stream| {
            let open = Arc::clone(&open);
            let attempt = Work::Attempt(Box::new(move || Ok(open.load(Ordering::Acquire))));
            assert!(scheduler.submit(stream, &[], attempt).is_some());
        };
        let marked = || assert!(scheduler.submit(LEGACY, &[], Work::Marker).is_some());
        let links = || -> usize {
            let state = scheduler.inner.state.lock();
            state.operations.values().map(|o| o.followers.len()).sum()
        };
        let streams: Vec<u64> = (0..10).map(|_| scheduler.create_stream(true)).collect();
        streams.iter().for_each(|stream| held(*stream));
        (0..10).for_each(|_| marked());
        assert_eq!(links(), 10 + 9);
        // Work that a stream has received since then is waited for.
        held(streams[0]);
        marked();
        assert_eq!(links(), 10 + 9 + 2 + 2);
        assert_eq!(scheduler.idle(LEGACY), Some(false));
        open.store(true, Ordering::Release);
        while !scheduler.all_idle() {
            std::thread::yield_now();
        }
    }
}
