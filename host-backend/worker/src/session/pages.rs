//! VM memory that the host can access, and the page lists by which the guest's kernel
//! refers to it.

use paragpu_communicator_ring::guest_memory::{GuestMemory, List, ListError};
use paragpu_protocol::status::Status;

use crate::error::{Fault, Outcome, fail};

/// Makes the guest send the bytes in another way. No other failure of a copy has this
/// status.
const UNREACHED: Status = Status::MAP_FAILED;

fn refused(error: &ListError) -> Fault {
    let status = match error {
        ListError::NotMapped(_) | ListError::NotShared(_) => UNREACHED,
        _ => Status::INVALID_VALUE,
    };
    Fault::Call(paragpu_device::Error::new(status, error.to_string()))
}

/// The error if guest memory is not accessible.
pub(crate) fn unreached<T>() -> Outcome<T> {
    fail(UNREACHED, "this worker cannot access the guest's memory")
}

/// The VM's memory, if the host can access it.
#[derive(Debug, Default)]
pub(crate) struct GuestPages {
    memory: Option<GuestMemory>,
    /// Whether the log reports that the host does not see it: once, because the guest can
    /// make the check fail as often as it likes.
    reported: bool,
}

impl GuestPages {
    /// Sets the memory of the VM that owns the session's channel.
    pub(crate) fn adopt(&mut self, memory: Option<GuestMemory>) {
        self.memory = memory;
    }

    /// Claims a page list of `size` bytes.
    pub(crate) fn take(&self, number: u32, size: u64) -> Outcome<List> {
        let Some(memory) = &self.memory else {
            return unreached();
        };
        let list = memory.take(number).map_err(|error| refused(&error))?;
        if size == 0 || size != list.length() {
            let named = list.length();
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes of a page list of {named} bytes"),
            );
        }
        Ok(list)
    }

    /// Checks that the guest and the host see the same memory.
    pub(crate) fn check(&mut self, list: &List, value: u64, vm: &str) -> Outcome<()> {
        let Some(memory) = &mut self.memory else {
            return unreached();
        };
        let reported = &mut self.reported;
        memory.check(list, value).map_err(|error| {
            if matches!(error, ListError::NotShared(_)) && !std::mem::replace(reported, true) {
                tracing::warn!(
                    vm,
                    "the hypervisor maps the VM's memory for itself alone, so that all bytes \
                     cross through the window: QEMU's memory-backend-memfd needs share=on"
                );
            }
            refused(&error)
        })
    }

    /// Reads from the guest's memory.
    pub(crate) fn read(&mut self, list: &List, at: u64, to: &mut [u8]) -> Outcome<()> {
        match &mut self.memory {
            Some(memory) => memory.read(list, at, to).map_err(|error| refused(&error)),
            None => unreached(),
        }
    }

    /// Writes to the guest's memory.
    pub(crate) fn write(&mut self, list: &List, at: u64, from: &[u8]) -> Outcome<()> {
        match &mut self.memory {
            Some(memory) => memory
                .write(list, at, from)
                .map_err(|error| refused(&error)),
            None => unreached(),
        }
    }
}
