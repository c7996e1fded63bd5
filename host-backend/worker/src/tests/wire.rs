//! Invalid calls, and guests that disappear.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_communicator::{Error, Frame, Nowhere, Receiver, Wait, Wake};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::{Control, FrameHeader, MAX_PAYLOAD};
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::*;
use proptest::prelude::*;

use crate::error::SessionEnd;
use crate::session::{Finds, Reconnect, Reconnected, Session};
use crate::testing::device::TestDevice;
use crate::testing::guest::{Guest, setup};

/// Frames that were received, and then nothing.
struct Came(VecDeque<(u16, Vec<u8>)>, Vec<u8>);

impl Receiver for Came {
    fn receive(&mut self, _: Wait) -> Result<Option<Frame<'_>>, Error> {
        let (kind, payload) = self.0.pop_front().ok_or(Error::Closed)?;
        self.1 = payload;
        let header = FrameHeader::new(kind, 1, 1, self.1.len()).unwrap();
        Ok(Some(Frame {
            header,
            payload: &self.1,
            landed: 0,
        }))
    }

    fn set_polls(&mut self, _: bool) {}

    fn waker(&self) -> Arc<dyn Wake> {
        struct Nowhere;
        impl Wake for Nowhere {
            fn wake(&self) {}
        }
        Arc::new(Nowhere)
    }
}

struct Asked(Arc<AtomicBool>);

impl Reconnect for Asked {
    fn next(&mut self, _: &Error, _: u64, _: Finds<'_>) -> Option<Reconnected> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}

#[test]
fn a_guest_that_said_goodbye_is_not_awaited() {
    let ping = || (Ping::INFO.number, encode_all(&Ping { value: 1 }));
    let goodbye = (Control::Goodbye.kind(), vec![]);
    for (frames, waited) in [
        (vec![ping(), ping(), goodbye], false),
        (vec![ping(); 2], true),
    ] {
        let requested = Arc::new(AtomicBool::new(false));
        let mut setup = setup(&TestDevice::default());
        setup.reconnect = Some(Box::new(Asked(Arc::clone(&requested))));
        // The reply to the first cannot be sent any more.
        let mut session = Session::new(setup, Arc::new(Nowhere), None);
        let end = session.serve(Box::new(Came(frames.into(), vec![])));
        assert_eq!(matches!(end, SessionEnd::Goodbye), !waited, "{end:?}");
        assert_eq!(requested.load(Ordering::Relaxed), waited);
    }
}

#[test]
fn calls_come_without_gaps() {
    for sequence in [0, 2, 7, u64::MAX] {
        let guest = Guest::new();
        guest.raw(0x0001, 1, Some(sequence), &[&[0; 8]]);
        let (end, output) = guest.ended();
        assert!(
            matches!(end, SessionEnd::Sequence { expected: 1, .. }),
            "{end:?}"
        );
        assert!(output.contains("call 1 was next"), "{output}");
    }
    let mut guest = Guest::new();
    guest.call(&Ping { value: 0 }).unwrap();
    guest.raw(0x0001, 1, Some(1), &[&[0; 8]]);
    assert!(matches!(
        guest.ended().0,
        SessionEnd::Sequence {
            got: 1,
            expected: 2
        }
    ));
}

#[test]
fn replies_acknowledge_what_was_executed() {
    let mut guest = Guest::new();
    for _ in 0..10 {
        guest.post(&CtxSetLimit { limit: 0, value: 0 });
    }
    let sequence = guest.send(3, &Ping { value: 0 });
    let reply = guest.next();
    assert_eq!(sequence, 11);
    assert_eq!(reply.sequence, 11);
    let counters = guest.counters();
    assert!(counters.posted == 10 && counters.calls >= 10);
    guest.goodbye();
}

#[test]
fn a_malformed_call_ends_its_session_by_name() {
    for info in CALLS {
        let guest = Guest::new();
        let other = Guest::new();
        let long = [0xff; 1000];
        guest.raw(info.number, 1, None, &[&long]);
        let (end, output) = guest.ended();
        assert!(
            matches!(end, SessionEnd::Malformed { .. }),
            "{}: {end:?}",
            info.name
        );
        assert!(output.contains(info.name), "{output}");
        let mut other = other;
        other.call(&Ping { value: 1 }).unwrap();
        other.goodbye();
    }
}

#[test]
fn unknown_frames_end_the_session() {
    for kind in [0x0000, 0x00ff, 0x0aff, 0x7eff] {
        let guest = Guest::new();
        guest.raw(kind, 1, None, &[]);
        assert!(matches!(
            guest.ended().0,
            SessionEnd::Malformed {
                name: "unknown",
                ..
            }
        ));
    }
    for kind in [Control::Hello.kind(), Control::Data.kind(), 0x7fff, 0x8001] {
        let guest = Guest::new();
        guest.raw(kind, 1, None, &[]);
        assert!(matches!(guest.ended().0, SessionEnd::Kind(_)));
    }
}

#[test]
fn a_guest_that_dies_ends_its_session() {
    let mut guest = Guest::new();
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.die().is_orderly());

    // While a call waits for a device that never completes it.
    let mut guest = Guest::new();
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    guest.device.hold(0, true);
    let stream = StreamHandle::LEGACY;
    guest.post(&super::fill(guest.regions.arena, 7, 64));
    guest.send(1, &StreamSynchronize { stream });
    assert!(guest.die().is_orderly());

    // While the guest runs a host function.
    let mut guest = Guest::new();
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    assert!(guest.die().is_orderly());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any payload of any call: the session answers or ends in order.
    #[test]
    fn any_payload_is_survived(
        calls in proptest::collection::vec(
            (0..CALLS.len(), proptest::collection::vec(any::<u8>(), 0..128), any::<bool>()), 1..64)
    ) {
        for (index, payload, trim) in calls {
            let info = CALLS[index];
            // Payloads of the right length get further than random ones.
            let zeros = payload.iter().chain(std::iter::repeat(&0)).copied().take(MAX_PAYLOAD.min(4096));
            let bytes: Vec<u8> = zeros.collect();
            let fit = (0..256).find(|length| recode(info.number, &bytes[..*length]).is_ok());
            let length = if trim { fit.unwrap_or(payload.len()) } else { payload.len() };
            let guest = Guest::new();
            let sent = guest.connection.sender.send(info.number, 0, None, &[&bytes[..length]]);
            prop_assert!(sent.is_ok());
            let _ = guest.connection.sender.send(0x0001, 1, None, &[&[0; 8]]);
            let _ = guest.connection.sender.flush();
            match guest.die() {
                SessionEnd::Goodbye | SessionEnd::Connection(_) | SessionEnd::Malformed { .. } | SessionEnd::Sequence { .. } => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
