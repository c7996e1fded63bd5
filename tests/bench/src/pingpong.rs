//! Bare round trips between two threads.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_communicator::{CachePadded, Polling, Spin};

use crate::error::Error;
use crate::sample::{BATCH, each};

/// Bytes of the smallest call and of its reply on the wire: a header of 16,
/// and 8 of value (and, in a reply, 8 of status).
const CALL: usize = 24;
const REPLY: usize = 32;
/// Batches that one measurement times.
pub const BATCHES: usize = 500;
/// Round trips before the timed ones.
const WARM_UP: usize = 500;

/// The kinds of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// A connected pair of unix stream sockets.
    Unix,
    /// TCP over the loopback interface, sending at once.
    Tcp,
}

/// How a thread waits for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// In the kernel.
    Blocking,
    /// Looking again and again, as the communicators do.
    Polling,
}

/// Polls as the communicators do, as long as it takes.
fn poll_until<R>(mut look: impl FnMut() -> Option<R>) -> R {
    loop {
        let mut spin = Spin::new(Polling::default().spin, None);
        loop {
            if let Some(found) = look() {
                return found;
            }
            if !spin.again() {
                break;
            }
        }
    }
}

fn await_value(line: &AtomicU64, value: u64) {
    poll_until(|| (line.load(Ordering::Acquire) == value).then_some(()));
}

/// Median seconds of a round trip through two cache lines, timed in so many batches.
pub fn shared_memory(batches: usize) -> f64 {
    let (there, back) = (
        CachePadded(AtomicU64::new(0)),
        CachePadded(AtomicU64::new(0)),
    );
    let trips = (WARM_UP + batches * BATCH) as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=trips {
                await_value(&there, trip);
                back.store(trip, Ordering::Release);
            }
        });
        let mut trip = 0;
        let mut operation = || -> Result<(), std::convert::Infallible> {
            trip += 1;
            there.store(trip, Ordering::Release);
            await_value(&back, trip);
            Ok(())
        };
        for _ in 0..WARM_UP {
            let Ok(()) = operation();
        }
        let Ok(seconds) = each(batches, operation);
        seconds
    })
}

/// A connected stream socket of either kind.
pub trait Stream: Read + Write + Send {
    /// As the sockets' own.
    fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()>;
}

impl Stream for UnixStream {
    fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        Self::set_nonblocking(self, nonblocking)
    }
}

impl Stream for TcpStream {
    fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        Self::set_nonblocking(self, nonblocking)
    }
}

/// Two connected sockets.
pub fn pair(kind: Socket) -> Result<[Box<dyn Stream>; 2], Error> {
    Ok(match kind {
        Socket::Unix => {
            let (one, other) = UnixStream::pair()?;
            [Box::new(one), Box::new(other)]
        }
        Socket::Tcp => {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            let one = TcpStream::connect(listener.local_addr()?)?;
            let (other, _) = listener.accept()?;
            one.set_nodelay(true)?;
            other.set_nodelay(true)?;
            [Box::new(one), Box::new(other)]
        }
    })
}

fn receive(socket: &mut dyn Stream, bytes: &mut [u8], manner: WaitMode) -> std::io::Result<()> {
    if manner == WaitMode::Blocking {
        return socket.read_exact(bytes);
    }
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += poll_until(|| match socket.read(rest) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Ok(0) => Some(Err(ErrorKind::UnexpectedEof.into())),
            other => Some(other),
        })?;
    }
    Ok(())
}

/// Median seconds of a round trip over a socket, timed in so many batches.
pub fn socket(kind: Socket, manner: WaitMode, batches: usize) -> Result<f64, Error> {
    let [mut here, mut there] = pair(kind)?;
    for end in [&here, &there] {
        end.set_nonblocking(manner == WaitMode::Polling)?;
    }
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let mut call = [0; CALL];
            for _ in 0..WARM_UP + batches * BATCH {
                receive(there.as_mut(), &mut call, manner)?;
                there.write_all(&[1; REPLY])?;
            }
            Ok(())
        });
        let mut operation = || -> std::io::Result<()> {
            here.write_all(&[1; CALL])?;
            receive(here.as_mut(), &mut [0; REPLY], manner)
        };
        (0..WARM_UP).try_for_each(|_| operation())?;
        let seconds = each(batches, operation)?;
        echo.join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the echoing thread panicked")))?;
        Ok(seconds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back() {
        assert!(shared_memory(3) > 0.0);
        for kind in [Socket::Unix, Socket::Tcp] {
            for manner in [WaitMode::Blocking, WaitMode::Polling] {
                assert!(
                    socket(kind, manner, 3).unwrap() > 0.0,
                    "{kind:?} {manner:?}"
                );
            }
        }
    }
}
