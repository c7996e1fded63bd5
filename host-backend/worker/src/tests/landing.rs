//! Copies whose data is received where the device reads it.

use std::sync::Arc;

use paragpu_communicator::{Connection, Error, Frame, Landing, Receiver, Wait, Wake};
use paragpu_device::StreamId;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::{CopyToDevice, MemMap, Memset, StreamCreate};

use super::fill;
use crate::live::Recorded;
use crate::session::Session;
use crate::staging::{INBOUND, SLOT};
use crate::testing::device::TestDevice;
use crate::testing::guest::{pair, setup};
use crate::testing::{share_of_host_memory, write};

/// As much as makes a frame land.
const LARGE: usize = 100_000;

/// Before the worker looks at a frame that landed, a kernel overwrites all staging memory.
struct Overwritten(Box<dyn Receiver>, TestDevice);

impl Receiver for Overwritten {
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        self.0.receive(wait)
    }

    fn receive_into(
        &mut self,
        wait: Wait,
        landing: &mut dyn Landing,
    ) -> Result<Option<Frame<'_>>, Error> {
        let frame = self.0.receive_into(wait, landing)?;
        if frame.as_ref().is_some_and(|frame| frame.landed > 0) {
            let size = INBOUND * SLOT;
            write(self.1.registered_at(size), &vec![0xFF; size as usize]);
        }
        Ok(frame)
    }

    fn recall(&mut self, landing: &dyn Landing) {
        self.0.recall(landing);
    }

    fn set_polls(&mut self, polls: bool) {
        self.0.set_polls(polls);
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.0.waker()
    }
}

/// A session with a chunk of memory, which this thread serves; its guest; and the chunk.
fn session(device: &TestDevice) -> (Session, Box<dyn Receiver>, Connection, u64) {
    let (host, guest) = pair();
    let mut setup = setup(device);
    // Too little for more work in flight than every session may have.
    setup.share = share_of_host_memory(64 << 10).unwrap();
    let base = setup.regions.arena;
    let mut session = Session::new(setup, Arc::clone(&host.sender), None);
    let map = MemMap {
        address: DeviceAddress(base),
        size: CHUNK,
    };
    session.perform(&Recorded::of(&map)).unwrap();
    (session, host.receiver, guest, base)
}

fn send<'a, C: WireCall<'a>>(guest: &Connection, call: &C) {
    let mut head = Vec::new();
    let tail = call.encode(&mut head);
    let sender = &guest.sender;
    sender
        .send(C::INFO.number, 0, None, &[&head, tail])
        .unwrap();
    sender.flush().unwrap();
}

fn take(session: &mut Session, receiver: &mut dyn Receiver) {
    while !session.take_next(receiver, Wait::Forever).unwrap() {}
}

/// Sends a call until its stream queues no more.
fn fill_up(session: &mut Session, receiver: &mut dyn Receiver, guest: &Connection, call: &Memset) {
    for _ in 0..20_000 {
        send(guest, call);
        take(session, receiver);
        if session.intake.next().is_some() {
            return;
        }
    }
    panic!("a stream queues everything");
}

/// Lets the device do all its work.
fn finish(session: &mut Session) {
    assert!(session.gpu.stream_query(StreamId::LEGACY).unwrap());
}

fn copy(destination: u64, data: &[u8]) -> CopyToDevice<'_> {
    CopyToDevice {
        destination,
        stream: StreamHandle::LEGACY,
        data: Bytes(data),
    }
}

#[test]
fn a_kernel_that_writes_to_staging_memory_changes_data_only() {
    let device = TestDevice::default();
    let (mut session, receiver, guest, base) = session(&device);
    let mut receiver = Overwritten(receiver, device.clone());
    for round in 0..3 {
        send(&guest, &copy(base + round, &[7; LARGE]));
        take(&mut session, &mut receiver);
    }
    finish(&mut session);
    let end = base + 2 + LARGE as u64;
    assert_eq!(device.bytes(base, LARGE as u64 + 2), [0xFF; LARGE + 2]);
    assert_eq!(device.bytes(end, 64), [0; 64]);
}

#[test]
fn data_that_landed_in_staging_memory_may_wait_for_its_stream() {
    let device = TestDevice::default();
    let (mut session, mut receiver, guest, base) = session(&device);
    device.hold(0, true);
    fill_up(&mut session, receiver.as_mut(), &guest, &fill(base, 1, 1));
    send(&guest, &copy(base, &[7; LARGE]));
    take(&mut session, receiver.as_mut());
    assert_eq!(session.intake.waiting().count(), 1);
    device.hold(0, false);
    while session.execute_first().unwrap() {}
    finish(&mut session);
    assert_eq!(device.bytes(base, LARGE as u64), [7; LARGE]);
}

#[test]
fn data_that_landed_in_device_memory_may_wait_for_other_streams() {
    let device = TestDevice::default();
    let (mut session, mut receiver, guest, base) = session(&device);
    // As much as a session queues, in two streams.
    let streams = [1, 2].map(|number| StreamHandle(100 + number));
    for (stream, number) in streams.into_iter().zip(1..) {
        let create = StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        };
        session.perform(&Recorded::of(&create)).unwrap();
        device.hold(number, true);
    }
    for stream in streams {
        let fill = fill(base + CHUNK / 2, 1, 1);
        let fill = Memset { stream, ..fill };
        fill_up(&mut session, receiver.as_mut(), &guest, &fill);
    }
    device.state().in_place = true;
    send(&guest, &copy(base, &[7; LARGE]));
    take(&mut session, receiver.as_mut());
    assert_eq!(device.bytes(base, LARGE as u64), [7; LARGE]);
    assert_eq!(session.intake.waiting().count(), 1);
    (1..=2).for_each(|number| device.hold(number, false));
    while session.execute_first().unwrap() {}
    assert!(session.intake.is_empty());
    finish(&mut session);
    assert_eq!(device.bytes(base, LARGE as u64), [7; LARGE]);
}
