//! A host that reports what cannot be. The test is the host.

#[path = "common/plain_host.rs"]
mod plain_host;

use paragpu_client::Session;
use paragpu_communicator::Sender;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::frame::{Control, REPLY};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Ping;

/// Runs `test` with a session. Its host answers calls, pings with `answer_ping`, until the
/// guest leaves; kernels have these parameters.
fn with_host(
    parameters: &'static [(u32, u32)],
    answer_ping: impl Fn(&dyn Sender, u16, u64) + Send + 'static,
    test: impl FnOnce(&Session),
) {
    let (guest, host) = plain_host::connect();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            plain_host::serve(host, parameters, |sender, frame| {
                let header = frame.header;
                let is_ping = header.kind == Ping::INFO.number;
                if is_ping {
                    answer_ping(sender, header.slot, header.sequence);
                }
                is_ping
            });
        });
        let session = plain_host::session(guest, true);
        test(&session);
        session.close();
    });
}

#[test]
fn positions_of_calls_that_were_never_sent_end_the_session() {
    for ahead in [0, 1, u64::MAX / 2] {
        for by_reply in [true, false] {
            let report = move |sender: &dyn Sender, slot: u16, position: u64| {
                let position = position.saturating_add(ahead);
                if !by_reply {
                    let taken = position.to_le_bytes();
                    let kind = Control::Taken.kind();
                    let _ = sender.send(kind, 0, Some(0), &[&taken]);
                }
                let executed = Some(if by_reply { position } else { 0 });
                let kind = Ping::INFO.number | REPLY;
                let reply = plain_host::answer(Ping::INFO.number, &[]);
                // The guest may have left.
                let _ = sender.send(kind, slot, executed, &[&reply]);
                let _ = sender.flush();
            };
            with_host(&[], report, |session| {
                let outcomes = [session.ping(), session.ping()];
                assert_eq!(outcomes.iter().all(Result::is_ok), ahead == 0, "{ahead}");
            });
        }
    }
}

#[test]
fn a_kernel_whose_parameters_overlap_is_refused() {
    for (parameters, outcome) in [
        (&[(0, 8), (8, 4)][..], None),
        (&[(0, 8), (0, 8)], Some(Status::INVALID_IMAGE)),
        (&[(0, 40_000)], Some(Status::INVALID_IMAGE)),
    ] {
        with_host(
            parameters,
            |_, _, _| {},
            |session| {
                let module = session.modules().load(b"image", &[]).unwrap();
                let function = session.modules().function(&module, "kernel");
                assert_eq!(function.err(), outcome, "{parameters:?}");
            },
        );
    }
}
