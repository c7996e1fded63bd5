//! Files that the program maps shared and registers, and thereby shares with the device.

use paragpu_communicator::Sender as _;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{FileMap, FileUnmap};

use crate::error::{Outcome, SessionEnd, fail};
use crate::session::completion::{Continuation, Progress};
use crate::session::gpu::Gpu;
use crate::session::host_memory::HostMemory;
use crate::session::objects::Objects;
use crate::session::replies::Replies;

impl HostMemory {
    pub(crate) fn file_map(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &FileMap,
    ) -> Outcome<()> {
        let taken = match replies.link.sender().take_file(call.file) {
            Ok(taken) => taken,
            // The file was lost with the connection.
            Err(error) if error.is_loss() => None,
            Err(error) => return Err(SessionEnd::Connection(error).into()),
        };
        let Some(file) = taken else {
            return fail(
                Status::NOT_SUPPORTED,
                format!("no file was passed as number {}", call.file),
            );
        };
        self.map_file(gpu, call.address, call.size, &file, call.offset)
    }

    pub(crate) fn file_unmap(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &FileUnmap,
    ) -> Outcome<Progress> {
        let address = call.address;
        self.check_file(address)?;
        // Kernels in flight may use the address.
        let fence = objects.streams.fence(gpu)?;
        match Progress::after(gpu, fence, Continuation::FileUnmap(address))? {
            Progress::Now => self.unmap_file(gpu, address).map(|()| Progress::Now),
            later => Ok(later),
        }
    }
}
