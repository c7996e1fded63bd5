//! Direct copies between the device and guest memory that the host can access, without
//! the ring or the window. The guest's kernel describes the memory in a page list. The
//! worker trusts the list only within the VM's own memory.

use paragpu_communicator_ring::guest_memory::CHECKED;
use paragpu_protocol::table::{CheckPages, CopyPagesFromDevice, CopyPagesToDevice};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::copy_in::CopyIn;
use crate::session::copy_out::CopyOut;

impl Session {
    pub(crate) fn check_pages(&mut self, call: &CheckPages) -> Outcome<()> {
        let list = self.host.pages().take(call.list, CHECKED)?;
        let vm = &self.transfer.identity().vm;
        self.host.pages().check(&list, call.value, vm)
    }

    pub(crate) fn copy_pages_to_device(&mut self, call: &CopyPagesToDevice) -> Outcome<Progress> {
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        let list = self.host.pages().take(call.list, call.size)?;
        let copy = CopyIn::new(list, call.destination, stream);
        Ok(Progress::Later(Goal::CopyIn(copy), Continuation::Reply))
    }

    pub(crate) fn copy_pages_from_device(
        &mut self,
        call: &CopyPagesFromDevice,
    ) -> Outcome<Progress> {
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        let list = self.host.pages().take(call.list, call.size)?;
        let copy = CopyOut::into_pages(call.source, list, stream);
        Ok(Progress::Later(Goal::CopyOut(copy), Continuation::Reply))
    }
}
