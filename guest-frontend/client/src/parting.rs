//! Leaving a window: what happens to pinned memory in it where the session
//! goes to a host that does not see it.
//!
//! The program keeps its memory where it is; the host has memory of its own at
//! the same addresses, and from then on the two are kept in agreement like any
//! shadow ([`crate::coherence`]). One thread does this between two connections
//! ([`crate::recover`]), while others may be anywhere in a call:
//!
//! - A thread that looked at the window before it was left, and posts its work
//!   after, named memory whose bytes stood there before, so they are among
//!   those sent now; work that may write is noted after it was posted.
//! - Copies that are half done go on in the staging slots, which stay from then
//!   on like what the program pinned, also where a VM's device goes away.
//! - The shadows are held from the moment at which they can be found until
//!   their bytes were taken, so that nobody sends what changed before it is
//!   known what it changed from.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use paragpu_communicator::Error;
use paragpu_protocol::layout::BULK_TOKEN_BYTES;

use crate::coherence::Region;
use crate::host::{Backing, DEVICEMAP, Host};
use crate::memory::write;
use crate::session::Session;
use crate::slots::lock;
use crate::staging::Staging;

/// Bytes in one frame.
const PIECE: usize = 128 << 10;

/// Bytes that a host lacks.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// Address of the first, for program and device.
    address: u64,
    bytes: Arc<Vec<u8>>,
}

impl Content {
    /// What a host that has zeros there must be sent: addresses and bytes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let begins = (self.address..).step_by(PIECE);
        let pieces = begins.zip(self.bytes.chunks(PIECE));
        pieces.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
    }
}

impl Host {
    /// Has the session left its window?
    pub(crate) fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Acquire)
    }

    /// The host has got what it lacked.
    pub(crate) fn settle_contents(&self) {
        lock(&self.contents).clear();
    }
}

impl Session {
    /// The staging slots, as long as the host sees them.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref().filter(|_| !self.host.is_apart())
    }

    /// Makes shadows of all pinned memory of the window. What the host lacks
    /// of them: the same every time, until it has got it.
    ///
    /// # Errors
    /// Where the window's memory is gone.
    pub(crate) fn leave_window(&self) -> Result<Vec<Content>, Error> {
        let mut contents = lock(&self.host.contents);
        if self.host.is_apart() {
            return Ok(contents.clone());
        }
        if let Some(window) = &self.host.memory {
            window.keep()?;
        }
        let position = self.progress.posted();
        *lock(&self.host.window) = None;
        let pinned = write(&self.host.pinned);
        let mut regions: Vec<(Arc<Region>, bool)> = Vec::new();
        for pinned in pinned.values() {
            if let Backing::Window(offset, length) = pinned.backing
                && let Some(region) = self.host.region(offset, length)
            {
                if pinned.flags & DEVICEMAP != 0 || self.host.is_named() {
                    region.show();
                }
                regions.push((region, true));
            }
        }
        if let Some(staging) = &self.staging {
            let length = staging.end() - BULK_TOKEN_BYTES;
            let region = self.host.region(BULK_TOKEN_BYTES, length);
            // Slots that the host was not told of were not used.
            regions.extend(region.map(|region| (region, staging.is_registered())));
        }
        let mut held: Vec<_> = regions.iter().map(|(region, _)| region.hold()).collect();
        for (region, _) in &regions {
            self.enter_shadow(Arc::clone(region));
        }
        self.host.apart.store(true, Ordering::Release);
        drop(pinned);
        for ((region, known), state) in regions.iter().zip(&mut held) {
            if *known {
                contents.push(Content {
                    address: region.on_wire().0,
                    bytes: region.agree(state, position),
                });
            }
        }
        Ok(contents.clone())
    }
}
