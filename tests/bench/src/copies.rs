//! Bare bulk copies.

use std::io::{Read as _, Write as _};

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
    let [mut here, mut there] = pair(kind)?;
    let source = touched(bytes, 1);
    let mut destination = touched(bytes, 2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> std::io::Result<()> {
            for _ in 0..ROUNDS {
                there.read_exact(&mut destination)?;
                there.write_all(&[1])?;
            }
            Ok(())
        });
        let mut rates = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (seconds, copied) = seconds_of(|| -> std::io::Result<()> {
                for part in source.chunks(PART) {
                    here.write_all(part)?;
                }
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
    }
}
