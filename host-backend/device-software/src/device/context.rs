//! The session's context as a whole.

use super::SoftwareDevice;
use paragpu_device::{ContextDevice, Error, HostMemory, Result};
use paragpu_protocol::status::Status;
use std::io::Write;
use std::sync::Arc;

impl ContextDevice for SoftwareDevice {
    fn context_query(&mut self) -> Result<bool> {
        let idle = self.scheduler.all_idle();
        self.scheduler.check()?;
        Ok(idle)
    }

    fn begin(&mut self) {
        self.scheduler.begin();
    }

    fn flush_output(&mut self) -> Result<()> {
        let text = self.launching.output.take();
        if text.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(&text)
            .and_then(|()| out.flush())
            .map_err(|e| {
                Error::new(
                    Status::OPERATING_SYSTEM,
                    format!("cannot write what kernels printed: {e}"),
                )
            })
    }

    fn charge_to(&mut self, account: Arc<dyn HostMemory>) {
        self.launching.kernel_memory.charge_to(account);
    }

    fn computes_on_host(&self) -> bool {
        true
    }
}
