//! Calls about the session itself: ping, and the snapshot of its device.

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{Ping, SnapshotDevice};

use crate::error::{Fault, fail};
use crate::session::Session;
use crate::session::link::At;

impl Session {
    pub(crate) fn ping(&mut self, at: At, call: &Ping) -> Result<bool, Fault> {
        self.answer(at, Ok(call.value))
    }

    pub(crate) fn snapshot_device(&mut self, at: At, call: &SnapshotDevice) -> Result<bool, Fault> {
        let (ours, ordinal) = (self.gpu.ordinal(), call.ordinal);
        if ordinal != ours {
            let why = format!("this session is of device {ours}, not {ordinal}");
            return self.answer::<()>(at, fail(Status::INVALID_DEVICE, why));
        }
        if at.slot != 0 {
            // It is encoded only once: the guest requests all of it at its start.
            let snapshot = self.gpu.snapshot().to_vec();
            let status = Status::SUCCESS.0.to_le_bytes();
            self.reply(at, &status, &snapshot)?;
        }
        Ok(true)
    }
}
