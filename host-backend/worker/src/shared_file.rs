//! Files that the program maps shared and registers, and thereby shares with the device.

use paragpu_communicator::Sender as _;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{FileMap, FileUnmap};

use crate::error::{Outcome, SessionEnd, fail};
use crate::session::Session;
use crate::session::completion::{Continuation, Progress};

impl Session {
    pub(crate) fn file_map(&mut self, call: &FileMap) -> Outcome<()> {
        let taken = match self.link.sender().take_file(call.file) {
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
        self.host
            .map_file(&mut self.gpu, call.address, call.size, &file, call.offset)
    }

    pub(crate) fn file_unmap(&mut self, call: &FileUnmap) -> Outcome<Progress> {
        let address = call.address;
        self.host.check_file(address)?;
        // Kernels in flight may use the address.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        match self.after(fence, Continuation::FileUnmap(address))? {
            Progress::Now => self
                .host
                .unmap_file(&mut self.gpu, address)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }
}
