//! Calls in a session of the real client, as the guest's configuration says.

use std::sync::Arc;

use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_config::Communicator;
use paragpu_config::guest::Guest;

use crate::error::Error;
use crate::pingpong::{self, Socket, WaitMode};
use crate::sample::{each, median, print, seconds_of};

/// Alternations of measurement and baseline, each of a few milliseconds: what a processor
/// shares with others changes more slowly, and affects both.
const ROUNDS: usize = 101;
/// Batches of round trips in each.
const BATCHES: usize = 60;
/// Launches between two waits, so few that every queue takes them.
const BURST: usize = 200;

const MICROS: f64 = 1e6;

const NULL_KERNEL: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry nothing()\n{\n ret;\n}\n\0";

fn open() -> Result<(Arc<Session>, Guest), Error> {
    let config = Guest::load()?;
    Ok((Session::open(&config, 0)?, config))
}

/// Round trips, alternating with bare ones, and the median ratio of neighbours.
pub fn calls() -> Result<(), Error> {
    let (session, config) = open()?;
    let communicator = config.communicator;
    let kind = match communicator {
        Communicator::Shm => None,
        Communicator::Unix => Some(Socket::Unix),
        Communicator::Tcp => Some(Socket::Tcp),
        other => return Err(Error::NoBaseline(other)),
    };
    let (mut calls, mut bare, mut polled) = (Vec::new(), Vec::new(), Vec::new());
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        // The worker may have gone to sleep meanwhile.
        (0..500).try_for_each(|_| session.ping())?;
        let call = each(BATCHES, || session.ping())?;
        let shortest = match kind {
            None => {
                let trip = pingpong::shared_memory(BATCHES);
                bare.push(trip);
                trip
            }
            Some(kind) => {
                let slept = pingpong::socket(kind, WaitMode::Blocking, BATCHES)?;
                let spun = pingpong::socket(kind, WaitMode::Polling, BATCHES)?;
                bare.push(slept);
                polled.push(spun);
                slept.min(spun)
            }
        };
        calls.push(call);
        ratios.push(call / shortest);
    }
    print("call", "us", median(calls) * MICROS);
    print("raw_pingpong", "us", median(bare) * MICROS);
    print("call_ratio", "", median(ratios));
    if !polled.is_empty() {
        print("raw_pingpong_polled", "us", median(polled) * MICROS);
    }
    session.close();
    Ok(())
}

/// Null launches: what one costs the thread that posts it.
pub fn launches() -> Result<(), Error> {
    let (session, _) = open()?;
    let module = session.modules().load(NULL_KERNEL, &[])?;
    let function = session.modules().function(&module, "nothing")?;
    let stream = Arc::clone(session.legacy());
    let shape = Shape {
        grid: [1, 1, 1],
        block: [32, 1, 1],
        ..Shape::default()
    };
    let mut values = Vec::new();
    for round in 0..220 {
        let (seconds, launched) = seconds_of(|| {
            (0..BURST).try_for_each(|_| session.launches().launch(&function, &stream, &shape, &[]))
        });
        launched?;
        // The first rounds fault in what later ones reuse.
        if round >= 20 {
            values.push(seconds / BURST as f64);
        }
        session.synchronize()?;
    }
    print("client_launch", "us", median(values) * MICROS);
    session.modules().unload(&module)?;
    session.close();
    Ok(())
}
