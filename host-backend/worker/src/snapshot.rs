//! Calls about the session itself: ping, and the snapshot of its device.

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{Ping, SnapshotDevice};

use crate::error::{Fault, Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::session::replies::Replies;

impl Gpu {
    pub(crate) fn ping(&mut self, call: &Ping) -> Outcome<u64> {
        Ok(call.value)
    }
}

impl Replies {
    pub(crate) fn snapshot_device(
        &mut self,
        gpu: &mut Gpu,
        at: At,
        call: &SnapshotDevice,
    ) -> Result<bool, Fault> {
        let (ours, ordinal) = (gpu.ordinal(), call.ordinal);
        if ordinal != ours {
            let why = format!("this session is of device {ours}, not {ordinal}");
            return self.answer::<()>(gpu, at, fail(Status::INVALID_DEVICE, why));
        }
        if at.slot != 0 {
            // It is encoded only once: the guest requests all of it at its start.
            let snapshot = gpu.snapshot().to_vec();
            let status = Status::SUCCESS.0.to_le_bytes();
            self.send(at, &status, &snapshot)?;
        }
        Ok(true)
    }
}
