//! The source's behaviour in states that a real destination reaches only by chance.
//! Nothing here can wait for the session's thread, because it is the test's.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::live::Recorded;
use paragpu_communicator::{Nowhere, Receiver};
use paragpu_communicator_stream as stream;
use paragpu_communicator_stream::handshake::send_frame;
use paragpu_control::turn::{Turn, TurnRequest};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Text, decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{
    DeviceAddress, ModuleHandle, ShadowAddress, StreamHandle, WindowOffset,
};
use paragpu_protocol::handshake::Move;
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, CHUNK};
use paragpu_protocol::table::{
    HostMap, MemMap, ModuleLoad, ModuleUnload, ShadowCreate, ShadowDestroy, StreamCreate,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SILENCE;
use super::objects::RELOADS;
use crate::session::Session;
use crate::session::transfer::TaskKind;
use crate::testing::device::{TestDevice, UNLISTED};
use crate::testing::guest::{setup, sevens};
use crate::transfer::orders::{Departure, Orders, Report, Step};
use crate::transfer::precopy::{Owners, PreCopy, owners};
use crate::transfer::replay::Item;
use crate::transfer::state::{ImagePart, Kind, Scanner, Writer};
use crate::transfer::tests::{PTX, alone, settle, shareable, store};
use crate::turns::{TurnState, Turns};

/// Loads a module of `image` and returns its hash.
fn load(session: &mut Session, module: u64, image: &[u8]) -> [u8; 32] {
    let hash = store(session, image);
    let call = Recorded::of(&ModuleLoad {
        module: ModuleHandle(module),
        hash,
        options: Bytes(&[]),
    });
    session.perform(&call).unwrap();
    hash
}

/// A migration that has begun, with both its ends.
pub(super) struct Begun {
    pub(super) session: Session,
    pub(super) receiver: Box<dyn Receiver>,
    pub(super) destination: UnixStream,
    scanner: Scanner<UnixStream>,
    guest: UnixStream,
}

impl Begun {
    /// A migration whose destination has sent its welcome.
    fn new(session: Session) -> Self {
        Self::together(session, None)
    }

    /// The same, together with other sessions.
    fn together(session: Session, gates: Option<[OwnedFd; 3]>) -> Self {
        Self::at(session, gates, "")
    }

    /// The same, to this address.
    fn at(session: Session, gates: Option<[OwnedFd; 3]>, address: &str) -> Self {
        Self::with(session, gates, address, false)
    }

    /// A migration that hands memory over.
    pub(super) fn handing_over(session: Session) -> Self {
        Self::with(session, None, "", true)
    }

    fn with(
        mut session: Session,
        gates: Option<[OwnedFd; 3]>,
        address: &str,
        hand_over: bool,
    ) -> Self {
        let (link, destination) = UnixStream::pair().unwrap();
        let (connection, guest) = UnixStream::pair().unwrap();
        let connection = stream::over(connection, stream::Options::default());
        session.begin_migration(Departure {
            link: link.into(),
            local: true,
            here: false,
            follows: String::new(),
            gates,
            precopy: true,
            hand_over,
        });
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let home = encode_all(&Move {
            communicator: Text(""),
            address: Text(address),
        });
        let welcome = Control::Welcome.kind();
        send_frame(&destination, welcome, 0, 0, &home, deadline).unwrap();
        Self {
            session,
            receiver: connection.unwrap().receiver,
            scanner: Scanner::new(destination.try_clone().unwrap()),
            destination,
            guest,
        }
    }

    /// Sends a message of the destination.
    pub(super) fn answer(&self, kind: Kind, payload: &[u8]) {
        let mut writer = Writer::new(&self.destination);
        writer.put(kind, &[payload]).unwrap();
        writer.flush().unwrap();
    }

    /// The next record of the source, which runs steps until it is sent.
    pub(super) fn record(&mut self) -> (Kind, Vec<u8>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut fds = [PollFd::new(&self.destination, PollFlags::IN)];
            if poll(&mut fds, Some(&Timespec::default())).unwrap() > 0 {
                let (kind, payload) = self.scanner.record().unwrap();
                return (kind, payload.to_vec());
            }
            self.session
                .step(TaskKind::Move, self.receiver.as_mut())
                .unwrap();
            assert!(Instant::now() < deadline, "the source sends nothing");
        }
    }

    /// Runs steps until the session stays.
    pub(super) fn gives_up(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.session.transfer.is_moving() {
            self.session
                .step(TaskKind::Move, self.receiver.as_mut())
                .unwrap();
            assert!(Instant::now() < deadline, "it does not give up");
        }
    }

    /// Images and their bytes, up to a record of another kind, which is returned as well.
    pub(super) fn images(&mut self) -> (Vec<([u8; 32], usize)>, Kind) {
        let mut images = Vec::new();
        loop {
            let (kind, payload) = self.record();
            if kind != Kind::Image {
                return (images, kind);
            }
            let part: ImagePart<'_> = decode_all(&payload).unwrap();
            images.push((part.hash, part.data.0.len()));
        }
    }
}

#[test]
fn an_image_of_a_module_that_is_loaded_meanwhile_is_offered_too() {
    let _alone = alone();
    let mut session = shareable();
    let first = load(&mut session, 1, PTX);
    let mut begun = Begun::new(session);
    assert_eq!(begun.record().0, Kind::Head);
    assert_eq!(begun.images(), (vec![(first, 0)], Kind::ImageNames));

    // The destination has the first one, and was not asked about this one.
    let other = [PTX, b"// another one\n"].concat();
    let second = load(&mut begun.session, 2, &other);
    begun.answer(Kind::Missing, &[]);
    assert_eq!(begun.images(), (vec![(second, 0)], Kind::ImageNames));
    begun.answer(Kind::Missing, &second);
    let (sent, mut kind) = begun.images();
    assert_eq!(sent, vec![(second, other.len())]);
    while kind == Kind::Objects {
        kind = begun.record().0;
    }
    assert_eq!(kind, Kind::ObjectsEnd);

    // Modules loaded during pre-copy are sent before the stop.
    let last = [PTX, b"// the last one\n"].concat();
    let third = load(&mut begun.session, 3, &last);
    begun.answer(Kind::Ready, &[0]);
    let requested = loop {
        match begun.images() {
            (requested, Kind::ImageNames) => break requested,
            (requested, Kind::Contents) => assert!(requested.is_empty()),
            (_, other) => panic!("{other:?}"),
        }
    };
    assert_eq!(requested, vec![(third, 0)]);
}

#[test]
fn a_program_that_loads_modules_without_end_stays() {
    let _alone = alone();
    let mut session = shareable();
    load(&mut session, 1, PTX);
    let mut begun = Begun::new(session);
    assert_eq!(begun.record().0, Kind::Head);
    assert_eq!(begun.images().1, Kind::ImageNames);
    for number in 0..=RELOADS {
        // There is another one whenever the destination has them all.
        let other = [PTX, format!("// {number}\n").as_bytes()].concat();
        load(&mut begun.session, 2 + u64::from(number), &other);
        begun.answer(Kind::Missing, &[]);
        if number < RELOADS {
            let (requested, kind) = begun.images();
            assert_eq!((requested.len(), kind), (1, Kind::ImageNames), "{number}");
        }
    }
    begun.gives_up();
}

#[test]
fn a_session_whose_module_does_not_list_its_variables_stays() {
    let device = TestDevice::default();
    let mut session = Session::new(setup(&device), Arc::new(Nowhere), None);
    let (say, reports) = channel();
    session
        .transfer
        .set_orders(Arc::new(Orders::new(move |report| {
            let _ = say.send(report);
        })));
    let listed = load(&mut session, 1, PTX);
    let unlisted = load(&mut session, 2, UNLISTED);
    let address = session.gpu.regions().arena;
    let map = MemMap {
        address: DeviceAddress(address),
        size: CHUNK,
    };
    session.perform(&Recorded::of(&map)).unwrap();

    let why = "the variables of a module are unknown";
    let written = session.write_file(tempfile::tempdir().unwrap().path());
    let refusal = written.unwrap_err().to_string();
    assert!(
        refusal.contains(why) && !refusal.contains('\n'),
        "{refusal}"
    );

    let mut begun = Begun::new(session);
    assert_eq!(begun.record().0, Kind::Head);
    let (mut images, kind) = begun.images();
    images.sort_unstable();
    let mut expected = [(listed, 0), (unlisted, 0)];
    expected.sort_unstable();
    assert_eq!((images.as_slice(), kind), (&expected[..], Kind::ImageNames));
    begun.answer(Kind::Missing, &[]);
    begun.gives_up();
    let failed = reports.try_iter().last();
    assert_eq!(failed, Some(Report::Failed(refusal)));

    // The program continues, and can move when it has unloaded the module.
    let mut session = begun.session;
    session
        .perform(&Recorded::of(&sevens(address, StreamHandle(0))))
        .unwrap();
    settle(&mut session);
    assert_eq!(
        device.bytes(address, 65),
        [[7; 64].as_slice(), &[0]].concat()
    );
    let module = ModuleHandle(2);
    session
        .perform(&Recorded::of(&ModuleUnload { module }))
        .unwrap();
    session.items().unwrap();
}

#[test]
fn a_session_waits_for_others_that_are_behind() {
    let _alone = alone();
    let mut begun = Begun::new(shareable());
    assert_eq!(begun.record().0, Kind::Head);
    // Those that move with it have not begun to offer the memory that they share, and have what
    // their programs have freed.
    let room = [&[2], u64::MAX.to_le_bytes().as_slice(), b"no room"].concat();
    let behind = [vec![1], room].into_iter().cycle().take(40);
    for behind in behind.chain([vec![0]]) {
        assert_eq!(begun.images(), (vec![], Kind::ImageNames));
        begun.answer(Kind::Missing, &[]);
        while begun.record().0 != Kind::ObjectsEnd {}
        begun.answer(Kind::Ready, &behind);
    }
    // It stops only now that the destination has its objects.
    assert_eq!(begun.record().0, Kind::Bookkeeping);
}

#[test]
fn a_session_whose_link_breaks_says_that_it_stays() {
    let _alone = alone();
    let (say, reports) = channel();
    let mut session = shareable();
    session
        .transfer
        .set_orders(Arc::new(Orders::new(move |report| {
            let _ = say.send(report);
        })));
    let mut begun = Begun::new(session);
    assert_eq!(begun.record().0, Kind::Head);
    let both = std::net::Shutdown::Both;
    begun.destination.shutdown(both).unwrap();
    begun.gives_up();
    let Some(Report::Failed(reason)) = reports.try_iter().last() else {
        panic!("it moved");
    };
    let expected = "the link to the destination broke, so the session continues here: ";
    assert!(reason.starts_with(expected), "{reason}");
}

#[test]
fn a_destination_that_answers_slowly_stops_no_program() {
    let _alone = alone();
    let mut begun = Begun::new(shareable());
    assert_eq!(begun.record().0, Kind::Head);
    assert_eq!(begun.images(), (vec![], Kind::ImageNames));
    let mut writer = Writer::new(Vec::new());
    writer.put(Kind::Missing, &[]).unwrap();
    for byte in writer.into_inner() {
        begun.destination.write_all(&[byte]).unwrap();
        let began = Instant::now();
        let receiver = begun.receiver.as_mut();
        begun.session.step(TaskKind::Move, receiver).unwrap();
        assert!(began.elapsed() < SILENCE, "a step waits");
        assert!(begun.session.transfer.is_moving());
    }
    // It continues with the complete answer.
    while begun.record().0 != Kind::ObjectsEnd {}
}

#[test]
fn a_session_stays_if_the_destination_has_an_endless_address() {
    let _alone = alone();
    let mut session = shareable();
    let (say, reports) = channel();
    let orders = Orders::new(move |report| {
        let _ = say.send(report);
    });
    session.transfer.set_orders(Arc::new(orders));
    let mut begun = Begun::at(session, None, &"x".repeat(60_000));
    begun.gives_up();
    let report = reports.try_iter().last();
    let Some(Report::Failed(reason)) = report else {
        panic!("{report:?}");
    };
    assert_eq!(reason, "the destination's address is too long");
}

/// The bytes to copy to a destination that has the objects of `sent`.
fn bytes_to_copy(session: &mut Session, sent: Owners) -> u64 {
    let chunks = session.chunks().unwrap();
    let precopy = PreCopy::new(session, sent, chunks, false).unwrap();
    precopy.mover.keep(session);
    precopy.all
}

#[test]
fn a_shadow_that_is_only_waiting_to_be_dropped_is_not_copied() {
    let device = TestDevice::default();
    let mut session = Session::new(setup(&device), Arc::new(Nowhere), None);
    let size = 8192;
    let address = ShadowAddress(session.gpu.regions().shadow);
    let create = Recorded::of(&ShadowCreate { address, size });
    session.perform(&create).unwrap();
    let sent = owners(&session);
    // Each has the device's copy and the agreed state.
    assert_eq!(bytes_to_copy(&mut session, sent), 2 * size);

    // Work in flight may use it: the host keeps it, the destination does not get it.
    device.hold(0, true);
    session
        .perform(&Recorded::of(&sevens(address.0, StreamHandle(0))))
        .unwrap();
    let destroy = Recorded::of(&ShadowDestroy { address });
    session.perform(&destroy).unwrap();
    session.host.check_shadow(address.0).unwrap();
    let sent = owners(&session);
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(bytes_to_copy(&mut session, sent), 0);
    device.hold(0, false);
}

#[test]
fn memory_is_copied_only_to_a_destination_that_has_it_pinned() {
    let device = TestDevice::default();
    let mut session = Session::new(setup(&device), Arc::new(Nowhere), None);
    let sent = owners(&session);
    let (offset, size) = (WindowOffset(BULK_TOKEN_BYTES), 8192);
    // It has moved away from its window before.
    let pin = Item::new(Recorded::of(&HostMap { offset, size }));
    session.leave_window(&[pin]).unwrap();
    assert_eq!(bytes_to_copy(&mut session, sent), 0);
    let sent = owners(&session);
    assert_eq!(bytes_to_copy(&mut session, sent), 2 * size);
}

#[test]
fn images_are_sent_while_calls_are_served() {
    let _alone = alone();
    let mut session = shareable();
    // More than fits into the link while nothing reads it.
    let large = [PTX, &b"// a line\n".repeat(600_000)].concat();
    let hash = load(&mut session, 1, &large);
    let mut begun = Begun::new(session);
    assert_eq!(begun.record().0, Kind::Head);
    assert_eq!(begun.images(), (vec![(hash, 0)], Kind::ImageNames));
    begun.answer(Kind::Missing, &hash);
    // Nothing reads the link, and no step waits for it.
    for _ in 0..1000 {
        begun
            .session
            .step(TaskKind::Move, begun.receiver.as_mut())
            .unwrap();
    }
    let mut got = 0;
    while got < large.len() {
        let (kind, payload) = begun.record();
        assert_eq!(kind, Kind::Image);
        let part: ImagePart<'_> = decode_all(&payload).unwrap();
        assert!(large[got..].starts_with(part.data.0));
        got += part.data.0.len();
    }
}

#[test]
fn a_session_that_stops_leaves_the_gpu_to_others() {
    let _alone = alone();
    let (say, pleas) = channel();
    let turns = Arc::new(Turns::new(move |request| {
        let _ = say.send(request);
    }));
    turns.handle(Turn::Paced);
    let mut session = shareable();
    session.pacing.follow(Arc::clone(&turns));
    let mut begun = Begun::new(session);
    let mut stop = || {
        let receiver = begun.receiver.as_mut();
        let stopped = begun.session.stop(receiver, Duration::from_secs(60));
        assert!(matches!(stopped, Ok(true)), "{stopped:?}");
    };
    let requests = || pleas.try_iter().collect::<Vec<_>>();
    // During its turn.
    turns.request();
    turns.handle(Turn::Yours);
    stop();
    assert_eq!(requests(), [TurnRequest::Wanted, TurnRequest::Over]);
    // Before the turn that it requested.
    turns.request();
    stop();
    assert_eq!(requests(), [TurnRequest::Wanted]);
    turns.handle(Turn::Yours);
    assert_eq!(requests(), [TurnRequest::Over]);
    // It continues before that turn.
    turns.request();
    stop();
    turns.request();
    turns.handle(Turn::Yours);
    assert_eq!(requests(), [TurnRequest::Wanted]);
    assert_eq!(turns.state(), TurnState::Ours);
}

#[test]
fn a_stopped_session_executes_calls_while_others_are_not_stopped() {
    let _alone = alone();
    let (say, reports) = channel();
    let orders = Arc::new(Orders::new(move |report| {
        let _ = say.send(report);
    }));
    let next = move || loop {
        match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
            Report::Progress(_) => {}
            other => break other,
        }
    };
    let pipe = || rustix::pipe::pipe().unwrap();
    let ((stops, stop), (rests, rest), (commits, commit)) = (pipe(), pipe(), pipe());
    let mut session = shareable();
    session.transfer.set_orders(Arc::clone(&orders));
    let mut begun = Begun::together(session, Some([stops, rests, commits]));
    assert_eq!(begun.record().0, Kind::Head);
    assert_eq!(begun.images().1, Kind::ImageNames);
    begun.answer(Kind::Missing, &[]);
    while begun.record().0 != Kind::ObjectsEnd {}
    begun.answer(Kind::Ready, &[0]);

    let (guest, destination) = (begun.guest.try_clone(), begun.destination.try_clone());
    let (guest, destination) = (guest.unwrap(), destination.unwrap());
    // The daemon, and the program.
    let others = std::thread::spawn(move || {
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let post = |sequence| {
            let call = StreamCreate {
                stream: StreamHandle(sequence),
                flags: 0,
                priority: 0,
            };
            let number = <StreamCreate as WireCall>::INFO.number;
            let payload = encode_all(&call);
            send_frame(&guest, number, 0, sequence, &payload, deadline).unwrap();
        };
        assert_eq!(next(), Report::Held(Step::Copied));
        // A late answer to an earlier move.
        orders.resume();
        rustix::io::write(&stop, &[1]).unwrap();
        assert_eq!(next(), Report::Held(Step::Stopped));
        // The work of another session waits for this call.
        post(1);
        assert_eq!(next(), Report::Resumes);
        orders.resume();
        assert_eq!(next(), Report::Held(Step::Stopped));
        // All are stopped now, so the next call waits.
        post(2);
        assert_eq!(next(), Report::Resumes);
        rustix::io::write(&rest, &[1]).unwrap();
        destination.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(next(), Report::Failed(_)));
        drop(commit);
    });
    while begun.session.transfer.is_moving() {
        begun
            .session
            .step(TaskKind::Move, begun.receiver.as_mut())
            .unwrap();
    }
    others.join().unwrap();
    assert_eq!(begun.session.statistics.read().posted, 1);
    assert!(!begun.session.intake.is_empty());
}
