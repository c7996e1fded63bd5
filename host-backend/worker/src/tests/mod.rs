//! Whole sessions, over real connections, on the device of [`crate::testing`].

mod copies;
mod destroyed_streams;
mod errors;
mod graphs;
mod green;
mod host_words;
mod landing;
mod lanes;
mod memory;
mod objects;
mod orders;
mod pages;
mod pinned;
mod sharing;
mod signals;
mod stream_memory;
mod turns;
mod waiting;
mod wire;

use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::handle::{EventHandle, FunctionHandle, ModuleHandle, StreamHandle};
use paragpu_protocol::table::{
    EventElapsedTime, FunctionGet, ImageWrite, Launch, Memset, ModuleLoad,
};

use crate::testing::guest::Guest;

const MODULE: ModuleHandle = ModuleHandle(900);

/// Sets `width` bytes in the legacy stream.
fn fill(destination: u64, value: u32, width: u64) -> Memset {
    Memset {
        destination,
        pitch: 0,
        value,
        element: 1,
        width,
        height: 1,
        stream: StreamHandle::LEGACY,
    }
}

/// Sends an image and returns its hash.
fn image(guest: &Guest) -> [u8; 32] {
    image_of(guest, b"an image")
}

/// Sends an image with this code.
fn image_of(guest: &Guest, image: &[u8]) -> [u8; 32] {
    let hash = *blake3::hash(image).as_bytes();
    guest.post(&ImageWrite {
        hash,
        size: image.len() as u64,
        offset: 0,
        data: Bytes(image),
    });
    hash
}

/// Sends an image and loads it.
fn load_module(guest: &mut Guest) {
    let hash = image(guest);
    load_image(guest, hash);
}

/// Loads an image that was sent.
fn load_image(guest: &mut Guest, hash: [u8; 32]) {
    let load = ModuleLoad {
        module: MODULE,
        hash,
        options: Bytes(&[]),
    };
    guest.call(&load).unwrap();
}

/// A kernel of a module that is loaded.
fn kernel(guest: &mut Guest, handle: u64, name: &str) -> FunctionHandle {
    let function = FunctionHandle(handle);
    let get = FunctionGet {
        function,
        module: MODULE,
        name: Text(name),
    };
    guest.call(&get).unwrap();
    function
}

pub(crate) fn elapsed(start: EventHandle, end: EventHandle) -> EventElapsedTime {
    EventElapsedTime { start, end }
}

fn launch(function: FunctionHandle, stream: StreamHandle, parameters: &[u8]) -> Launch<'_> {
    Launch {
        function,
        stream,
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
        flags: 0,
        cluster: [0; 3],
        preferences: Bytes(&[]),
        parameters: Bytes(parameters),
    }
}
