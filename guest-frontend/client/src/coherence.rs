//! Shadows: pinned memory of which the host keeps a copy, and how the two are
//! brought into agreement.
//!
//! Rules:
//! - A shadow is *visible* to kernels once it was made with DEVICEMAP, its
//!   device pointer was asked for, or a launch had an address inside it among
//!   its parameters (at a multiple of 8 bytes).
//! - Before a launch, what the program changed in visible shadows is sent;
//!   before a copy or memset writes to a shadow, what the program changed in
//!   that range is sent.
//! - After every call that found work to be over, what the device changed is
//!   fetched, as long as work that may write to a shadow is not known to be
//!   over.
//! - Sent and fetched is only what differs from the state on which both sides
//!   last agreed: program and device may write to different bytes of a shadow
//!   at the same time.
//! - Copies from such memory to the device take the program's bytes at the
//!   time of the call.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowPatch, ShadowRead, ShadowWrite};

use crate::error::Result;
use crate::host::Reach;
use crate::link::LOST;
use crate::memory::read;
use crate::progress::Progress;
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;
use crate::sys::memory::{Destination, Source};

/// Smallest run of bytes that is compared.
const UNIT: usize = 16;
const PAGE: usize = 4096;
/// Bytes that are merged at once where all of them differ.
const WORD: usize = 8;
/// Bytes before each run of a patch.
const HEAD: usize = 8;
/// Bytes in one write or patch; fits a frame with what else is in it.
const WRITE: usize = 240 << 10;

/// One shadow.
#[derive(Debug)]
pub(crate) struct Region {
    /// The program's bytes.
    host: Source,
    /// Where the device sees the first of them.
    device: u64,
    /// The shadow as the host knows it: whole pages.
    base: u64,
    length: u64,
    visible: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// What both sides last agreed on; of the program's bytes only. Shared
    /// with what a host that lacks it is being sent.
    agreed: Arc<Vec<u8>>,
    /// Where the shadow's pages are fetched to.
    fetched: Vec<u8>,
    /// Work that may write to the shadow.
    writers: Vec<(Arc<Progress>, u64)>,
    /// The program gave the memory back: the host knows no such shadow.
    gone: bool,
}

/// How many shadows have writers; looked at before every lock.
pub(crate) static WRITERS: AtomicUsize = AtomicUsize::new(0);

impl Region {
    pub(crate) fn new(host: Source, device: u64, base: u64, length: u64) -> Arc<Self> {
        Arc::new(Self {
            device,
            base,
            length,
            visible: AtomicBool::new(false),
            state: Mutex::new(State {
                agreed: Arc::new(vec![0; host.len()]),
                fetched: Vec::new(),
                writers: Vec::new(),
                gone: false,
            }),
            host,
        })
    }

    /// Both sides agree on what the program has there now; work up to
    /// `position` of the session may still write to it.
    pub(crate) fn agree(&self, state: &mut State, position: u64) -> Arc<Vec<u8>> {
        state.agreed = Arc::new(self.host.part(0, self.host.len()).to_vec());
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        state.writers.push((Arc::default(), position));
        Arc::clone(&state.agreed)
    }

    /// Whoever has found the shadow already leaves it alone from now on.
    pub(crate) fn forget(&self) {
        let mut state = lock(&self.state);
        state.gone = true;
        if !std::mem::take(&mut state.writers).is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Keeps everybody from the shadow.
    pub(crate) fn hold(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// First address and bytes that the host knows.
    pub(crate) fn on_wire(&self) -> (u64, u64) {
        (self.base, self.length)
    }

    /// Kernels may be given addresses in it.
    pub(crate) fn show(&self) {
        self.visible.store(true, Ordering::Release);
    }

    pub(crate) fn holds_host(&self, address: u64, size: u64) -> bool {
        holds(self.host.address(), self.host.len() as u64, address, size)
    }

    fn holds_device(&self, address: u64, size: u64) -> bool {
        holds(self.device, self.host.len() as u64, address, size)
    }

    /// The device's address of an address of the program.
    pub(crate) fn to_device(&self, address: u64) -> u64 {
        self.device + (address - self.host.address())
    }

    pub(crate) fn has_writers(&self) -> bool {
        !lock(&self.state).writers.is_empty()
    }

    /// Work at `position` of a stream may write to the shadow.
    pub(crate) fn add_writer(&self, progress: &Arc<Progress>, position: u64) {
        let mut state = lock(&self.state);
        if state.gone {
            return;
        }
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        match state
            .writers
            .iter_mut()
            .find(|(other, _)| Arc::ptr_eq(other, progress))
        {
            Some((_, last)) => *last = position.max(*last),
            None => state.writers.push((Arc::clone(progress), position)),
        }
    }

    /// Sends what the program changed in `[offset, offset + size)`.
    fn push(&self, session: &Session, offset: usize, size: usize) -> Result<()> {
        let end = offset.saturating_add(size).min(self.host.len());
        let mut state = lock(&self.state);
        if state.gone {
            return Ok(());
        }
        let mut patch = Patch::default();
        let mut at = offset;
        while at < end {
            let page = (at / PAGE + 1) * PAGE;
            let stop = page.min(end);
            let (Some(agreed), now) = (state.agreed.get(at..stop), self.host.part(at, stop - at))
            else {
                return Err(Status::UNKNOWN);
            };
            if agreed == now {
                at = stop;
                continue;
            }
            let Some((from, to)) = self.changed_run(&state.agreed, at, end) else {
                at = stop;
                continue;
            };
            let agreed = Arc::make_mut(&mut state.agreed);
            let Some(agreed) = agreed.get_mut(from..to) else {
                return Err(Status::UNKNOWN);
            };
            // The bytes sent are those agreed on, whatever the program writes
            // meanwhile.
            agreed.copy_from_slice(self.host.part(from, to - from));
            if !patch.holds(from, to - from) {
                patch.send(session, self.device)?;
            }
            patch.add(from, agreed);
            at = to;
        }
        patch.send(session, self.device)
    }

    /// The first run of differing units from `at` on, before `end`, at most
    /// one write long.
    fn changed_run(&self, agreed: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
        let differs = |from: usize| {
            let to = (from + UNIT).min(end);
            agreed.get(from..to) != Some(self.host.part(from, to - from))
        };
        let from = (at..end).step_by(UNIT).find(|&unit| differs(unit))?;
        let limit = (from + WRITE).min(end);
        let to = (from..limit)
            .step_by(UNIT)
            .find(|&unit| !differs(unit))
            .unwrap_or(limit);
        Some((from, to))
    }

    /// Fetches what the device changed; writers that are over are forgotten.
    fn pull(&self, session: &Session) -> Result<()> {
        let mut state = lock(&self.state);
        if state.writers.is_empty() {
            return Ok(());
        }
        let complete = session.progress.complete();
        let is_over = |(progress, position): &(Arc<Progress>, u64)| {
            *position <= complete.max(progress.complete())
        };
        let left = state.writers.iter().filter(|writer| !is_over(writer));
        let left: Vec<_> = left.cloned().collect();
        let before = usize::try_from(self.device - self.base).unwrap_or(0);
        let length = usize::try_from(self.length).map_err(|_| Status::OUT_OF_MEMORY)?;
        let State {
            agreed, fetched, ..
        } = &mut *state;
        fetched.resize(length, 0);
        let own = before..before + agreed.len();
        // Pages that did not change do not come.
        fetched
            .get_mut(own.clone())
            .ok_or(Status::UNKNOWN)?
            .copy_from_slice(agreed);
        session.link.call_with(
            &ShadowRead {
                address: self.base,
                size: self.length,
            },
            Some(Destination::of(fetched)),
            |()| (),
        )?;
        let own = fetched.get(own).ok_or(Status::UNKNOWN)?;
        let agreed: &mut Vec<u8> = Arc::make_mut(agreed);
        self.merge(agreed, own);
        // Not before: others look for writers without waiting for this thread.
        state.writers = left;
        if state.writers.is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes the bytes that differ into the program's memory, and agrees on
    /// them.
    fn merge(&self, agreed: &mut [u8], fetched: &[u8]) {
        let pages = agreed.chunks_mut(PAGE).zip(fetched.chunks(PAGE));
        for (page, (old, new)) in pages.enumerate() {
            if old == new {
                continue;
            }
            let words = old.chunks(WORD).zip(new.chunks(WORD));
            for (word, (old, new)) in words.enumerate() {
                let at = page * PAGE + word * WORD;
                if old == new {
                    continue;
                }
                if old.iter().zip(new).all(|(old, new)| old != new) {
                    self.host.overwrite(at, new);
                    continue;
                }
                let differing = old.iter().zip(new).enumerate();
                for (byte, _) in differing.filter(|(_, (old, new))| old != new) {
                    self.host
                        .overwrite(at + byte, new.get(byte..=byte).unwrap_or(&[]));
                }
            }
            old.copy_from_slice(new);
        }
    }
}

/// The shadows that kernels may write to.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    regions: Vec<Arc<Region>>,
    /// The session had left its window when they were looked for.
    is_apart: bool,
}

/// Changed runs that travel in one call.
#[derive(Default)]
struct Patch {
    /// Offset of the first run, and of the end of the last.
    start: usize,
    end: usize,
    count: usize,
    runs: Vec<u8>,
}

impl Patch {
    /// Does another run fit?
    fn holds(&self, from: usize, length: usize) -> bool {
        self.runs.is_empty()
            || self.runs.len() + HEAD + length <= WRITE && u32::try_from(from - self.end).is_ok()
    }

    /// Adds a run behind the others; it fits.
    fn add(&mut self, from: usize, run: &[u8]) {
        if self.runs.is_empty() {
            (self.start, self.end) = (from, from);
        }
        let gap = u32::try_from(from - self.end).unwrap_or(0);
        let length = u32::try_from(run.len()).unwrap_or(0);
        self.runs.extend_from_slice(&gap.to_le_bytes());
        self.runs.extend_from_slice(&length.to_le_bytes());
        self.runs.extend_from_slice(run);
        self.end = from + run.len();
        self.count += 1;
    }

    /// Posts the runs, of a shadow at `device`, and forgets them.
    fn send(&mut self, session: &Session, device: u64) -> Result<()> {
        let address = device + self.start as u64;
        match self.count {
            0 => return Ok(()),
            // It needs no head.
            1 => {
                let data = Bytes(self.runs.get(HEAD..).unwrap_or(&[]));
                session.link.post(&ShadowWrite { address, data })?;
            }
            _ => {
                let runs = Bytes(&self.runs);
                session.link.post(&ShadowPatch { address, runs })?;
            }
        }
        self.count = 0;
        self.runs.clear();
        Ok(())
    }
}

fn holds(start: u64, length: u64, address: u64, size: u64) -> bool {
    address
        .checked_sub(start)
        .and_then(|offset| offset.checked_add(size))
        .is_some_and(|end| end <= length)
}

impl Session {
    fn shadow_by_device(&self, address: u64, size: u64) -> Option<Arc<Region>> {
        if self.host.shadow_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        read(&self.host.shadows)
            .iter()
            .find(|region| region.holds_device(address, size))
            .cloned()
    }

    /// Before the device writes a range: refuses what is not allocated, and
    /// sends what the program changed there. Returns the device's address,
    /// which differs for registered memory named by its host address.
    pub(crate) fn before_device_writes(&self, address: u64, size: u64) -> Result<u64> {
        let device = match self.host.reach(address, size) {
            Reach::Direct(_) => return Ok(address),
            Reach::Shadow(region) => region.to_device(address),
            Reach::Pageable => address,
        };
        match self.shadow_by_device(device, size) {
            Some(region) => {
                let offset = usize::try_from(device - region.device).unwrap_or(usize::MAX);
                region.push(self, offset, usize::try_from(size).unwrap_or(usize::MAX))?;
            }
            None => self.memory.check(device, size)?,
        }
        Ok(device)
    }

    /// Refuses a range that is neither device memory nor pinned.
    pub(crate) fn check_device(&self, address: u64, size: u64) -> Result<()> {
        if self.shadow_by_device(address, size).is_some() {
            return Ok(());
        }
        self.memory.check(address, size)
    }

    /// Before the device reads a range: as
    /// [`before_device_writes`](Self::before_device_writes).
    pub(crate) fn before_device_reads(&self, address: u64, size: u64) -> Result<u64> {
        self.before_device_writes(address, size)
    }

    /// The device will write a range when it gets to `position` of `stream`.
    pub(crate) fn device_writes(&self, address: u64, size: u64, stream: &Stream, position: u64) {
        if let Some(region) = self.shadow_by_device(address, size) {
            region.add_writer(&stream.progress, position);
        }
    }

    /// Before a launch with these parameters: sends what the program changed.
    /// Returns the shadows that the kernel may write to, for
    /// [`after_launch`](Self::after_launch).
    pub(crate) fn before_launch(&self, parameters: &[u8]) -> Result<Visible> {
        let is_apart = self.host.is_apart();
        if !is_apart {
            self.host.note_named(parameters);
        }
        if self.host.shadow_count.load(Ordering::Acquire) == 0 {
            return Ok(Visible::default());
        }
        let mut visible = Vec::new();
        for region in read(&self.host.shadows).iter() {
            let named = parameters.chunks_exact(8).any(|word| {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                region.holds_device(word, 1)
            });
            if named {
                region.show();
            }
            if region.visible.load(Ordering::Acquire) {
                visible.push(Arc::clone(region));
            }
        }
        for region in &visible {
            region.push(self, 0, usize::MAX)?;
        }
        Ok(Visible {
            regions: visible,
            is_apart,
        })
    }

    /// A kernel that may write to `visible` was launched as work `position`.
    pub(crate) fn after_launch(&self, visible: Visible, stream: &Stream, position: u64) {
        for region in visible.regions {
            region.add_writer(&stream.progress, position);
        }
        if !visible.is_apart && self.host.is_apart() {
            // The window was left between the look at it and the launch.
            let regions: Vec<_> = read(&self.host.shadows).clone();
            for region in regions {
                region.add_writer(&stream.progress, position);
            }
        }
    }

    /// Sends what the program changed in visible shadows, and in those of
    /// which work that was posted before they were shadows may read.
    pub(crate) fn push_visible(&self) -> Result<()> {
        if self.host.shadow_count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let regions: Vec<_> = read(&self.host.shadows).clone();
        regions
            .iter()
            .filter(|region| region.visible.load(Ordering::Acquire) || region.has_writers())
            .try_for_each(|region| region.push(self, 0, usize::MAX))
    }

    /// Fetches what the device changed, after work was found to be over.
    ///
    /// # Errors
    /// Also where the device of the VM is gone in whose window the host has
    /// written: a session may need it that goes another way.
    pub(crate) fn pull(&self) -> Result<()> {
        if self
            .host
            .memory
            .as_ref()
            .is_some_and(|window| !window.is_there())
        {
            let why = "the device that has its pinned memory is gone";
            return Err(self.link.end(LOST, why));
        }
        if WRITERS.load(Ordering::Acquire) == 0
            || self.host.shadow_count.load(Ordering::Acquire) == 0
        {
            return Ok(());
        }
        let regions: Vec<_> = read(&self.host.shadows).clone();
        regions.iter().try_for_each(|region| region.pull(self))
    }
}
