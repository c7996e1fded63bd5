//! Memory that nodes of graphs allocate and free.
//!
//! It exists from the creation of its node, which determines its address. Later nodes of the graph
//! that come after it was freed may allocate it again. A launch only records the owner. Memory that
//! a graph leaves allocated belongs to the program, even after the graph ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock};

use crate::error::Result;

/// By the guest's device.
static USAGE: Mutex<BTreeMap<u32, Usage>> = Mutex::new(BTreeMap::new());

/// By first address.
static ALL: RwLock<BTreeMap<u64, Weak<GraphMemory>>> = RwLock::new(BTreeMap::new());

/// Where the memory comes from.
pub(crate) trait Backing: std::fmt::Debug + Send + Sync {
    /// First address of this many bytes.
    fn allocate(&self, size: u64) -> Result<u64>;
    /// Returns them.
    fn free(&self, address: u64) -> Result<()>;
}

/// How much memory the graphs of a device have, in bytes (cuDeviceGetGraphMemAttribute).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Memory allocated by launches. It counts until a trim, even after it was freed.
    pub used: u64,
    /// Its high-water mark.
    pub used_high: u64,
    /// The limit of graph allocations.
    pub reserved: u64,
    /// Its high-water mark.
    pub reserved_high: u64,
}

impl Usage {
    /// Of a device's graphs.
    #[must_use]
    pub fn of(ordinal: u32) -> Self {
        USAGE.lock().get(&ordinal).copied().unwrap_or_default()
    }

    /// Updates a device's numbers, and their maxima.
    pub fn change(ordinal: u32, change: impl FnOnce(&mut Self)) {
        let mut all = USAGE.lock();
        let usage = all.entry(ordinal).or_default();
        change(usage);
        usage.used_high = usage.used_high.max(usage.used);
        usage.reserved_high = usage.reserved_high.max(usage.reserved);
    }
}

/// Which graphs have nodes that free memory of a graph.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum FreedBy {
    #[default]
    None,
    ItsGraph,
    Others,
}

/// Memory of a graph's nodes.
#[derive(Debug)]
pub struct GraphMemory {
    /// Device of the guest that has it.
    pub ordinal: u32,
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    backing: Arc<dyn Backing>,
    /// Number of nodes made to allocate it.
    lifetimes: AtomicU64,
    /// Which graphs have nodes that free what the last of these allocates.
    freed_by: Mutex<FreedBy>,
    /// Allocated by a launch, and not freed since.
    allocated: AtomicBool,
    /// Counted as used.
    used: AtomicBool,
}

impl GraphMemory {
    pub(crate) fn new(ordinal: u32, backing: Arc<dyn Backing>, size: u64) -> Result<Arc<Self>> {
        let address = backing.allocate(size)?;
        let made = Arc::new(Self {
            ordinal,
            address,
            size,
            backing,
            lifetimes: AtomicU64::new(1),
            freed_by: Mutex::default(),
            allocated: AtomicBool::new(false),
            used: AtomicBool::new(false),
        });
        Usage::change(ordinal, |usage| usage.reserved += size);
        ALL.write().insert(address, Arc::downgrade(&made));
        Ok(made)
    }

    /// Another node is made to allocate it, if all of the `freed` ones before have freed it.
    pub(super) fn begin_lifetime(&self, freed: u64) -> bool {
        let begun =
            self.lifetimes
                .compare_exchange(freed, freed + 1, Ordering::AcqRel, Ordering::Relaxed);
        if begun.is_ok() {
            *self.freed_by.lock() = FreedBy::None;
        }
        begun.is_ok()
    }

    /// A graph is to get a node that frees what the last node allocates, which is in the same
    /// graph or not. Either that graph has such a node, or others have: natively, a destroyed one
    /// counts as well.
    pub(super) fn may_be_freed(&self, in_same_graph: bool) -> bool {
        let by = match in_same_graph {
            true => FreedBy::ItsGraph,
            false => FreedBy::Others,
        };
        let mut freed_by = self.freed_by.lock();
        let may = *freed_by == FreedBy::None || *freed_by == by;
        if may {
            *freed_by = by;
        }
        may
    }

    /// The memory that begins at an address, where it is a graph's.
    #[must_use]
    pub fn find(address: u64) -> Option<Arc<Self>> {
        ALL.read().get(&address)?.upgrade()
    }

    /// The first addresses of all such memory.
    pub(crate) fn addresses() -> Vec<u64> {
        ALL.read().keys().copied().collect()
    }

    /// Whether it is allocated.
    pub(crate) fn is_allocated(&self) -> bool {
        self.allocated.load(Ordering::Acquire)
    }

    /// A launch allocates or frees it.
    pub(crate) fn set_allocated(&self, allocated: bool) {
        if !allocated {
            self.allocated.store(false, Ordering::Release);
            return;
        }
        Usage::change(self.ordinal, |usage| {
            self.allocated.store(true, Ordering::Release);
            if !self.used.swap(true, Ordering::Relaxed) {
                usage.used += self.size;
            }
        });
    }

    /// cuDeviceGraphMemTrim: memory that no launch currently holds no longer counts as
    /// used. It stays reserved, because its nodes contain its address.
    pub fn trim(ordinal: u32) {
        let all: Vec<_> = ALL.read().values().filter_map(Weak::upgrade).collect();
        for memory in all {
            if memory.ordinal == ordinal {
                Usage::change(ordinal, |usage| memory.forget_use(usage));
            }
        }
    }

    fn forget_use(&self, usage: &mut Usage) {
        if !self.is_allocated() && self.used.swap(false, Ordering::Relaxed) {
            usage.used -= self.size;
        }
    }

    /// The program frees it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no launch allocated it.
    pub fn free(&self) -> Result<()> {
        match self.allocated.swap(false, Ordering::AcqRel) {
            true => Ok(()),
            false => Err(Status::INVALID_VALUE),
        }
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        ALL.write().remove(&self.address);
        Usage::change(self.ordinal, |usage| {
            usage.reserved -= self.size;
            if *self.used.get_mut() {
                usage.used -= self.size;
            }
        });
        if !self.is_allocated() {
            // After the end of the session there is nothing to free.
            let _ = self.backing.free(self.address);
        }
    }
}
