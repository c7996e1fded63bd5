//! Memsets (CUDA Driver API, Memory Management). As in CUDA, they return before device
//! memory is set. Those without a stream wait if the host can access the memory as well
//! ("API synchronization behavior").

use paragpu_abi::CUstream;

use super::{Result, memory, pointer};
use crate::named_stream;

pub(super) fn set(
    destination: u64,
    pitch: usize,
    value: u32,
    element: u8,
    [width, height]: [usize; 2],
    stream: CUstream,
) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.copies().memset(
        destination,
        pitch as u64,
        value,
        element,
        width as u64,
        height as u64,
        stream,
    )
}

/// As [`set`], and waits if the host can access the memory or the program asked for it
/// (cuPointerSetAttribute).
pub(super) fn set_in_order(
    destination: u64,
    pitch: usize,
    value: u32,
    element: u8,
    extent: [usize; 2],
    stream: CUstream,
) -> Result {
    set(destination, pitch, value, element, extent, stream)?;
    if !memory::is_programs(destination) {
        return pointer::finish(&[destination], stream);
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    match stream.is_capturing() {
        true => Ok(()),
        false => session.streams().synchronize(stream),
    }
}
