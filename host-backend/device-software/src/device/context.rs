//! The session's context as a whole.

use super::{SoftwareDevice, invalid};
use crate::launch::{self};
use paragpu_device::{ContextDevice, Error, Result};
use paragpu_protocol::status::Status;
use std::io::Write;

impl ContextDevice for SoftwareDevice {
    fn context_query(&mut self) -> Result<bool> {
        let idle = self.scheduler.all_idle();
        self.scheduler.check()?;
        Ok(idle)
    }

    fn context_set_limit(&mut self, limit: u32, value: u64) -> Result<()> {
        self.scheduler.check()?;
        let most = match limit {
            0 => u64::from(launch::MAX_LOCAL),
            5 => 128,
            6 => 0,
            _ => u64::MAX,
        };
        match self.limits.get_mut(&limit) {
            Some(slot) if value <= most => *slot = value,
            Some(_) => return Err(invalid("limit too large")),
            None => {
                return Err(Error::new(
                    Status::NOT_SUPPORTED,
                    format!("context limit {limit}"),
                ));
            }
        }
        Ok(())
    }

    fn context_limit(&mut self, limit: u32) -> Result<u64> {
        self.scheduler.check()?;
        let value = self.limits.get(&limit).copied();
        value.ok_or_else(|| Error::new(Status::NOT_SUPPORTED, format!("context limit {limit}")))
    }

    fn flush_output(&mut self) -> Result<()> {
        let text = self.output.take();
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

    fn computes_on_host(&self) -> bool {
        true
    }
}
