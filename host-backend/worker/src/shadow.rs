//! Shadows: guest host memory without a place in a window, of which the
//! worker holds a copy at an address of its own that kernels reach.
//!
//! A second copy remembers what both sides agreed on last, so that only pages
//! that a kernel changed travel back.

use paragpu_communicator::Sender;
use paragpu_device::Error;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::{Control, MAX_PAYLOAD};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowCreate, ShadowDestroy, ShadowPatch, ShadowRead, ShadowWrite};

use crate::answer::{At, Progress};
use crate::completion::Then;
use crate::error::{Outcome, fail};
use crate::memory::PAGE;
use crate::session::Session;
use crate::sys::mapping::Mapping;
use crate::transfer::state::StateError;

/// One shadow.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// What the device sees.
    memory: Mapping,
    /// What both sides agreed on last.
    agreed: Mapping,
}

/// Most bytes of one data frame: whole pages, after the offset.
const MOST: usize = (MAX_PAYLOAD - 8) / PAGE as usize * PAGE as usize;

impl Shadow {
    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.memory.len()
    }

    fn end(&self) -> u64 {
        self.memory.address() + self.memory.len()
    }

    /// Brings the changed pages of a range to the agreed copy and calls
    /// `changed` with runs of them: offset in the shadow and bytes.
    fn refresh<E>(
        &self,
        from: u64,
        size: u64,
        mut changed: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut page = [0; PAGE as usize];
        let (mut run, mut length) = (0, 0);
        for offset in (from..from + size).step_by(PAGE as usize) {
            let differs = self.memory.copy_out(offset, &mut page)
                && self.agreed.bytes(offset, page.len()) != page;
            if length > 0 && (!differs || length + page.len() > MOST) {
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

impl Session {
    pub(crate) fn shadow_create(&mut self, call: &ShadowCreate) -> Outcome<()> {
        let (address, size) = (call.address.0, call.size);
        let inside = Regions::holds(self.regions.shadow, address, size);
        if size == 0 || !(address | size).is_multiple_of(PAGE) || !inside {
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are not pages of the shadow region"),
            );
        }
        self.make_shadow(address, size)
    }

    /// A shadow at pages of the shadow region or of the window's.
    pub(crate) fn make_shadow(&mut self, address: u64, size: u64) -> Outcome<()> {
        let before = self.shadows.range(..address + size).next_back();
        if before.is_some_and(|(_, shadow)| shadow.end() > address) {
            return fail(
                Status::HOST_MEMORY_ALREADY_REGISTERED,
                format!("{size} bytes at {address:#x} overlap another shadow"),
            );
        }
        let held = self.statistics.host_memory.get().saturating_add(size);
        if held > self.host_memory {
            let limit = self.host_memory;
            return fail(
                Status::OUT_OF_MEMORY,
                format!("the session may have {limit} bytes of host memory"),
            );
        }
        let (memory, agreed) = match (Mapping::at(address, size), Mapping::anywhere(size)) {
            (Ok(memory), Ok(agreed)) => (memory, agreed),
            (Err(errno), _) | (_, Err(errno)) => {
                return fail(
                    Status::OUT_OF_MEMORY,
                    format!("the host cannot map {size} bytes at {address:#x}: {errno}"),
                );
            }
        };
        self.device.host_register(address, size)?;
        self.shadows.insert(address, Shadow { memory, agreed });
        self.statistics.host_memory.set(held);
        Ok(())
    }

    pub(crate) fn shadow_destroy(&mut self, call: &ShadowDestroy) -> Outcome<Progress> {
        let address = call.address.0;
        if !self.shadows.contains_key(&address) {
            return fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no shadow starts at {address:#x}"),
            );
        }
        let fence = self.fence()?;
        match self.after(fence, Then::ShadowDestroy(address))? {
            Progress::Now => self.shadow_destroy_now(address).map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    /// The rest of [`shadow_destroy`](Self::shadow_destroy), when no work uses
    /// the memory any more. Where the device keeps it, it stays mapped.
    pub(crate) fn shadow_destroy_now(&mut self, address: u64) -> Outcome<()> {
        if !self.shadows.contains_key(&address) {
            return fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no shadow starts at {address:#x}"),
            );
        }
        self.device.host_unregister(address)?;
        if let Some(shadow) = self.shadows.remove(&address) {
            let held = self.statistics.host_memory.get();
            self.statistics
                .host_memory
                .set(held.saturating_sub(shadow.memory.len()));
        }
        Ok(())
    }

    /// Bytes of a shadow that both sides agreed on last, for a session that moves.
    pub(crate) fn agreed(&self, address: u64, offset: u64, size: u64) -> Result<&[u8], StateError> {
        let shadow = self.shadows.get(&address);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        shadow
            .map(|shadow| shadow.agreed.bytes(offset, size))
            .filter(|bytes| bytes.len() == size)
            .ok_or(StateError::Order("contents of a shadow that is not there"))
    }

    /// The same of a session that came.
    pub(crate) fn set_agreed(
        &mut self,
        address: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let shadow = self.shadows.get(&address);
        match shadow.map(|shadow| shadow.agreed.copy_in(offset, bytes)) {
            Some(true) => Ok(()),
            _ => Err(StateError::Order("contents of a shadow that is not there")),
        }
    }

    /// The shadow that holds a whole range, and the range's offset in it.
    fn shadow_of(&self, address: u64, size: u64) -> Outcome<(&Shadow, u64)> {
        let end = address.checked_add(size);
        let found = self.shadows.range(..=address).next_back();
        match found {
            Some((start, shadow)) if end.is_some_and(|end| end <= shadow.end()) => {
                Ok((shadow, address - start))
            }
            _ => fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are not inside a shadow"),
            ),
        }
    }

    pub(crate) fn shadow_write(&mut self, call: &ShadowWrite<'_>) -> Outcome<()> {
        self.shadow_run(call.address, call.data.0)
    }

    pub(crate) fn shadow_patch(&mut self, call: &ShadowPatch<'_>) -> Outcome<()> {
        let cut_short = |_| Error::new(Status::INVALID_VALUE, "a run is cut short");
        let overflow = || Error::new(Status::INVALID_VALUE, "a run's address overflows");
        let mut runs = Reader::new(call.runs.0);
        let mut at = call.address;
        while runs.remaining() > 0 {
            let gap: u32 = runs.field().map_err(cut_short)?;
            let length: u32 = runs.field().map_err(cut_short)?;
            let bytes = runs.bytes(length as usize).map_err(cut_short)?;
            at = at.checked_add(gap.into()).ok_or_else(overflow)?;
            self.shadow_run(at, bytes)?;
            at = at.checked_add(length.into()).ok_or_else(overflow)?;
        }
        Ok(())
    }

    /// Writes one run of the guest's bytes.
    pub(crate) fn shadow_run(&self, address: u64, bytes: &[u8]) -> Outcome<()> {
        let (shadow, offset) = self.shadow_of(address, bytes.len() as u64)?;
        let written = shadow.memory.copy_in(offset, bytes) && shadow.agreed.copy_in(offset, bytes);
        self.statistics.bytes_to_device.add(bytes.len() as u64);
        if written {
            Ok(())
        } else {
            fail(Status::INVALID_VALUE, "outside the shadow")
        }
    }

    pub(crate) fn shadow_read(&mut self, at: At, call: &ShadowRead) -> Outcome<()> {
        let (address, size) = (call.address, call.size);
        let (shadow, from) = self.shadow_of(address, size)?;
        if !(address | size).is_multiple_of(PAGE) {
            return fail(Status::INVALID_VALUE, "a shadow is read by pages");
        }
        let (sender, executed) = (&self.sender, self.executed());
        let mut sent = 0;
        shadow.refresh(from, size, |offset, bytes| {
            sent += bytes.len() as u64;
            let offset = (offset - from).to_le_bytes();
            let kind = Control::Data.kind();
            sender
                .send(kind, at.slot, Some(executed), &[&offset, bytes])
                .map(drop)
        })?;
        self.statistics.bytes_from_device.add(sent);
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
