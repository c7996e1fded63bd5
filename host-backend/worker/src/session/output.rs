//! Kernel output. The device writes it to this process's standard output, and failed
//! assertions to its standard error, which are memfds. It is sent to the guest before the
//! reply to the call that waited for the kernel.

use std::io;
use std::os::fd::OwnedFd;

use paragpu_device::StreamId;
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags};

use super::code_search::{MayPrint, Prints};
use super::gpu::Gpu;
use super::link::Link;
use crate::error::SessionEnd;

/// Numbers of the streams in a frame.
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
/// Bytes of one frame.
const PART: usize = 64 * 1024;
/// Maximum unread bytes in the file; older output is dropped.
const MAX_UNREAD: u64 = 64 << 20;
/// Bytes after which the file's memory is freed.
const SWEEP: u64 = 1 << 20;

/// Standard output and standard error of kernels.
#[derive(Debug)]
pub struct Output {
    out: Captured,
    errors: Captured,
}

impl Output {
    /// Redirects this process's standard output and standard error to memory files. What
    /// this process itself logs must have another descriptor by then.
    pub fn capture() -> io::Result<Self> {
        let output = Self::new()?;
        rustix::stdio::dup2_stdout(&output.out.file)?;
        rustix::stdio::dup2_stderr(&output.errors.file)?;
        Ok(output)
    }

    /// Files that nothing is written to.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            out: Captured::new()?,
            errors: Captured::new()?,
        })
    }
}

/// One captured stream.
#[derive(Debug)]
struct Captured {
    file: OwnedFd,
    /// Bytes read.
    read: u64,
    /// Bytes whose memory was freed.
    swept: u64,
    part: Vec<u8>,
}

impl Captured {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("paragpu-output", MemfdFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(Self {
            file,
            read: 0,
            swept: 0,
            part: vec![0; PART],
        })
    }

    /// The next bytes; empty if there are none.
    fn next(&mut self) -> io::Result<&[u8]> {
        let mut count = rustix::io::pread(&self.file, self.part.as_mut_slice(), self.read)?;
        if count == PART {
            let size = u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(0);
            if size.saturating_sub(self.read) > MAX_UNREAD {
                self.read = size - MAX_UNREAD;
                count = rustix::io::pread(&self.file, self.part.as_mut_slice(), self.read)?;
            }
        }
        self.read += count as u64;
        if self.read - self.swept > SWEEP {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let end = self.read / 4096 * 4096;
            rustix::fs::fallocate(&self.file, hole, self.swept, end - self.swept)?;
            self.swept = end;
        }
        Ok(self.part.get(..count).unwrap_or(&[]))
    }
}

/// The output of the session's kernels.
#[derive(Debug)]
pub(crate) struct Printing {
    output: Option<Output>,
    /// Streams with kernels that may have printed what was not read yet.
    unread: Vec<(StreamId, MayPrint)>,
}

impl Printing {
    /// `None` disables the forwarding of kernel output.
    pub(crate) fn new(output: Option<Output>) -> Self {
        Self {
            output,
            unread: Vec::new(),
        }
    }

    /// Records the launch of a kernel in a stream.
    #[inline]
    pub(crate) fn note(&mut self, stream: StreamId, prints: Prints) {
        if !matches!(prints, Prints::No) {
            self.add(stream, |kernels| kernels.add(prints));
        }
    }

    /// Records the launch of a graph in a stream.
    pub(crate) fn note_all(&mut self, stream: StreamId, kernels: &MayPrint) {
        if !kernels.is_empty() {
            self.add(stream, |unread| unread.add_all(kernels));
        }
    }

    /// Adds to what a stream's kernels may have printed.
    fn add(&mut self, stream: StreamId, add: impl FnOnce(&mut MayPrint)) {
        match self.unread.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, kernels)) => add(kernels),
            None => {
                let mut kernels = MayPrint::default();
                add(&mut kernels);
                self.unread.push((stream, kernels));
            }
        }
    }

    /// Whether there may be output that was not read.
    pub(crate) fn may_print(&mut self) -> bool {
        self.unread.retain_mut(|(_, kernels)| kernels.now());
        !self.unread.is_empty()
    }

    /// Sends new output.
    pub(crate) fn forward(&mut self, gpu: &mut Gpu, link: &mut Link) -> Result<(), SessionEnd> {
        if !self.may_print() {
            return Ok(());
        }
        // Of a stream that is idle now, or gone, all output is read below.
        self.unread
            .retain(|(stream, _)| matches!(gpu.stream_query(*stream), Ok(false)));
        self.forward_all(gpu, link)
    }

    /// Sends all output, including that of a failed assert.
    pub(crate) fn forward_all(&mut self, gpu: &mut Gpu, link: &mut Link) -> Result<(), SessionEnd> {
        let Some(output) = &mut self.output else {
            return Ok(());
        };
        // The device failed; the call itself reports that.
        let _ = gpu.flush_output();
        for (stream, captured) in [(STDOUT, &mut output.out), (STDERR, &mut output.errors)] {
            loop {
                let bytes = match captured.next() {
                    Ok([]) => break,
                    Ok(bytes) => bytes,
                    Err(error) => {
                        tracing::error!(%error, "cannot read what kernels printed");
                        break;
                    }
                };
                link.send_output(stream, bytes)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(output: &Captured, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = rustix::io::write(&output.file, rest).unwrap();
            rest = &rest[count..];
        }
    }

    #[test]
    fn each_byte_is_read_once() {
        let mut output = Captured::new().unwrap();
        assert!(output.next().unwrap().is_empty());
        write(&output, b"hello");
        assert_eq!(output.next().unwrap(), b"hello");
        assert!(output.next().unwrap().is_empty());
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        write(&output, &bytes);
        let mut all = Vec::new();
        loop {
            match output.next().unwrap() {
                [] => break,
                part => all.extend_from_slice(part),
            }
        }
        assert_eq!(all, bytes);
        let blocks = rustix::fs::fstat(&output.file).unwrap().st_blocks;
        assert!(blocks * 512 < 2 << 20, "memory of read bytes is given back");
    }

    #[test]
    fn excess_output_is_dropped() {
        let mut output = Captured::new().unwrap();
        write(&output, &vec![b'x'; MAX_UNREAD as usize + 10 * PART]);
        let mut count = 0;
        loop {
            match output.next().unwrap().len() {
                0 => break,
                more => count += more as u64,
            }
        }
        assert_eq!(count, MAX_UNREAD);
    }
}
