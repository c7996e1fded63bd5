//! Descriptors that represent physical memory, in this process and others.
//!
//! A descriptor is one end of a socket pair. The other end detects when all copies of it
//! are closed. The socket contains a handle for other processes, which peek at it without
//! consuming it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use paragpu_client::shared_memory::HANDLE;
use parking_lot::Mutex;
use rustix::net::RecvFlags;

/// Maximum number of such descriptors.
const MAX_HANDLES: usize = 4096;

/// Identifies an open file of this system.
type FileName = (u64, u64);

/// The object behind a descriptor, and this side's socket to it.
#[derive(Debug)]
struct Shared<T> {
    object: T,
    end: UnixStream,
}

/// The objects behind this process's descriptors.
#[derive(Debug)]
pub struct SharedHandles<T>(Mutex<Option<HashMap<FileName, Shared<T>>>>);

fn name(file: &File) -> std::io::Result<FileName> {
    let data = file.metadata()?;
    Ok((data.dev(), data.ino()))
}

/// Whether all copies of the other end are closed.
fn is_closed(end: &mut UnixStream) -> bool {
    match end.read(&mut [0; 16]) {
        Ok(read) => read == 0,
        // The unread handle is discarded with the other end.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A descriptor with a handle in it.
pub fn carrying(handle: &[u8; HANDLE]) -> std::io::Result<OwnedFd> {
    let (mut end, given) = UnixStream::pair()?;
    end.write_all(handle)?;
    Ok(given.into())
}

/// Peeks at the handle in a descriptor.
#[must_use]
pub fn carried(descriptor: BorrowedFd<'_>) -> Option<[u8; HANDLE]> {
    let mut handle = [0; HANDLE];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (read, _) = rustix::net::recv(descriptor, &mut handle[..], flags).ok()?;
    (read == HANDLE).then_some(handle)
}

impl<T: Copy> SharedHandles<T> {
    /// An empty set.
    #[must_use]
    pub const fn none() -> Self {
        Self(Mutex::new(None))
    }

    /// A descriptor that represents `object` in this process, and the handle in others.
    ///
    /// # Errors
    /// Errors of the operating system; `OutOfMemory` for too many.
    pub fn share(&self, object: T, handle: &[u8; HANDLE]) -> std::io::Result<OwnedFd> {
        let (mut end, given) = UnixStream::pair()?;
        end.write_all(handle)?;
        end.set_nonblocking(true)?;
        let given = OwnedFd::from(given);
        let name = name(&File::from(given.try_clone()?))?;
        let mut shared = self.0.lock();
        let shared = shared.get_or_insert_default();
        if shared.len() >= MAX_HANDLES {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        shared.insert(name, Shared { object, end });
        Ok(given)
    }

    /// The object behind a descriptor, if it is one of these.
    #[must_use]
    pub fn find(&self, descriptor: BorrowedFd<'_>) -> Option<T> {
        let file = File::from(descriptor.try_clone_to_owned().ok()?);
        let name = name(&file).ok()?;
        let shared = self.0.lock();
        shared.as_ref()?.get(&name).map(|shared| shared.object)
    }

    /// Takes the objects whose descriptors are all closed.
    pub fn take_closed(&self) -> Vec<T> {
        let mut shared = self.0.lock();
        let Some(shared) = shared.as_mut() else {
            return Vec::new();
        };
        let closed = shared.extract_if(|_, shared| is_closed(&mut shared.end));
        closed.map(|(_, shared)| shared.object).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_descriptor_is_valid_while_any_copy_is_open() {
        let handles = SharedHandles::none();
        let first = handles.share(1, &[1; HANDLE]).unwrap();
        let second = handles.share(2, &[2; HANDLE]).unwrap();
        let again = first.try_clone().unwrap();
        assert_eq!(handles.find(first.as_fd()), Some(1));
        assert_eq!(handles.find(again.as_fd()), Some(1));
        assert_eq!(handles.find(second.as_fd()), Some(2));
        for _ in 0..2 {
            assert_eq!(carried(again.as_fd()), Some([1; HANDLE]));
        }
        drop(first);
        assert!(handles.take_closed().is_empty());
        drop(again);
        assert_eq!(handles.take_closed(), [1]);
        assert!(handles.take_closed().is_empty());
        assert_eq!(handles.find(second.as_fd()), Some(2));
    }

    #[test]
    fn other_descriptors_are_unknown() {
        let handles = SharedHandles::<u8>::none();
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(handles.find(one.as_fd()), None);
        assert_eq!(carried(one.as_fd()), None);
        let pool = carrying(&[7; HANDLE]).unwrap();
        assert_eq!(handles.find(pool.as_fd()), None);
        assert_eq!(carried(pool.as_fd()), Some([7; HANDLE]));
        let file = File::open("/dev/null").unwrap();
        assert_eq!(handles.find(file.as_fd()), None);
    }
}
