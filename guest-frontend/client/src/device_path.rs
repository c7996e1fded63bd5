//! Copies of managed memory to and from the device. They do not wait for work of the
//! program.

use std::sync::{Arc, Weak};

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::table::{ShadowRead, ShadowWrite};

use crate::connection::Link;
use crate::copy::Copies;
use crate::error::Result;
use crate::objects::stream::Stream;
use crate::shadow::DeviceContents;
use crate::shadow::difference::changed_bytes;
use crate::shadow::patch::{Patch, WRITE};
use crate::statistics;
use crate::stream::Streams;
use crate::sys::memory::{HostRows, HostSlice};

/// The calls and copies of a session.
#[derive(Debug)]
pub(crate) struct DevicePath {
    link: Arc<Link>,
    streams: Weak<Streams>,
    copies: Weak<Copies>,
    /// For copies that wait for nothing else.
    stream: Arc<Stream>,
}

impl DevicePath {
    pub(crate) fn new(
        link: &Arc<Link>,
        streams: &Arc<Streams>,
        copies: &Arc<Copies>,
        stream: Arc<Stream>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            streams: Arc::downgrade(streams),
            copies: Arc::downgrade(copies),
            stream,
        }
    }

    /// Reads device memory behind no work.
    fn read(&self, start: u64, fetched: &mut [u8]) -> Result<()> {
        let read = ShadowRead {
            address: start,
            size: fetched.len() as u64,
        };
        let mut noted = Vec::new();
        let rows = HostRows::of(fetched, &mut noted);
        self.link.call_with(&read, Some(rows), |()| ())
    }
}

impl DeviceContents for DevicePath {
    fn send(&self, start: u64, host: HostSlice) -> Result<bool> {
        statistics::count_to_device(host.len() as u64);
        if let Some(copies) = self.copies.upgrade()
            && copies.send_in_bulk(start, &host, &self.stream)?
        {
            return Ok(true);
        }
        let _lending = self.link.lending();
        for offset in (0..host.len()).step_by(WRITE) {
            let part = host.cut(offset, WRITE);
            let write = ShadowWrite {
                address: start + offset as u64,
                data: Bytes(part.as_ref()),
            };
            self.link.post_and(&write, Some(part), |_| {})?;
        }
        Ok(false)
    }

    fn finish(&self) -> Result<()> {
        match self.streams.upgrade() {
            Some(streams) => streams.finish_own(&self.stream),
            None => Ok(()),
        }
    }

    fn settle(&self, address: u64) -> Result<()> {
        // Reads are in order with writes, and like these do not wait behind host functions.
        self.read(address, &mut [0])
    }

    fn send_changes(&self, start: u64, former: &[u8], host: HostSlice) -> Result<()> {
        let mut patch = Patch::default();
        let mut at = 0;
        while let Some((from, to)) = changed_bytes(former, host.as_ref(), at) {
            let run = host.part(from, to - from);
            if !patch.holds(from, run.len()) {
                patch.send(&self.link, start)?;
            }
            patch.add(from, run);
            at = to;
        }
        patch.send(&self.link, start)
    }

    fn fetch(
        &self,
        start: u64,
        size: usize,
        in_flight: bool,
        take: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        const ATTEMPTS: usize = 8;
        statistics::count_from_device(size as u64);
        if !in_flight
            && let Some(copies) = self.copies.upgrade()
            && copies.fetch_in_bulk(start, size, &self.stream, |at, bytes| {
                take(at, bytes.as_ref())
            })?
        {
            return Ok(());
        }
        let mut fetched = vec![0; size];
        self.read(start, &mut fetched)?;
        for _ in 0..if in_flight { ATTEMPTS } else { 0 } {
            let before = fetched.clone();
            self.read(start, &mut fetched)?;
            if before == fetched {
                break;
            }
        }
        take(0, &fetched)
    }
}
