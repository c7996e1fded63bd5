//! Memory that another device's session pinned. A worker maps the window of one session
//! only, so this device has a shadow of it, at the address that the memory has for the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_protocol::handle::ShadowAddress;
use paragpu_protocol::table::{ShadowCreate, ShadowDestroy};

use super::{HostMemory, PAGE};
use crate::error::Result;
use crate::shadow::Region;
use crate::sys::memory::HostSlice;

impl HostMemory {
    /// Makes memory accessible that another device's session pinned and reaches at
    /// `device`, until [`forsake`](Self::forsake).
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; as [`Link::check`](crate::connection::Link::check).
    pub fn adopt(&self, memory: HostSlice, device: u64) -> Result<()> {
        let mut adopted = self.adopted.lock();
        if adopted.contains_key(&device) {
            return Ok(());
        }
        let within = device % PAGE;
        let (base, size) = (device - within, memory.len() as u64);
        let length = (within + size).next_multiple_of(PAGE);
        let region = Region::try_new(memory, device, base, length)?;
        self.link.call(&ShadowCreate {
            address: ShadowAddress(base),
            size: length,
        })?;
        self.shadows.add(Arc::clone(&region));
        adopted.insert(device, (size, region));
        Ok(())
    }

    /// Whether parameters of kernels name such memory. Its contents are sent when the kernels
    /// are launched, so all work before them must be complete, another device's included.
    pub(crate) fn is_adopted_in(&self, parameters: &[u8]) -> bool {
        let adopted = self.adopted.lock();
        let is_named = |word: &[u8; 8]| {
            let named = u64::from_le_bytes(*word);
            let before = adopted.range(..=named).next_back();
            before.is_some_and(|(first, (size, _))| named - first < *size)
        };
        !adopted.is_empty() && parameters.as_chunks().0.iter().any(is_named)
    }

    /// Ends this for the memory at `device`, or for all memory. The memory must still be
    /// there.
    pub fn forsake(&self, device: Option<u64>) -> Result<()> {
        let ended: BTreeMap<_, _> = {
            let mut adopted = self.adopted.lock();
            match device {
                Some(device) => adopted.remove_entry(&device).into_iter().collect(),
                None => std::mem::take(&mut *adopted),
            }
        };
        // Not under the lock: the work that this waits for may wait for another thread's launches.
        for (device, (_, region)) in ended {
            self.forget_shadow(&region)?;
            self.link.call(&ShadowDestroy {
                address: ShadowAddress(device / PAGE * PAGE),
            })?;
        }
        Ok(())
    }
}
