//! Every message survives its frame, and bytes that are none are refused.

use std::io::BufReader;
use std::path::PathBuf;

use paragpu_control::admin::{Figures, Migrate as Order, Moved, Request, Response};
use paragpu_control::counters::{Counters, LATENCIES};
use paragpu_control::exchange::{Ask, Offer};
use paragpu_control::frame::{self, FrameError, HEADER, Message, VERSION};
use paragpu_control::json_lines::{self, Assembler};
use paragpu_control::turn::{TimeShare, Turn, TurnRequest};
use paragpu_control::worker::{
    Channel, CheckpointSchedule, FromWorker, Gpu, Guest, Keys, Migrate, Phase, Progress, Report,
    Route, Step, Terms, ToWorker,
};
use paragpu_protocol::handshake::Transport;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    // Quotes, escapes and what is not ASCII included.
    proptest::string::string_regex("[\\PC\"\\\\\n]{0,40}").unwrap()
}

fn terms() -> impl Strategy<Value = Terms> {
    let numbers = any::<(u64, u32, u32, u64, u64, u32)>();
    (numbers, any::<[u8; 16]>(), text()).prop_map(|(numbers, token, vm)| {
        let (session, ordinal, device_count, device_memory, window, reconnect) = numbers;
        Terms {
            session,
            token,
            ordinal,
            device_count,
            device_memory,
            window,
            reconnect,
            vm,
        }
    })
}

fn guest() -> impl Strategy<Value = Guest> {
    let transport = prop_oneof![
        Just(Transport::Stream),
        Just(Transport::Shm),
        Just(Transport::Pci)
    ];
    let channel = any::<(u32, u64, u64, u64)>().prop_map(|(number, offset, size, lists)| Channel {
        number,
        offset,
        size,
        lists,
    });
    let channel = proptest::option::of(channel);
    let windows = any::<(u64, u64)>();
    (transport, any::<u64>(), any::<u32>(), windows, channel).prop_map(
        |(transport, received, pid, windows, channel)| Guest {
            secured: (pid % 2 == 0).then(|| Keys(pid.to_le_bytes().to_vec())),
            transport,
            received,
            pid,
            windows,
            channel,
        },
    )
}

fn route() -> impl Strategy<Value = Route> {
    (text(), text()).prop_map(|(communicator, address)| Route {
        communicator,
        address,
    })
}

fn path() -> impl Strategy<Value = PathBuf> {
    text().prop_map(PathBuf::from)
}

fn migrate() -> impl Strategy<Value = Migrate> {
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (flags, text()).prop_map(
        |((local, here, held, precopy, hand_over), follows)| Migrate {
            local,
            here,
            held,
            follows,
            precopy,
            hand_over,
        },
    )
}

fn offer() -> impl Strategy<Value = Offer> {
    any::<([u8; 16], u64, [u8; 16])>().prop_map(|(token, size, domain)| Offer {
        token,
        size,
        domain,
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        any::<(u64, [u8; 16])>().prop_map(|(size, domain)| Ask::Offer { size, domain }),
        any::<([u8; 16], u64, [u8; 16])>().prop_map(|(token, size, domain)| Ask::Again(Offer {
            token,
            size,
            domain
        })),
        any::<[u8; 16]>().prop_map(Ask::Withdraw),
        any::<[u8; 16]>().prop_map(Ask::Take),
        any::<[u8; 16]>().prop_map(Ask::Join),
        any::<[u8; 16]>().prop_map(Ask::Borrow),
        any::<[u8; 16]>().prop_map(Ask::Return),
        any::<u64>().prop_map(Ask::Enlarge),
    ]
}

fn to_worker() -> impl Strategy<Value = ToWorker> {
    let again = (path(), any::<u64>())
        .prop_map(|(directory, every)| CheckpointSchedule { directory, every });
    prop_oneof![
        any::<(u32, Option<u32>)>().prop_map(|(slot, gpu)| ToWorker::Quota { slot, gpu }),
        Just(ToWorker::Door),
        (terms(), guest()).prop_map(|(terms, guest)| ToWorker::Assign { terms, guest }),
        (terms(), proptest::option::of(route()), any::<bool>()).prop_map(
            |(terms, route, follows)| ToWorker::Arrive {
                terms,
                route,
                follows,
            }
        ),
        terms().prop_map(|terms| ToWorker::Restore { terms }),
        any::<u32>().prop_map(|user| ToWorker::Own { user }),
        Just(ToWorker::Query),
        proptest::option::of(text()).prop_map(|reason| ToWorker::End { reason }),
        (terms(), guest()).prop_map(|(terms, guest)| ToWorker::Resume { terms, guest }),
        route().prop_map(ToWorker::Move),
        (path(), any::<bool>(), any::<u64>()).prop_map(|(directory, end, expires)| {
            ToWorker::Checkpoint {
                directory,
                end,
                expires,
            }
        }),
        migrate().prop_map(ToWorker::Migrate),
        proptest::option::of(again).prop_map(ToWorker::Again),
        (
            any::<u64>(),
            proptest::option::of(offer()),
            any::<Option<u64>>()
        )
            .prop_map(|(request, offer, part)| ToWorker::Exchanged {
                request,
                offer,
                part,
            }),
        Just(ToWorker::Turn(Turn::Paced)),
        Just(ToWorker::Turn(Turn::Yours)),
        any::<u64>().prop_map(|within| ToWorker::Turn(Turn::Ends(within))),
    ]
}

fn counters() -> impl Strategy<Value = Counters> {
    (
        any::<[u64; 10]>(),
        any::<bool>(),
        any::<Option<u32>>(),
        any::<[u64; LATENCIES]>(),
    )
        .prop_map(|(numbers, busy, gpu_percent, latency)| Counters {
            calls: numbers[0],
            posted: numbers[1],
            synchronous: numbers[2],
            bytes_to_device: numbers[3],
            bytes_from_device: numbers[4],
            device_memory: numbers[5],
            host_memory: numbers[6],
            launches: numbers[7],
            waited: numbers[8],
            shadow_memory: numbers[9],
            busy,
            gpu_percent,
            latency,
        })
}

fn report() -> impl Strategy<Value = Report> {
    let phase = prop_oneof![Just(Phase::Running), Just(Phase::Stopped)];
    let step = prop_oneof![Just(Step::Copied), Just(Step::Complete)];
    prop_oneof![
        (phase, any::<u64>(), any::<u64>())
            .prop_map(|(phase, done, all)| Report::Progress(Progress { phase, done, all })),
        any::<[u64; 7]>().prop_map(|numbers| {
            Report::Done(paragpu_control::worker::Figures {
                bytes: numbers[0],
                pre_copied: numbers[1],
                handed_over: numbers[2],
                fetched: numbers[3],
                stopped: numbers[4],
                felt: numbers[5],
                total: numbers[6],
            })
        }),
        text().prop_map(Report::Failed),
        step.prop_map(Report::Held),
        text().prop_map(Report::Stayed),
        route().prop_map(Report::Left),
    ]
}

fn gpu() -> impl Strategy<Value = Gpu> {
    (text(), any::<u64>(), text(), text(), text()).prop_map(
        |(name, memory, uuid, compute_capability, cuda_version)| Gpu {
            name,
            memory,
            uuid,
            compute_capability,
            cuda_version,
        },
    )
}

fn from_worker() -> impl Strategy<Value = FromWorker> {
    prop_oneof![
        (any::<u32>(), gpu()).prop_map(|(pid, gpu)| FromWorker::Ready { pid, gpu }),
        text().prop_map(|reason| FromWorker::Failed { reason }),
        any::<u64>().prop_map(|session| FromWorker::Started { session }),
        counters().prop_map(FromWorker::Counters),
        report().prop_map(FromWorker::Report),
        (any::<u64>(), ask()).prop_map(|(request, ask)| FromWorker::Exchange { request, ask }),
        Just(FromWorker::Turn(TurnRequest::Wanted)),
        Just(FromWorker::Turn(TurnRequest::Over)),
        (any::<u64>(), counters(), proptest::option::of(text())).prop_map(
            |(session, counters, reason)| FromWorker::Finished {
                session,
                counters,
                reason,
            }
        ),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let order = (
        proptest::option::of(any::<u64>()),
        proptest::option::of(text()),
        any::<bool>(),
    )
        .prop_map(|(session, vm, copy)| Order {
            session,
            vm,
            copy,
            ..Order::default()
        });
    prop_oneof![
        Just(Request::List {}),
        any::<u64>().prop_map(|session| Request::End { session }),
        (any::<u64>(), path(), any::<bool>(), any::<Option<u64>>()).prop_map(
            |(session, directory, end, every)| Request::Checkpoint {
                session,
                directory,
                end,
                every,
            }
        ),
        (path(), proptest::option::of(1..9_u32))
            .prop_map(|(directory, copies)| Request::Restore { directory, copies }),
        order.prop_map(Request::Migrate),
        (text(), any::<Option<u64>>())
            .prop_map(|(to, most_pause_ms)| Request::Carry { to, most_pause_ms }),
        (
            any::<Option<u64>>(),
            proptest::option::of(text()),
            any::<Option<u32>>()
        )
            .prop_map(|(session, vm, weight)| Request::Share {
                session,
                vm,
                weight,
                cap: weight,
                priority: None,
            }),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    let figures = (any::<u64>(), any::<u32>()).prop_map(|(bytes, micros)| Figures {
        bytes,
        total_ms: f64::from(micros) / 1e3,
        ..Figures::default()
    });
    let moved = (
        any::<u64>(),
        text(),
        proptest::option::of(text()),
        figures.clone(),
    )
        .prop_map(|(session, vm, error, figures)| Moved {
            session,
            vm,
            moved: error.is_none(),
            error,
            figures,
        });
    prop_oneof![
        figures.prop_map(Response::Done),
        any::<[u32; 3]>().prop_map(|[weight, cap, priority]| Response::Shared(TimeShare {
            weight: weight.into(),
            cap,
            priority,
        })),
        proptest::collection::vec(moved, 0..5).prop_map(|sessions| Response::Moved { sessions }),
        text().prop_map(|error| Response::Error { error }),
    ]
}

/// It comes back from its packet and from its line, whole or in pieces; no part
/// of it does.
fn survives<M: Message + PartialEq + std::fmt::Debug>(message: &M, cut: prop::sample::Index) {
    let packet = frame::encode(message).unwrap();
    assert_eq!(&frame::decode::<M>(&packet).unwrap(), message);
    assert!(frame::decode::<M>(&packet[..cut.index(packet.len())]).is_err());

    let bytes = json_lines::encode(message).unwrap();
    assert_eq!(
        &json_lines::read::<M>(&bytes[..]).unwrap().unwrap(),
        message
    );
    let (start, rest) = bytes.split_at(cut.index(bytes.len()));
    match json_lines::read::<M>(start) {
        Ok(None) => assert!(start.is_empty()),
        read => assert!(matches!(read, Err(FrameError::Length)), "{read:?}"),
    }
    let mut assembler = Assembler::default();
    assembler.push(start);
    assert!(assembler.take::<M>().unwrap().is_none());
    assembler.push(rest);
    assembler.push(start);
    assert_eq!(&assembler.take::<M>().unwrap().unwrap(), message);
    assert!(assembler.take::<M>().unwrap().is_none());
    assert_eq!(assembler.pending(), start.len());
}

#[test]
fn another_protocol_is_refused_before_its_line_ends() {
    let mut assembler = Assembler::default();
    assembler.push(b"\x20\x00\x00\x00");
    let taken = assembler.take::<Request>();
    assert!(matches!(taken, Err(FrameError::Foreign)), "{taken:?}");
}

/// Any bytes are a message or an error for every reader.
fn is_total<M: Message>(bytes: &[u8]) {
    let _ = frame::decode::<M>(bytes);
    let _ = json_lines::read::<M>(bytes);
    let mut assembler = Assembler::default();
    assembler.push(bytes);
    while let Ok(Some(_)) | Err(FrameError::Content(_)) = assembler.take::<M>() {}
}

fn header(version: u16, length: u32) -> Vec<u8> {
    let mut bytes = b"pg".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn messages_to_workers_survive(message in to_worker(), cut: prop::sample::Index) {
        survives(&message, cut);
    }

    #[test]
    fn messages_from_workers_survive(message in from_worker(), cut: prop::sample::Index) {
        survives(&message, cut);
    }

    #[test]
    fn requests_survive(message in request(), cut: prop::sample::Index) {
        survives(&message, cut);
    }

    #[test]
    fn responses_survive(message in response(), cut: prop::sample::Index) {
        survives(&message, cut);
    }

    #[test]
    fn random_bytes_are_refused(bytes: Vec<u8>) {
        is_total::<ToWorker>(&bytes);
        is_total::<Response>(&bytes);
        // Behind a good header, so that they reach the decoder.
        let mut framed = header(VERSION, u32::try_from(bytes.len()).unwrap());
        framed.extend(&bytes);
        is_total::<ToWorker>(&framed);
        is_total::<FromWorker>(&framed);
        is_total::<Request>(&framed);
        is_total::<Response>(&framed);
    }

    #[test]
    fn changed_messages_are_refused(
        message in from_worker(),
        at: prop::sample::Index,
        to: u8,
    ) {
        let mut bytes = frame::encode(&message).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        is_total::<FromWorker>(&bytes);
    }
}

#[test]
fn bad_headers_are_named() {
    let too_long = u32::try_from(Request::MAX_LEN).unwrap() + 1;
    for (bytes, expected) in [
        (b"GET / HT".to_vec(), "does not speak"),
        (header(VERSION + 1, 2), "speaks version 2"),
        (header(VERSION, too_long), "is too long"),
        (header(VERSION, u32::MAX), "is too long"),
    ] {
        assert_eq!(bytes.len(), HEADER);
        let error = frame::decode::<Request>(&bytes).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn an_endless_line_is_given_up() {
    let mut endless = BufReader::new(std::io::repeat(b' '));
    let read = json_lines::read::<Request>(&mut endless);
    assert!(matches!(read, Err(FrameError::TooLong(_))), "{read:?}");
    let mut assembler = Assembler::default();
    assembler.push(&vec![b' '; Request::MAX_LEN + 1]);
    let taken = assembler.take::<Request>();
    assert!(matches!(taken, Err(FrameError::TooLong(_))), "{taken:?}");
}

#[test]
fn what_is_too_long_is_not_sent() {
    let error = "x".repeat(Response::MAX_LEN);
    let sent = frame::encode(&Response::Error { error });
    assert!(matches!(sent, Err(FrameError::TooLong(_))), "{sent:?}");
}

#[test]
fn unknown_fields_and_kinds_are_refused() {
    for json in [
        r#"{"Quota":{"slot":1,"more":2}}"#,
        r#"{"Nonsense":{}}"#,
        r#"{"Quota":{}}"#,
        r#"{"Quota":{"slot":-1}}"#,
        "[]",
    ] {
        let mut bytes = header(VERSION, u32::try_from(json.len()).unwrap());
        bytes.extend(json.as_bytes());
        let decoded = frame::decode::<ToWorker>(&bytes);
        assert!(
            matches!(decoded, Err(FrameError::Content(_))),
            "{decoded:?}"
        );
    }
}
