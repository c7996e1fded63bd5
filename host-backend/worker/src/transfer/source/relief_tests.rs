//! Programs that lack memory while their sessions move, near the limit of the GPU.

use std::sync::Arc;

use paragpu_communicator::Nowhere;
use paragpu_communicator_stream::handshake::receive_with_fds;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::FrameHeader;
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemMap, MemUnmap};

use super::tests::Begun;
use crate::live::Recorded;
use crate::session::Session;
use crate::session::transfer::TaskKind;
use crate::testing::device::{TOTAL, TestDevice};
use crate::testing::guest::setup;
use crate::transfer::shared::mappings;
use crate::transfer::state::Kind;

/// Four of these fill the device. None is kept mapped for reuse.
const QUARTER: u64 = TOTAL / 4;

fn map(address: u64, size: u64) -> MemMap {
    MemMap {
        address: DeviceAddress(address),
        size,
    }
}

/// A program that has three quarters of the device's memory, at the addresses from `arena` on.
struct Program {
    device: TestDevice,
    begun: Begun,
    arena: u64,
    calls: u64,
}

impl Program {
    /// Its session moves, and the destination has its memory: pre-copy begins.
    fn moving() -> Self {
        let device = TestDevice::default();
        device.hand_over();
        let mut session = Session::new(setup(&device), Arc::new(Nowhere), None);
        let arena = session.gpu.regions().arena;
        for at in 0..3 {
            let map = map(arena + at * QUARTER, QUARTER);
            session.perform(&Recorded::of(&map)).unwrap();
        }
        let begun = Begun::handing_over(session);
        let mut program = Self {
            device,
            begun,
            arena,
            calls: 0,
        };
        assert_eq!(program.up_to(Kind::ObjectsEnd), [0, 1, 2]);
        program
    }

    /// Has the destination take all memory, up to a record of this kind. Returns what it took.
    fn up_to(&mut self, last: Kind) -> Vec<u64> {
        let mut taken = Vec::new();
        loop {
            let (kind, payload) = self.begun.record();
            if kind == last {
                return taken;
            }
            match kind {
                Kind::Domain => self.begun.answer(kind, b"the test device "),
                Kind::ImageNames => self.begun.answer(Kind::Missing, &[]),
                Kind::ObjectsEnd => self.recreated(),
                Kind::Shared => {
                    let (all, handed) = mappings(&payload).unwrap();
                    assert_eq!(all.len(), handed);
                    receive_with_fds(&self.begun.destination, 0, None).unwrap();
                    self.begun.answer(Kind::Taken, &vec![1; handed]);
                    taken.extend(all.iter().map(|one| self.quarter(one.address)));
                }
                _ => {}
            }
        }
    }

    fn quarter(&self, address: u64) -> u64 {
        (address - self.arena) / QUARTER
    }

    /// The destination has the objects.
    fn recreated(&mut self) {
        self.begun.answer(Kind::Ready, &[0]);
    }

    /// Sends a call. Returns whether it was executed.
    fn call<'a, C: WireCall<'a>>(&mut self, call: &C) -> bool {
        self.calls += 1;
        let payload = encode_all(call);
        let header = FrameHeader::new(C::INFO.number, 0, self.calls, payload.len()).unwrap();
        self.begun.session.offer(header, &payload).unwrap();
        self.begun.session.intake.is_empty()
    }

    fn free(&mut self, at: u64) {
        let address = DeviceAddress(self.arena + at * QUARTER);
        assert!(self.call(&MemUnmap { address }));
    }

    /// Allocates a quarter.
    fn allocate(&mut self, at: u64) -> bool {
        self.call(&map(self.arena + at * QUARTER, QUARTER))
    }

    /// Whether a further attempt executes the call that waits.
    fn goes_on(&mut self) -> bool {
        self.begun.session.execute_first().unwrap()
    }

    fn has(&self, at: u64) -> bool {
        let address = self.arena + at * QUARTER;
        self.begun.session.memory.arena().is_live(address)
    }

    /// The addresses of which the destination has to let go.
    fn freed(&mut self) -> Vec<u64> {
        let (kind, payload) = self.begun.record();
        assert_eq!(kind, Kind::Freed);
        let (addresses, rest) = payload.as_chunks();
        assert!(rest.is_empty());
        let addresses = addresses.iter().copied().map(u64::from_le_bytes);
        addresses.map(|address| self.quarter(address)).collect()
    }

    /// The destination has let go.
    fn let_go(&mut self) {
        self.device.let_go();
        self.begun.answer(Kind::Ready, &[]);
        while self.begun.session.transfer.shortage.is_awaited() {
            self.step();
        }
    }

    fn step(&mut self) {
        let receiver = self.begun.receiver.as_mut();
        self.begun.session.step(TaskKind::Move, receiver).unwrap();
    }

    /// The status of the first call that failed.
    fn failed(&self) -> Option<Status> {
        let errors = &self.begun.session.replies.errors;
        errors
            .deferred()
            .into_iter()
            .next()
            .map(|error| error.status)
    }
}

#[test]
fn a_program_gets_memory_that_it_has_freed_while_its_session_moves() {
    let mut program = Program::moving();
    program.recreated();
    // The destination does not have this, and still has that.
    assert!(program.allocate(3));
    program.free(0);
    assert!(!program.allocate(4) && !program.goes_on());
    assert_eq!(program.freed(), [0]);
    assert!(!program.goes_on());
    program.let_go();
    assert!(program.goes_on() && program.has(4));
    assert_eq!(program.failed(), None);

    // The next round names what is new.
    assert_eq!(program.up_to(Kind::ObjectsEnd), [3, 4]);
    program.recreated();
    program.free(1);
    assert!(!program.allocate(0));
    assert_eq!(program.freed(), [1]);
    program.let_go();
    assert!(program.goes_on() && program.has(0));
    assert_eq!(program.failed(), None);
}

#[test]
fn memory_that_was_let_go_is_handed_over_again() {
    let mut program = Program::moving();
    program.recreated();
    assert!(program.allocate(3));
    program.free(0);
    assert!(!program.allocate(4));
    assert_eq!(program.freed(), [0]);
    program.let_go();
    assert!(program.goes_on());
    program.free(4);
    // At the same address and of the same size, and not the same memory.
    assert!(program.allocate(0));
    assert_eq!(program.up_to(Kind::ObjectsEnd), [0, 3]);
}

#[test]
fn a_program_gets_memory_that_the_destination_of_a_failed_move_keeps() {
    let mut program = Program::moving();
    // The destination is not able to answer before it has recreated the objects.
    program.free(0);
    program.free(1);
    assert!(program.allocate(3));
    assert!(!program.allocate(4) && !program.goes_on());
    program.begun.answer(Kind::Refused, b"it cannot");
    program.begun.gives_up();
    assert!(!program.goes_on());
    // It exits.
    program.device.let_go();
    let both = std::net::Shutdown::Both;
    program.begun.destination.shutdown(both).unwrap();
    assert!(program.goes_on() && program.has(4));
    assert_eq!(program.failed(), None);
    // Nobody keeps what the program lacks now.
    assert!(program.allocate(5));
    assert!(!program.allocate(6) && program.goes_on());
    assert_eq!(program.failed(), Some(Status::OUT_OF_MEMORY));
}

#[test]
fn a_limit_holds_while_the_session_moves() {
    let mut program = Program::moving();
    program.recreated();
    assert!(!program.call(&map(program.arena + TOTAL, 2 * TOTAL)));
    assert_eq!(program.freed(), [] as [u64; 0]);
    program.let_go();
    assert!(program.goes_on());
    assert_eq!(program.failed(), Some(Status::OUT_OF_MEMORY));
    assert_eq!(program.begun.session.memory.arena().live(), 3 * QUARTER);
}
