//! The daemon's orders to a session that has nothing else to do.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use paragpu_communicator::{Error, Frame, Receiver, Wait, Wake};
use paragpu_communicator_stream::handshake::send_frame;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader};
use paragpu_protocol::handshake::{Move, Stays};
use paragpu_protocol::table::Ping;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::session::Session;
use crate::testing::device::TestDevice;
use crate::testing::guest::{Guest, pair, setup};
use crate::transfer::orders::{CheckpointTarget, Departure, Giver, Order, Orders, Report};
use crate::transfer::state::{Kind, Scanner, Writer};

/// A guest that sends frames without end that are not calls.
struct Endless;

impl Receiver for Endless {
    fn receive(&mut self, _: Wait) -> Result<Option<Frame<'_>>, Error> {
        let payload = &[0; 8];
        let header = FrameHeader::new(Control::Received.kind(), 0, 0, payload.len());
        Ok(Some(Frame {
            header: header.unwrap(),
            payload,
            landed: 0,
        }))
    }

    fn set_polls(&mut self, _: bool) {}

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(Self)
    }
}

impl Wake for Endless {
    fn wake(&self) {}
}

#[test]
fn a_session_whose_guest_sends_without_end_stops() {
    let (host, _guest) = pair();
    let device = TestDevice::default();
    let mut session = Session::new(setup(&device), Arc::clone(&host.sender), None);
    let stopped = session.stop(&mut Endless, Duration::from_secs(60));
    assert!(matches!(stopped, Ok(true)), "{stopped:?}");
    // Nor does it receive forever while the guest runs a host function.
    let functions = Arc::clone(&session.objects.host_functions);
    functions.queue(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| functions.run(1));
        while !functions.need_report() {
            std::thread::yield_now();
        }
        session.take_early(&mut Endless).unwrap();
        functions.close();
    });
}

#[test]
fn a_guest_that_stays_is_reported_if_it_was_asked() {
    let (say, reports) = channel();
    let (host, _guest) = pair();
    let device = TestDevice::default();
    let mut session = Session::new(setup(&device), Arc::clone(&host.sender), None);
    let report = move |report| drop(say.send(report));
    session.transfer.set_orders(Arc::new(Orders::new(report)));
    let payload = encode_all(&Stays { reason: Text("no") });
    let kind = Control::Stays.kind();
    for asked in [false, true, false] {
        if asked {
            let sender = session.replies.link.sender();
            sender.query(Control::Move.kind(), &[]);
        }
        let header = FrameHeader::new(kind, 0, 0, payload.len()).unwrap();
        session.take(header, &payload).unwrap();
        assert_eq!(reports.try_iter().count(), usize::from(asked));
    }
}

#[test]
fn an_order_that_comes_before_the_session_waits_for_calls_is_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let (say, reports) = channel();
    let orders = Arc::new(Orders::new(move |report| {
        let _ = say.send(report);
    }));
    let checkpoint = || Order::Checkpoint {
        target: CheckpointTarget {
            directory: folder.path().to_owned(),
            file: None,
        },
        end: false,
    };
    assert!(orders.give(checkpoint(), Giver::Daemon));
    let guest = Guest::with_orders(Arc::clone(&orders));
    for later in [true, false] {
        let report = reports.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(report, Report::Done(_)), "{report:?}");
        if later {
            assert!(orders.give(checkpoint(), Giver::Daemon));
        }
    }
    guest.goodbye();
}

#[test]
fn a_session_that_moves_first_executes_no_call_before() {
    let (say, reports) = channel();
    let orders = Arc::new(Orders::new(move |report| drop(say.send(report))));
    let (link, destination) = UnixStream::pair().unwrap();
    let gates = [(); 3].map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap());
    let [(stop, _stop), (rest, _rest), (commit, _commit)] = gates;
    let departure = Departure {
        link: link.into(),
        local: true,
        here: false,
        follows: String::new(),
        gates: Some([stop, rest, commit]),
        precopy: true,
        hand_over: false,
    };
    assert!(orders.give(Order::Migrate(departure), Giver::Daemon));
    let mut guest = Guest::that_moves(orders);
    guest.send(1, &Ping { value: 7 });
    let home = encode_all(&Move {
        communicator: Text(""),
        address: Text(""),
    });
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    let welcome = Control::Welcome.kind();
    send_frame(&destination, welcome, 0, 0, &home, deadline).unwrap();
    // Between two answers it would execute calls.
    let mut scanner = Scanner::new(&destination);
    while scanner.record().unwrap().0 != Kind::ImageNames {}
    let mut writer = Writer::new(&destination);
    writer.put(Kind::Missing, &[]).unwrap();
    while scanner.record().unwrap().0 != Kind::ObjectsEnd {}
    assert_eq!(guest.statistics.read().calls, 0);
    // The move fails: the session continues here.
    destination.shutdown(std::net::Shutdown::Both).unwrap();
    let report = reports.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(report, Report::Failed(_)), "{report:?}");
    assert_eq!(guest.reply(1), Ok(7_u64.to_le_bytes().to_vec()));
    guest.goodbye();
}
