//! The guest's half of the VM test that uses the real rings: frames of many
//! sizes to the echo daemon and back, then the time of a small one.
//!
//! usage: `ring_ping NODE COUNT`; prints one JSON line.

use std::path::Path;
use std::time::Instant;

use paragpu_communicator::{Connection, Wait};
use paragpu_communicator_ring::pci::attach_guest;
use paragpu_communicator_ring::shm::Options;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::{Control, MAX_PAYLOAD, REPLY};
use paragpu_protocol::handshake::{Hello, Transport};

const KIND: u16 = 7;

fn echo(connection: &mut Connection, payload: &[u8]) {
    let sent = connection
        .sender
        .send(KIND, 1, None, &[payload])
        .expect("send");
    let frame = connection
        .receiver
        .receive(Wait::Forever)
        .expect("receive")
        .expect("a frame");
    assert_eq!(frame.header.kind, KIND | REPLY);
    assert_eq!(frame.header.sequence, sent);
    assert_eq!(frame.payload, payload);
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let node = arguments.next().expect("usage: ring_ping NODE COUNT");
    let count: u32 = arguments.next().expect("COUNT").parse().expect("a number");
    let mut connection = attach_guest(Path::new(&node), Options::default(), |_| 0).expect("attach");
    let hello = Hello::new(Transport::Pci, 0, std::process::id());
    connection
        .sender
        .send(Control::Hello.kind(), 0, Some(0), &[&encode_all(&hello)])
        .expect("hello");
    let welcome = connection.receiver.receive(Wait::Forever).expect("welcome");
    assert_eq!(
        welcome.expect("a frame").header.kind,
        Control::Welcome.kind()
    );

    let mut length = 0;
    while length <= MAX_PAYLOAD {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        echo(&mut connection, &payload);
        length = length * 3 + 1;
    }
    for _ in 0..16 {
        echo(&mut connection, &vec![0xa5; MAX_PAYLOAD]);
    }

    let mut times: Vec<f64> = (0..count)
        .map(|_| {
            let start = Instant::now();
            echo(&mut connection, &[0; 64]);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"test\":\"ring-ping\",\"ok\":true,\"count\":{count},\"p50_us\":{:.1},\"p99_us\":{:.1}}}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
}
