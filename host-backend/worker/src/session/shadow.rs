//! One shadow: the worker's copy of guest memory outside any window, at an address
//! that kernels can use.
//!
//! Coherence. There are two copies. `memory` is what the device sees; kernels and
//! copies write it at any time. `agreed` is the state that guest and worker last
//! agreed on. The guest's writes go to both. A read compares the two by page, sends
//! only the pages that differ, and updates `agreed` with what it sent. So a page
//! that no kernel wrote is never sent back, and a page that the guest wrote is not
//! mistaken for one that a kernel wrote.

use super::host_account::Charge;
use crate::sys::mapping::Mapping;

use paragpu_protocol::frame::MAX_PAYLOAD;

/// Unit of registered host memory.
pub(crate) const PAGE: u64 = 4096;
/// Maximum number of bytes of one data frame: whole pages, after the offset.
const MAX_FRAME_BYTES: usize = (MAX_PAYLOAD - 8) / PAGE as usize * PAGE as usize;

/// One shadow.
#[derive(Debug)]
pub(super) struct Shadow {
    /// The device's copy.
    memory: Mapping,
    /// The state that both sides last agreed on.
    agreed: Mapping,
    /// The charge for both copies; none for a shadow without a session.
    _held: Option<Charge>,
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
            _held: Some(held),
        })
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

    /// Writes bytes of the guest. Returns false past the end.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        self.memory.copy_in(offset, bytes) && self.agreed.copy_in(offset, bytes)
    }

    /// Whether a range of whole pages differs from what both sides last agreed on.
    pub(super) fn has_changed(&self, from: u64, size: u64) -> bool {
        let mut page = [0; PAGE as usize];
        (from..from + size).step_by(PAGE as usize).any(|offset| {
            self.memory.copy_out(offset, &mut page) && self.agreed.bytes(offset, page.len()) != page
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

    #[test]
    fn only_changed_pages_come_back() {
        let size = 200 * PAGE;
        let shadow = Shadow {
            memory: Mapping::anywhere(size).unwrap(),
            agreed: Mapping::anywhere(size).unwrap(),
            _held: None,
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
