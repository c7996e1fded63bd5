//! One shadow: the worker's copy of guest memory outside any window, at an address
//! that kernels can use.
//!
//! Coherence. There are two copies. `memory` is what the device sees; kernels and
//! copies write it at any time. `agreed` is the state that guest and worker last
//! agreed on. The guest's writes go to both. A read compares the two by page, sends
//! only the pages that differ, and updates `agreed` with what it sent. So a page
//! that no kernel wrote is never sent back, and a page that the guest wrote is not
//! mistaken for one that a kernel wrote.
//!
//! If the session gets a window, its shadows can become pages of the window, at the same
//! addresses. There is nothing to synchronize then.

use super::host_account::Charge;
use crate::sys::mapping::Mapping;

use paragpu_communicator::Window;
use paragpu_protocol::frame::MAX_PAYLOAD;

/// Unit of registered host memory.
pub(crate) const PAGE: u64 = 4096;
/// Maximum number of bytes of one data frame: whole pages, after the offset.
const MAX_FRAME_BYTES: usize = (MAX_PAYLOAD - 8) / PAGE as usize * PAGE as usize;

/// Unit in bytes of the runs of [`Shadow::changes`], about the size of a run's head.
const UNIT: usize = 16;

/// One shadow.
#[derive(Debug)]
pub(super) struct Shadow {
    /// The device's copy.
    memory: Mapping,
    /// The state that both sides last agreed on.
    agreed: Mapping,
    /// Whether `memory` is a part of the window, which guest and device share.
    joined: bool,
    /// The charge for both copies; none for a shadow without a session.
    held: Option<Charge>,
}

/// Number of copies.
pub(super) const COPIES: u64 = 2;

impl Shadow {
    /// A shadow of zeros at `address`, charged as `held`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn at(address: u64, size: u64, held: Charge) -> Result<Self, rustix::io::Errno> {
        Ok(Self {
            memory: Mapping::at(address, size)?,
            agreed: Mapping::anywhere(size)?,
            joined: false,
            held: Some(held),
        })
    }

    /// Whether it is a part of the window.
    pub(super) fn is_joined(&self) -> bool {
        self.joined
    }

    /// Writes what the device changed since both sides last agreed to pages of the window,
    /// byte by byte: what lies between may be newer in the window. The pages must lie inside.
    pub(super) fn merge_into(&self, window: &Window, offset: u64) {
        let mut page = [0; PAGE as usize];
        for from in (0..self.len()).step_by(PAGE as usize) {
            let agreed = self.agreed.bytes(from, page.len());
            if !self.memory.copy_out(from, &mut page) || agreed == page {
                continue;
            }
            for ((new, old), at) in page.iter().zip(agreed).zip(offset + from..) {
                if new != old {
                    let _ = window.copy_in(at, &[*new]);
                }
            }
        }
    }

    /// Replaces the device's copy by pages of the window. The device must not know it now.
    ///
    /// # Errors
    /// Errors of the operating system, after which there is no memory at its addresses.
    pub(super) fn join(&mut self, window: &Window, offset: u64) -> Result<(), rustix::io::Errno> {
        self.memory.replace(window, offset)?;
        self.agreed.discard();
        self.joined = true;
        if let Some(held) = &mut self.held {
            held.shrink(self.memory.len().saturating_mul(COPIES));
        }
        Ok(())
    }

    /// Fills both copies with zeros.
    pub(super) fn clear(&self) {
        let zeros = [0; PAGE as usize];
        for offset in (0..self.len()).step_by(PAGE as usize) {
            if self.write(offset, &zeros) && !self.joined {
                let _ = self.memory.copy_in(offset, &zeros);
            }
        }
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.memory.len()
    }

    pub(super) fn end(&self) -> u64 {
        self.memory.address() + self.memory.len()
    }

    /// The state that both sides last agreed on; shorter at the end.
    pub(super) fn agreed(&self, offset: u64, size: usize) -> &[u8] {
        self.agreed.bytes(offset, size)
    }

    /// Sets the agreed state. Returns false past the end.
    pub(super) fn set_agreed(&self, offset: u64, bytes: &[u8]) -> bool {
        self.agreed.copy_in(offset, bytes)
    }

    /// Writes bytes of the guest: those that differ from what both sides last agreed on. The guest
    /// did not change the others, and the device may have. Returns false past the end. A part of
    /// the window has newer ones.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if self.joined {
            let end = offset.checked_add(bytes.len() as u64);
            return end.is_some_and(|end| end <= self.len());
        }
        let agreed = self.agreed.bytes(offset, bytes.len());
        self.memory.merge_in(offset, bytes, agreed) && self.agreed.copy_in(offset, bytes)
    }

    /// Calls a function with runs of bytes in a range of whole pages that differ from what both
    /// sides last agreed on, until it returns false: offset in the shadow, and bytes. A run
    /// consists of whole [units](UNIT). Returns whether it was called with all.
    pub(super) fn changes(
        &self,
        from: u64,
        size: u64,
        mut changed: impl FnMut(u64, &[u8]) -> bool,
    ) -> bool {
        if self.joined {
            return true;
        }
        let mut page = [0; PAGE as usize];
        (from..from + size).step_by(PAGE as usize).all(|offset| {
            // Compares a copy, as `refresh` does.
            let agreed = self.agreed.bytes(offset, page.len());
            if !self.memory.copy_out(offset, &mut page) || agreed == page {
                return true;
            }
            let mut units = page.chunks(UNIT).zip(agreed.chunks(UNIT)).enumerate();
            while let Some((first, _)) = units.find(|(_, (new, old))| new != old) {
                let is_last = units.find(|(_, (new, old))| new == old);
                let end = is_last.map_or(page.len(), |(unit, _)| unit * UNIT);
                let start = first * UNIT;
                let run = page.get(start..end).unwrap_or_default();
                if !changed(offset + start as u64, run) {
                    return false;
                }
            }
            true
        })
    }

    /// Updates the agreed copy with the changed pages of a range, and calls
    /// `changed` with each run of them: offset in the shadow, and bytes.
    pub(super) fn refresh<E>(
        &self,
        from: u64,
        size: u64,
        mut changed: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.joined {
            return Ok(());
        }
        let mut page = [0; PAGE as usize];
        let (mut run, mut length) = (0, 0);
        for offset in (from..from + size).step_by(PAGE as usize) {
            // Compares a copy of the page: the device may write the page meanwhile,
            // and the bytes sent must be the bytes agreed on.
            let differs = self.memory.copy_out(offset, &mut page)
                && self.agreed.bytes(offset, page.len()) != page;
            if length > 0 && (!differs || length + page.len() > MAX_FRAME_BYTES) {
                changed(run, self.agreed.bytes(run, length))?;
                length = 0;
            }
            if differs && self.agreed.copy_in(offset, &page) {
                if length == 0 {
                    run = offset;
                }
                length += page.len();
            }
        }
        if length > 0 {
            changed(run, self.agreed.bytes(run, length))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(shadow: &Shadow, from: u64, size: u64) -> Vec<(u64, usize)> {
        let mut runs = Vec::new();
        shadow
            .refresh(from, size, |offset, bytes| {
                runs.push((offset, bytes.len()));
                Ok::<(), ()>(())
            })
            .unwrap();
        runs
    }

    /// The guest sends runs with bytes that it did not change.
    #[test]
    fn what_the_device_wrote_between_the_guests_changes_stays() {
        let shadow = Shadow {
            memory: Mapping::anywhere(PAGE).unwrap(),
            agreed: Mapping::anywhere(PAGE).unwrap(),
            joined: false,
            held: None,
        };
        for size in [1, 7, 8, 9, 16, 100] {
            shadow.clear();
            let mut guest = vec![0; size];
            for at in (0..size).step_by(3) {
                assert!(shadow.memory.copy_in(100 + at as u64, &[7]));
                if at + 1 < size {
                    guest[at + 1] = 9;
                }
            }
            assert!(shadow.write(100, &guest));
            let both = |at: usize| if at.is_multiple_of(3) { 7 } else { guest[at] };
            let both: Vec<u8> = (0..size).map(both).collect();
            assert_eq!(shadow.memory.bytes(100, size), both, "{size}");
            assert_eq!(runs(&shadow, 0, PAGE).len(), 1);
            assert_eq!(shadow.agreed.bytes(100, size), both);
        }
        let all: Vec<u8> = (0..PAGE).map(|at| at as u8 | 1).collect();
        assert!(shadow.write(0, &all));
        assert_eq!(shadow.memory.bytes(0, PAGE as usize), all);
        assert!(!shadow.write(PAGE - 1, &[1, 2]));
    }

    #[test]
    fn changes_are_told_until_they_are_agreed_on() {
        let size = 3 * PAGE;
        let shadow = Shadow {
            memory: Mapping::anywhere(size).unwrap(),
            agreed: Mapping::anywhere(size).unwrap(),
            joined: false,
            held: None,
        };
        let changes = |from, size, most: usize| {
            let mut told = Vec::new();
            let all = shadow.changes(from, size, |offset, bytes| {
                told.push((offset, bytes.to_vec()));
                told.len() < most
            });
            (told, all)
        };
        assert_eq!(changes(0, size, 9), (Vec::new(), true));
        // One byte; a run over two units; the last bytes of a page and the first of the next one.
        for (at, length) in [(35, 1), (100, 20), (2 * PAGE - 4, 8)] {
            assert!(shadow.memory.copy_in(at, &vec![7; length]));
        }
        let (told, all) = changes(0, size, 9);
        assert!(all);
        let places: Vec<_> = told.iter().map(|(at, run)| (*at, run.len())).collect();
        assert_eq!(
            places,
            [(32, 16), (96, 32), (2 * PAGE - 16, 16), (2 * PAGE, 16)]
        );
        for (at, run) in &told {
            assert_eq!(shadow.memory.bytes(*at, run.len()), run);
        }
        assert_eq!(changes(0, size, 1).0.len(), 1);
        assert!(!changes(0, size, 1).1);
        assert_eq!(changes(PAGE, PAGE, 9).0.len(), 1);
        // Telling is no agreement.
        assert_eq!(changes(0, size, 9).0, told);
        for (at, run) in &told[..3] {
            assert!(shadow.set_agreed(*at, run));
        }
        assert_eq!(changes(0, size, 9).0, told[3..]);
    }

    #[test]
    fn only_changed_pages_come_back() {
        let size = 200 * PAGE;
        let shadow = Shadow {
            memory: Mapping::anywhere(size).unwrap(),
            agreed: Mapping::anywhere(size).unwrap(),
            joined: false,
            held: None,
        };
        assert!(runs(&shadow, 0, size).is_empty());
        for page in [1, 2, 5] {
            assert!(shadow.memory.copy_in(page * PAGE + 7, &[1]));
        }
        let page = PAGE as usize;
        assert_eq!(runs(&shadow, 0, 2 * PAGE), [(PAGE, page)]);
        let rest = [(2 * PAGE, page), (5 * PAGE, page)];
        assert_eq!(runs(&shadow, 0, size), rest);
        assert!(runs(&shadow, 0, size).is_empty());
        assert!(shadow.memory.copy_in(0, &vec![9; size as usize]));
        let all = runs(&shadow, 0, size);
        assert_eq!(all.iter().map(|run| run.1).sum::<usize>() as u64, size);
        assert!(all.iter().all(|run| run.1 + 8 <= MAX_PAYLOAD));
        assert_eq!(all.len(), 4);
    }
}
