//! The descriptors of memory that came from other processes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;
use rustix::process::{Resource, getrlimit};

/// The descriptors of imported mappings, by address. The driver cannot export such memory
/// (CUDA 13.0: INVALID_VALUE), so it is passed on with these.
pub struct Imported {
    descriptors: BTreeMap<u64, OwnedFd>,
    /// Maximum number: half of those that the process may have open.
    most: usize,
}

impl Imported {
    pub fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            descriptors: BTreeMap::new(),
            most: usize::try_from(limit / 2).unwrap_or(usize::MAX),
        }
    }

    /// Refuses another one if there are too many.
    pub fn check_room(&self) -> Result<()> {
        if self.descriptors.len() < self.most {
            return Ok(());
        }
        let detail = "no descriptor is left for imported memory";
        Err(Error::new(Status::OPERATING_SYSTEM, detail))
    }

    pub fn add(&mut self, address: u64, descriptor: OwnedFd) {
        self.descriptors.insert(address, descriptor);
    }

    pub fn remove(&mut self, address: u64) {
        self.descriptors.remove(&address);
    }

    /// The descriptor of the mapping at an address, if it was imported.
    pub fn get(&self, address: u64) -> Option<BorrowedFd<'_>> {
        self.descriptors.get(&address).map(AsFd::as_fd)
    }
}
