//! The directory of NVIDIA's cache for code compiled from PTX.
//!
//! The driver reads `CUDA_CACHE_PATH` once, when it starts, and a worker starts before it
//! knows its VM. The path therefore goes through a descriptor of the process,
//! [`CODE_CACHE`]. It refers to a removed directory at first, and to a directory of the
//! VM once the session begins. No VM runs code that another VM's worker compiled.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use paragpu_control::spawn::CODE_CACHE;

/// Makes the descriptor refer to a removed directory, so that nothing is cached.
pub fn reserve() -> io::Result<()> {
    let gone = tempfile::tempdir()?;
    let directory = File::open(gone.path())?;
    gone.close()?;
    set_cache_directory(&directory)
}

/// Caches compiled code in this directory, and creates it.
pub fn keep_in(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    set_cache_directory(&File::open(directory)?)
}

fn set_cache_directory(directory: &impl AsFd) -> io::Result<()> {
    let from = directory.as_fd().as_raw_fd();
    // SAFETY: nothing else of this process has descriptor CODE_CACHE: the system assigns
    // the lowest free number, and it was taken at the start.
    let made = unsafe { libc::dup3(from, CODE_CACHE, libc::O_CLOEXEC) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_refers_to_the_vms_directory() {
        let path = format!("/proc/self/fd/{CODE_CACHE}/code");
        let vm = tempfile::tempdir().unwrap();
        reserve().unwrap();
        assert!(std::fs::write(&path, "compiled").is_err());
        for _ in 0..2 {
            keep_in(&vm.path().join("jit")).unwrap();
            std::fs::write(&path, "compiled").unwrap();
        }
        assert_eq!(
            std::fs::read(vm.path().join("jit/code")).unwrap(),
            b"compiled"
        );
        assert!(keep_in(&vm.path().join("nowhere/jit")).is_err());
    }
}
