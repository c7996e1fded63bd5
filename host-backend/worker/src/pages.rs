//! Direct copies between the device and guest memory that the host can access, without
//! the ring or the window. The guest's kernel describes the memory in a page list. The
//! worker trusts the list only within the VM's own memory.

use paragpu_communicator_ring::guest_memory::CHECKED;
use paragpu_protocol::table::{CheckPages, CopyPagesFromDevice, CopyPagesToDevice};

use crate::error::Outcome;
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::copy_in::CopyIn;
use crate::session::copy_out::CopyOut;
use crate::session::gpu::Gpu;
use crate::session::host_memory::HostMemory;
use crate::session::objects::Objects;
use crate::session::transfer::Transfer;

impl HostMemory {
    pub(crate) fn check_pages<T>(
        &mut self,
        _: &mut Gpu,
        transfer: &Transfer<T>,
        call: &CheckPages,
    ) -> Outcome<()> {
        let list = self.pages().take(call.list, CHECKED)?;
        let vm = &transfer.identity().vm;
        self.pages().check(&list, call.value, vm)
    }

    pub(crate) fn copy_pages_to_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyPagesToDevice,
    ) -> Outcome<Progress> {
        let stream = objects.streams.for_work(gpu, call.stream)?;
        let list = self.pages().take(call.list, call.size)?;
        let copy = CopyIn::new(list, call.destination, stream);
        Ok(Progress::Later(Goal::CopyIn(copy), Continuation::Reply))
    }

    pub(crate) fn copy_pages_from_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyPagesFromDevice,
    ) -> Outcome<Progress> {
        let stream = objects.streams.for_work(gpu, call.stream)?;
        let list = self.pages().take(call.list, call.size)?;
        let copy = CopyOut::into_pages(call.source, list, stream);
        Ok(Progress::Later(Goal::CopyOut(copy), Continuation::Reply))
    }
}
