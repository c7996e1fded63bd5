//! The part of a session's state that is neither objects nor memory: its position in
//! the call sequence, errors not yet reported, limits, and the ages of its events.

use paragpu_device::StreamId;
use paragpu_protocol::codec::{Bytes, Field, Reader, Text};
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::CtxSetLimit;

use super::state::{StateError, device};
use crate::error::Fault;
use crate::session::Session;
use crate::session::code_search::Prints;
use crate::session::errors::Deferred;

/// Kernels may have printed what was not sent.
const MAY_PRINT: u8 = 1;
/// The guest may not have read what was sent.
const UNREAD: u8 = 2;

paragpu_protocol::record! {
    /// The counters of a session.
    Numbers {
        /// Calls received.
        received: u64,
        /// Calls executed.
        executed: u64,
        /// Counted frames that the guest has acknowledged.
        arrived: u64,
        /// Counted frames sent.
        sent: u64,
        /// [`MAY_PRINT`] and [`UNREAD`].
        output: u8,
    }

    /// An unreported error.
    Waiting<'a> {
        /// 0 for a posted call, otherwise the bulk token whose transfer failed.
        token: u32,
        /// CUresult.
        status: Status,
        /// Number of the call that failed.
        call: u16,
        /// One sentence.
        detail: Text<'a>,
    }

    /// The age of an event at the stop.
    Reached {
        /// The event.
        event: u64,
        /// Milliseconds.
        before: f32,
    }

    /// A limit that the guest set.
    Limit {
        /// CUlimit.
        limit: u32,
        /// Its value.
        value: u64,
    }

    /// Lists of records, each encoded as [`Bytes`].
    Lists<'a> {
        /// [`Numbers`].
        numbers: Numbers,
        /// [`Waiting`].
        errors: Bytes<'a>,
        /// [`Reached`].
        events: Bytes<'a>,
        /// [`Limit`].
        limits: Bytes<'a>,
    }
}

fn append<'a>(field: &impl Field<'a>, out: &mut Vec<u8>) {
    let tail = field.encode(out);
    out.extend_from_slice(tail);
}

fn all<'a, T: Field<'a>>(bytes: Bytes<'a>) -> Result<Vec<T>, StateError> {
    let mut reader = Reader::new(bytes.0);
    let mut list = Vec::new();
    while reader.remaining() > 0 {
        list.push(reader.field()?);
    }
    Ok(list)
}

impl Session {
    /// Writes the record; the session is drained.
    pub(crate) fn bookkeeping(&mut self) -> Result<Vec<u8>, StateError> {
        let recorded = self.objects.live.names(ObjectKind::Event);
        let ages = device(self.objects.events.ages(&mut self.gpu, recorded))?;
        let mut events = Vec::new();
        for (event, before) in ages {
            append(&Reached { event, before }, &mut events);
        }
        let mut errors = Vec::new();
        let deferred = self
            .replies
            .errors
            .deferred()
            .into_iter()
            .map(|error| (0, error));
        for (token, error) in deferred.chain(self.copies.tokens.failures()) {
            let waiting = Waiting {
                token,
                status: error.status,
                call: error.call,
                detail: Text(&error.detail),
            };
            append(&waiting, &mut errors);
        }
        let mut limits = Vec::new();
        for (limit, value) in self.objects.limits() {
            append(&Limit { limit, value }, &mut limits);
        }
        let (received, executed) = (self.intake.received(), self.replies.link.executed());
        let (arrived, sent) = self.replies.link.sender().counts();
        let mut output = 0;
        if self.replies.printing.may_print() {
            output |= MAY_PRINT;
        }
        if self.replies.link.has_unread_output() {
            output |= UNREAD;
        }
        let lists = Lists {
            numbers: Numbers {
                received,
                executed,
                arrived,
                sent,
                output,
            },
            errors: Bytes(&errors),
            events: Bytes(&events),
            limits: Bytes(&limits),
        };
        Ok(paragpu_protocol::codec::encode_all(&lists))
    }

    /// Applies the record, after the objects were recreated.
    pub(crate) fn take_bookkeeping(&mut self, payload: &[u8]) -> Result<(), StateError> {
        let lists: Lists<'_> = paragpu_protocol::codec::decode_all(payload)?;
        let limits: Vec<Limit> = all(lists.limits)?;
        for Limit { limit, value } in limits {
            match self.objects.ctx_set_limit(
                &mut self.gpu,
                &mut self.memory,
                &CtxSetLimit { limit, value },
            ) {
                Ok(()) => {}
                Err(Fault::Call(error)) => device(Err(error))?,
                Err(_) => return Err(StateError::Order("a limit that must wait")),
            }
        }
        let errors: Vec<Waiting<'_>> = all(lists.errors)?;
        for waiting in errors {
            let error = Deferred {
                status: waiting.status,
                call: waiting.call,
                detail: waiting.detail.0.to_owned(),
            };
            if waiting.token == 0 {
                self.replies.errors.replace_deferred(Some(error));
            } else {
                self.copies.tokens.fail(waiting.token, error);
            }
        }
        let reached: Vec<Reached> = all(lists.events)?;
        let ages = reached
            .into_iter()
            .map(|reached| (reached.event, reached.before));
        device(self.objects.events.adopt(&mut self.gpu, ages.collect()))?;
        let numbers = lists.numbers;
        self.replies
            .link
            .sender()
            .set_counts(numbers.arrived, numbers.sent);
        if numbers.output & MAY_PRINT != 0 {
            self.replies.printing.note(StreamId::LEGACY, Prints::Yes);
        }
        if numbers.output & UNREAD != 0 {
            self.replies.link.note_unread_output();
        }
        self.intake.set_received(numbers.received);
        self.replies.link.set_executed(numbers.executed);
        Ok(())
    }
}

#[cfg(all(test, feature = "software"))]
mod tests {
    use std::time::{Duration, SystemTime};

    use paragpu_protocol::call::WireCall;
    use paragpu_protocol::codec::{Bytes, encode_all};
    use paragpu_protocol::handle::{EventHandle, StreamHandle};
    use paragpu_protocol::table::{EventCreate, EventElapsedTime, EventRecord, GraphLaunch};
    use paragpu_protocol::types::GraphNode;

    use crate::session::Session;
    use crate::transfer::graph_tests::{GRAPH, instantiate_encoded, perform, restored};
    use crate::transfer::identity::Identity;
    use crate::transfer::tests::{alone, file_of, session, write};

    /// The graph records these.
    const BY_GRAPH: [u64; 2] = [200, 201];
    /// The program records these.
    const BEFORE: u64 = 202;
    const AFTER: u64 = 203;

    fn record(event: u64) -> EventRecord {
        EventRecord {
            event: EventHandle(event),
            stream: StreamHandle(0),
        }
    }

    /// Creates the events, and a graph that records two of them.
    fn create(session: &mut Session) {
        for event in BY_GRAPH.into_iter().chain([BEFORE, AFTER]) {
            let event = EventHandle(event);
            perform(session, &EventCreate { event, flags: 0 });
        }
        let mut nodes = Vec::new();
        for (event, after) in BY_GRAPH.into_iter().zip([&[][..], &[0; 4]]) {
            nodes.extend(encode_all(&GraphNode {
                call: EventRecord::INFO.number,
                after: Bytes(after),
                work: Bytes(&encode_all(&record(event))),
            }));
        }
        instantiate_encoded(session, 2, &nodes);
    }

    fn launch(session: &mut Session) {
        let launch = GraphLaunch {
            graph: GRAPH,
            stream: StreamHandle(0),
        };
        perform(session, &launch);
    }

    fn elapsed(session: &mut Session, start: u64, end: u64) -> f32 {
        let call = EventElapsedTime {
            start: EventHandle(start),
            end: EventHandle(end),
        };
        let events = &session.objects.events;
        events.event_elapsed_time(&mut session.gpu, &call).unwrap()
    }

    fn set_token(session: &mut Session, token: [u8; 16]) {
        let identity = session.transfer.identity().clone();
        session
            .transfer
            .set_identity(Identity { token, ..identity });
    }

    #[test]
    fn output_that_the_guest_has_not_read_is_not_forgotten() {
        let _alone = alone();
        for prints in [false, true] {
            let mut first = session(1, 1 << 30);
            if prints {
                first.replies.link.send_output(1, b"printed").unwrap();
            }
            let state = write(&mut first);
            drop(first);
            let second = restored(&state);
            assert_eq!(second.replies.link.has_unread_output(), prints);
        }
    }

    #[test]
    fn events_that_a_graph_records_have_the_times_of_its_last_launch() {
        let _alone = alone();
        let mut first = session(1, 1 << 30);
        create(&mut first);
        launch(&mut first);
        perform(&mut first, &record(BEFORE));
        let state = write(&mut first);
        drop(first);

        let mut second = restored(&state);
        for event in BY_GRAPH {
            assert!(elapsed(&mut second, BEFORE, event) < 0.0, "not yet");
        }
        perform(&mut second, &record(AFTER));
        launch(&mut second);
        let times = |session: &mut Session| {
            let [first, last] = BY_GRAPH;
            for event in BY_GRAPH {
                assert!(elapsed(session, BEFORE, event) > 0.0);
                assert!(elapsed(session, event, BEFORE) < 0.0);
                assert!(elapsed(session, AFTER, event) > 0.0);
            }
            assert!(elapsed(session, first, last) >= 0.0);
            elapsed(session, BEFORE, last)
        };
        let time = times(&mut second);
        // Their ages move, too.
        let state = write(&mut second);
        drop(second);
        let later = times(&mut restored(&state));
        assert!((time - later).abs() < 0.01, "{time} {later}");
    }

    #[test]
    fn times_of_events_include_the_time_since_a_checkpoint() {
        let _alone = alone();
        let (original, copy) = ([1; 16], [2; 16]);
        let mut first = session(1, 1 << 30);
        set_token(&mut first, original);
        create(&mut first);
        perform(&mut first, &record(BEFORE));
        let state = write(&mut first);
        drop(first);

        let minute = Duration::from_mins(1);
        let time = |written: SystemTime, token| {
            let file = file_of(&state);
            file.set_modified(written).unwrap();
            let mut restored = session(1, 1 << 30);
            set_token(&mut restored, token);
            restored.read_file(&file).unwrap();
            perform(&mut restored, &record(AFTER));
            elapsed(&mut restored, BEFORE, AFTER)
        };
        let now = SystemTime::now();
        assert!(time(now - minute, original) >= 60_000.0);
        // The clock was set back; a copy's program did not wait.
        for (written, token) in [(now + minute, original), (now - minute, copy)] {
            assert!((0.0..60_000.0).contains(&time(written, token)));
        }
    }

    #[test]
    fn times_before_a_checkpoint_stay_exact() {
        let _alone = alone();
        let mut first = session(1, 1 << 30);
        create(&mut first);
        perform(&mut first, &record(BEFORE));
        std::thread::sleep(Duration::from_millis(3));
        perform(&mut first, &record(AFTER));
        let time = elapsed(&mut first, BEFORE, AFTER);
        let file = file_of(&write(&mut first));
        drop(first);

        // A 32-bit number of the milliseconds of some days is a multiple of 8 or more.
        let week = Duration::from_hours(24 * 7);
        file.set_modified(SystemTime::now() - week).unwrap();
        let mut restored = session(1, 1 << 30);
        restored.read_file(&file).unwrap();
        let later = elapsed(&mut restored, BEFORE, AFTER);
        assert!((time - later).abs() < 0.01, "{time} {later}");
    }
}
