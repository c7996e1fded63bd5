//! A host that does no work, over rings in this process.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use paragpu_client::Session;
use paragpu_communicator::{Connection, Error, Frame, Sender, Wait};
use paragpu_communicator_ring::shm;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{Bytes, Field, Text};
use paragpu_protocol::frame::{Control, FrameHeader, REPLY};
use paragpu_protocol::handshake::{VERSION, Welcome};
use paragpu_protocol::layout::{MAX_DEVICES, Regions};
use paragpu_protocol::reply::encode_done;
use paragpu_protocol::table::{FunctionGet, ImageQuery, ModuleLoad, Ping, SnapshotDevice};
use paragpu_protocol::types::{DeviceSnapshot, FunctionInfo, encode_pairs};

/// Both ends of a connection: the guest's and the host's. Each is of another device, because
/// tests of a process run at the same time and a session's addresses are its device's.
pub fn connect() -> (Connection, Connection) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let device = NEXT.fetch_add(1, Ordering::Relaxed);
    let (guest, host) = UnixStream::pair().unwrap();
    let (host, ends, _) =
        shm::create(64 << 20, 4 << 20, host.into(), shm::Options::default()).unwrap();
    let options = shm::Options {
        window_address: Some(Regions::of(device).unwrap().window),
        ..shm::Options::default()
    };
    let guest = shm::attach(ends, guest.into(), options).unwrap();
    (guest, host)
}

/// The session at the guest's end.
pub fn session(guest: Connection, shares_window: bool) -> Arc<Session> {
    let welcome = Welcome {
        version: VERSION,
        session: 1,
        token: [0; 16],
        reconnect: 0,
        device_count: 1,
        taken: 0,
        shares_window,
        wants_pinned: false,
        region_size: 0,
    };
    let window = guest.window.as_ref().unwrap().address();
    let is_its = |device: &u32| Regions::of(*device).unwrap().window == window;
    let device = (0..MAX_DEVICES).find(is_its).unwrap();
    Session::new(guest, welcome, device, Duration::from_micros(50)).unwrap()
}

/// A successful reply with this value.
pub fn reply<'a, T: Field<'a>>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let tail = encode_done(value, &mut out).to_vec();
    out.extend(tail);
    out
}

/// Sends the reply to a call, if the guest waits for one. `executed` counts the calls so far.
pub fn respond(
    sender: &dyn Sender,
    call: FrameHeader,
    executed: u64,
    reply: impl FnOnce() -> Vec<u8>,
) -> Result<(), Error> {
    if call.slot == 0 {
        return Ok(());
    }
    sender.send(call.kind | REPLY, call.slot, Some(executed), &[&reply()])?;
    sender.flush()
}

/// Receives calls until the guest leaves. Those that `takes` does not answer itself, which it
/// says by `true`, are answered as [`answer`] does.
pub fn serve(
    mut host: Connection,
    parameters: &[(u32, u32)],
    mut takes: impl FnMut(&dyn Sender, &Frame<'_>) -> bool,
) {
    while let Ok(frame) = host.receiver.receive(Wait::Forever) {
        let Some(frame) = frame else { continue };
        let header = frame.header;
        if header.kind == Control::Goodbye.kind() {
            return;
        }
        let sender = host.sender.as_ref();
        let reply = || answer(header.kind, parameters);
        // The guest may leave as soon as it has the last reply.
        if !takes(sender, &frame) && respond(sender, header, header.sequence, reply).is_err() {
            return;
        }
    }
}

/// The reply to a call that needs no work. `parameters` are those of each kernel: offset and
/// size.
pub fn answer(call: u16, parameters: &[(u32, u32)]) -> Vec<u8> {
    match call {
        kind if kind == SnapshotDevice::INFO.number => reply(&DeviceSnapshot {
            driver_version: 13_000,
            total_memory: 1 << 30,
            uuid: [0; 16],
            name: Text("none"),
            pci_bus_id: Text("0000:00:00.0"),
            // The limits of blocks and grids.
            attributes: Bytes(&encode_pairs([
                (1, 1024),
                (2, 1024),
                (3, 64),
                (4, 1024),
                (5, 1024),
                (6, 64),
                (7, 64),
            ])),
        }),
        kind if kind == Ping::INFO.number => reply(&1_u64),
        kind if kind == ImageQuery::INFO.number => reply(&true),
        kind if kind == ModuleLoad::INFO.number => reply(&Text("")),
        kind if kind == FunctionGet::INFO.number => reply(&FunctionInfo {
            attributes: Bytes(&[]),
            parameters: Bytes(&encode_pairs(parameters.iter().copied())),
        }),
        _ => reply(&()),
    }
}
