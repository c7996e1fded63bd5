//! Copies of pageable memory by the host itself, if it can access guest memory. The
//! program's pages are pinned and their addresses sent; the guest copies nothing.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use paragpu_communicator::Pinner;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CheckPages, CopyPagesFromDevice, CopyPagesToDevice};

use super::Copies;
use crate::error::Result;
use crate::objects::stream::Stream;

/// Minimum size of a copy for which pinning pages is worthwhile.
const SHORTEST: usize = 256 << 10;
/// Copies of at least this size have two pieces in flight: while the host copies
/// one, the next is pinned.
const TWICE: usize = 4 << 20;

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToDevice,
    FromDevice,
}

/// The state of direct copies of one session.
pub(super) struct Direct {
    pinner: Arc<dyn Pinner>,
    /// Set once the host cannot access guest memory.
    off: AtomicBool,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

/// A copy's ends.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    direction: Direction,
    device: u64,
    host: u64,
    size: usize,
}

/// The page that both sides write to check that they share memory.
#[repr(C, align(16))]
struct Shared([AtomicU64; 2]);

impl Direct {
    /// Lets `call` use `length` bytes at `address`; `None` if they cannot be pinned.
    fn pinned(
        &self,
        address: u64,
        length: u64,
        writable: bool,
        call: impl FnOnce(u32) -> Result<()>,
    ) -> Option<Result<()>> {
        let list = self.pinner.pin(address, length, writable)?;
        let called = call(list);
        self.pinner.unpin(list);
        Some(called)
    }

    pub(super) fn new(pinner: Arc<dyn Pinner>) -> Self {
        Self {
            pinner,
            off: AtomicBool::new(false),
        }
    }
}

impl Copies {
    /// The state, if a direct copy of `size` bytes is worthwhile. A session that
    /// has reconnected may be on any host.
    pub(super) fn direct(&self, size: usize) -> Option<&Direct> {
        self.direct.as_ref().filter(|direct| {
            size >= SHORTEST && !direct.off.load(Ordering::Relaxed) && self.link.reconnects() == 0
        })
    }

    /// Copies between `size` bytes at `host` of this process and `device`, in order of
    /// `stream`. Returns how many leading bytes were copied. If they are fewer than
    /// `size`, the caller copies the rest in another way.
    ///
    /// # Errors
    /// The error of failed work.
    pub(super) fn copy_direct(
        &self,
        direct: &Direct,
        direction: Direction,
        device: u64,
        host: u64,
        size: usize,
        stream: &Stream,
    ) -> Result<usize> {
        let transfer = Transfer {
            direction,
            device,
            host,
            size,
        };
        let next = AtomicUsize::new(0);
        if size < TWICE {
            return self.pieces(direct, transfer, stream, &next);
        }
        // Both threads take pieces in order. The first that fails stops both, and
        // everything before its piece is copied. If no thread can be started, this one takes
        // all pieces.
        let (one, other) = std::thread::scope(|scope| {
            let pieces = || self.pieces(direct, transfer, stream, &next);
            let helper = std::thread::Builder::new().spawn_scoped(scope, pieces);
            let one = pieces();
            let other = helper.map_or(Ok(size), |helper| {
                helper.join().unwrap_or(Err(Status::UNKNOWN))
            });
            (one, other)
        });
        Ok(one?.min(other?))
    }

    /// Copies pieces. Returns the start of the first that failed, or the whole
    /// size.
    fn pieces(
        &self,
        direct: &Direct,
        transfer: Transfer,
        stream: &Stream,
        next: &AtomicUsize,
    ) -> Result<usize> {
        loop {
            let (at, length) = match transfer.take(direct.pinner.most(), next) {
                Some(piece) => piece,
                None => return Ok(transfer.size),
            };
            if !self.piece(direct, transfer, at, length, stream)? {
                next.store(transfer.size, Ordering::Relaxed);
                return Ok(at);
            }
        }
    }

    /// Returns false if the piece must be copied in another way.
    fn piece(
        &self,
        direct: &Direct,
        transfer: Transfer,
        at: usize,
        length: usize,
        stream: &Stream,
    ) -> Result<bool> {
        let device = transfer.device + at as u64;
        let (host, size) = (transfer.host + at as u64, length as u64);
        let stream = stream.handle();
        let copy = |list| match transfer.direction {
            Direction::ToDevice => self.link.call(&CopyPagesToDevice {
                destination: device,
                list,
                size,
                stream,
            }),
            Direction::FromDevice => self.link.call(&CopyPagesFromDevice {
                source: device,
                list,
                size,
                stream,
            }),
        };
        let writable = transfer.direction == Direction::FromDevice;
        let copied = match direct.pinned(host, size, writable, copy) {
            // The first copy of a session, or of its current worker.
            Some(Err(Status::MAP_FAILED)) if self.host_shares_pages(direct)? => {
                direct.pinned(host, size, writable, copy)
            }
            other => other,
        };
        match copied {
            Some(Ok(())) => Ok(true),
            Some(Err(Status::MAP_FAILED)) => {
                direct.off.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Some(Err(status)) => Err(status),
            None => Ok(false),
        }
    }

    /// Whether the host sees this process's bytes. It may have access to a copy of guest
    /// memory that the hypervisor does not use.
    fn host_shares_pages(&self, direct: &Direct) -> Result<bool> {
        let value = RandomState::new().build_hasher().finish();
        let shared = Box::new(Shared([AtomicU64::new(value.to_le()), AtomicU64::new(0)]));
        let [_, answer] = &shared.0;
        let address = std::ptr::from_ref(&*shared).addr() as u64;
        let check = |list| self.link.call(&CheckPages { list, value });
        match direct.pinned(address, size_of::<Shared>() as u64, true, check) {
            Some(Ok(())) => Ok(u64::from_le(answer.load(Ordering::Acquire)) == !value),
            Some(Err(Status::MAP_FAILED)) | None => Ok(false),
            Some(Err(status)) => Err(status),
        }
    }
}

impl Transfer {
    /// The next piece: start and length. Pieces end at multiples of `most`, so that
    /// each spans as few pages as possible.
    fn take(&self, most: u64, next: &AtomicUsize) -> Option<(usize, usize)> {
        let most = most.max(4096);
        let end_of = |at: usize| {
            let address = self.host + at as u64;
            let left = most - address % most;
            at + usize::try_from(left).map_or(self.size - at, |left| left.min(self.size - at))
        };
        let order = Ordering::Relaxed;
        let at = next
            .fetch_update(order, order, |at| (at < self.size).then(|| end_of(at)))
            .ok()?;
        Some((at, end_of(at) - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_and_aligned() {
        let transfer = Transfer {
            direction: Direction::ToDevice,
            device: 0,
            host: 0x7000_0012_3456,
            size: 9_000_001,
        };
        let next = AtomicUsize::new(0);
        let mut at = 0;
        while let Some((begin, length)) = transfer.take(4 << 20, &next) {
            assert_eq!(begin, at);
            assert!(length > 0 && length <= 4 << 20);
            at += length;
            let end = transfer.host + at as u64;
            assert!(end.is_multiple_of(4 << 20) || at == transfer.size);
        }
        assert_eq!(at, transfer.size);
    }
}
