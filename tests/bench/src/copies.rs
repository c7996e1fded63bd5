//! Bare bulk copies.

use std::io::{Read, Write};

use paragpu_communicator_secure::rustls::{Connection, StreamOwned};
use paragpu_communicator_secure::{KeyLifetime, testing};
use paragpu_protocol::frame::MAX_PAYLOAD;

use crate::error::Error;
use crate::pingpong::{Socket, pair};
use crate::sample::{median, seconds_of};

/// Bytes that the stream communicators write at once.
const PART: usize = MAX_PAYLOAD;
/// Copies of one measurement.
const ROUNDS: usize = 9;

/// Not zeros, and every page present.
fn touched(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_le_bytes()[3]
        })
        .collect()
}

/// Bytes a second of a copy by one thread between touched buffers.
pub fn memcpy(bytes: usize) -> f64 {
    let source = touched(bytes, 1);
    let mut destination = touched(bytes, 2);
    let rates = (0..ROUNDS)
        .map(|_| {
            let (seconds, ()) = seconds_of(|| {
                std::hint::black_box(&mut destination)
                    .copy_from_slice(std::hint::black_box(&source));
            });
            bytes as f64 / seconds
        })
        .collect();
    median(rates)
}

/// Bytes a second from a touched buffer of one thread, over a socket, into a
/// touched buffer of another, until the latter confirms the last byte.
pub fn socket(kind: Socket, bytes: usize) -> Result<f64, Error> {
    let [here, there] = pair(kind)?;
    copy(here, there, bytes)
}

/// The same over loopback TCP and rustls, with certificates as those of guests and hosts.
pub fn tls(bytes: usize) -> Result<f64, Error> {
    let [here, there] = pair(Socket::Tcp)?;
    let (guest, host) = testing::credentials(KeyLifetime::Replaceable);
    match (guest.client("localhost"), host.server()) {
        (Ok(Connection::Client(guest)), Ok(Connection::Server(host))) => copy(
            StreamOwned::new(guest, here),
            StreamOwned::new(host, there),
            bytes,
        ),
        _ => Err(std::io::Error::other("no TLS for the baseline").into()),
    }
}

fn copy<One: Read + Write, Other: Read + Write + Send>(
    mut here: One,
    mut there: Other,
    bytes: usize,
) -> Result<f64, Error> {
    let source = touched(bytes, 1);
    let mut destination = touched(bytes, 2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> std::io::Result<()> {
            for _ in 0..ROUNDS {
                there.read_exact(&mut destination)?;
                there.write_all(&[1])?;
                there.flush()?;
            }
            Ok(())
        });
        let mut rates = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (seconds, copied) = seconds_of(|| -> std::io::Result<()> {
                for part in source.chunks(PART) {
                    here.write_all(part)?;
                }
                here.flush()?;
                here.read_exact(&mut [0])
            });
            copied?;
            rates.push(bytes as f64 / seconds);
        }
        receiver
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the receiving thread panicked")))?;
        Ok(median(rates))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied() {
        assert!(memcpy(1 << 20) > 0.0);
        assert!(socket(Socket::Unix, 3 << 20).unwrap() > 0.0);
        assert!(socket(Socket::Tcp, 3 << 20).unwrap() > 0.0);
        assert!(tls(3 << 20).unwrap() > 0.0);
    }
}
