//! Sessions that outlive their connections: a real client and a real worker
//! with the GPU in software, and between them somebody who cuts the connection
//! at a random byte, again and again. Every kernel, copy and host function
//! must have been executed once and in order.
//!
//! `PARAGPU_TEST_CUTS` says how often each connection is cut (default 100),
//! `PARAGPU_TEST_SEED` where.

mod cutter;
mod host;
mod load;
mod path;

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cutter::Cutter;
use host::Host;
use load::Load;
use paragpu_client::Session;
use paragpu_communicator_secure::issue::Authority;
use paragpu_communicator_secure::{Credentials, Files, Identity, KeyLifetime};
use paragpu_config::Communicator;
use paragpu_config::guest::Guest;
use path::Path;

/// One test at a time: each keeps the processor busy.
static ALONE: Mutex<()> = Mutex::new(());

/// A session's addresses are its device's, for as long as the process lives:
/// each has a device of its own.
fn device() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

fn cuts() -> u64 {
    number("PARAGPU_TEST_CUTS", 100)
}

fn seed() -> u64 {
    number("PARAGPU_TEST_SEED", 1)
}

/// Threads of a session work until `enough`; what they did is checked.
fn work(host: &Host, session: &Arc<Session>, enough: impl Fn() -> bool) {
    let stop = AtomicBool::new(false);
    let load = Load::new(session);
    let launches: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|thread| {
                let (load, stop) = (&load, &stop);
                scope.spawn(move || load.run(seed() * 97 + thread, stop))
            })
            .collect();
        while !enough() && workers.iter().all(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a thread of the load failed"))
            .sum()
    });
    session.synchronize().unwrap();
    assert_eq!(host.launches(), launches, "each launch once");
    assert!(launches > 0);
    println!(
        "{launches} launches, {} connections after the first",
        session.reconnects()
    );
}

/// The defaults, with one communicator.
fn by(communicator: Communicator) -> Guest {
    Guest {
        communicator,
        ..Guest::default()
    }
}

fn survives_cuts(communicator: Communicator) {
    survives_cuts_of(by(communicator), None);
}

fn survives_cuts_of(mut config: Guest, tls: Option<Credentials>) {
    let _alone = ALONE.lock();
    let device = device();
    let host = Host::start_under(device, tls);
    let communicator = config.communicator;
    let cutter = Cutter::start(&host, seed(), communicator);
    config.unix.socket = cutter.path();
    config.shm.socket = cutter.path();
    config.tcp.address.0 = Some(cutter.address());
    let session = Session::open(&config, device).unwrap();
    cutter.begin();
    work(&host, &session, || cutter.cuts() >= cuts());
    cutter.end();
    // A goodbye on a connection that was cut would not arrive.
    session.ping().unwrap();
    assert!(session.reconnects() > 0);
    println!(
        "{communicator:?}: {} cuts, results bit-exact",
        cutter.cuts()
    );
    session.close();
    host.finished();
}

#[test]
fn unix_cut_at_random_bytes() {
    survives_cuts(Communicator::Unix);
}

#[test]
fn tcp_cut_at_random_bytes() {
    survives_cuts(Communicator::Tcp);
}

#[test]
fn tls_cut_at_random_bytes() {
    for wear in [KeyLifetime::Replaceable, KeyLifetime::Lasting] {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open(directory.path()).unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let identity = Identity {
            vm: "vm".into(),
            memory: 0,
            sessions: 0,
            lease: 0,
            expires: until
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs(),
        };
        let guest = authority.guest(&identity).unwrap();
        let host = authority.host(&["127.0.0.1".into()], until).unwrap();
        let files = Files {
            section: "tcp",
            ca: &host.ca,
            certificate: &host.certificate,
            key: &host.key,
            key_shared: false,
        };
        let mut config = by(Communicator::Tcp);
        config.tcp.ca = guest.ca;
        config.tcp.certificate = guest.certificate;
        config.tcp.key = guest.key;
        survives_cuts_of(config, Some(Credentials::load(files, wear).unwrap()));
    }
}

/// Guest and host have sent what the other does not acknowledge, so keepalive is silent.
#[test]
fn a_path_lost_with_data_on_its_way_is_replaced() {
    let _alone = ALONE.lock();
    let device = device();
    let host = Host::start(device);
    let path = Path::start(&host);
    let mut config = by(Communicator::Tcp);
    config.tcp.address.0 = Some(path.address());
    let session = Session::open(&config, device).unwrap();
    let looks = AtomicU64::new(0);
    work(&host, &session, || {
        if looks.fetch_add(1, Ordering::Relaxed) == 100 {
            path.lose();
        }
        session.reconnects() > 0
    });
    session.close();
    host.finished();
}

#[test]
fn shm_cut_at_random_moments() {
    survives_cuts(Communicator::Shm);
}

/// The host asks the guest to continue elsewhere, while it works.
fn moves(first: Communicator, rounds: u64) {
    let _alone = ALONE.lock();
    let device = device();
    let host = Host::start(device);
    let mut config = by(first);
    config.unix.socket = host.path();
    config.shm.socket = host.path();
    config.tcp.address.0 = Some(host.address());
    let session = Session::open(&config, device).unwrap();
    let path = host.path().display().to_string();
    let address = host.address();
    let goals = [
        ("tcp", address.as_str()),
        ("shm", path.as_str()),
        ("unix", path.as_str()),
        // Where the guest knows of.
        ("shm", ""),
        ("unix", ""),
        ("tcp", ""),
    ];
    let asked = std::cell::Cell::new(0_u64);
    work(&host, &session, || {
        if session.reconnects() >= asked.get() {
            if asked.get() == rounds {
                return true;
            }
            let (communicator, address) = goals[asked.get() as usize % goals.len()];
            host.ask_to_move(communicator, address);
            asked.set(asked.get() + 1);
        }
        false
    });
    assert_eq!(session.reconnects(), rounds);
    println!("from {first:?}: {rounds} moves, results bit-exact");
    session.close();
    host.finished();
}

#[test]
fn a_session_moves_between_communicators() {
    for first in [Communicator::Shm, Communicator::Tcp, Communicator::Unix] {
        moves(first, cuts().min(60));
    }
}

#[test]
fn a_move_that_nobody_takes_leaves_the_session_where_it_is() {
    let _alone = ALONE.lock();
    let device = device();
    let host = Host::start(device);
    let mut config = by(Communicator::Unix);
    config.unix.socket = host.path();
    let session = Session::open(&config, device).unwrap();
    session.ping().unwrap();
    host.ask_to_move("unix", "/nowhere/at/all");
    host.ask_to_move("carrier-pigeon", "");
    for _ in 0..100 {
        session.ping().unwrap();
    }
    assert_eq!(session.reconnects(), 0);
    session.close();
    host.finished();
}

#[test]
fn a_session_whose_host_is_gone_is_over_at_once() {
    let _alone = ALONE.lock();
    let device = device();
    let host = Host::start(device);
    let mut config = by(Communicator::Unix);
    config.unix.socket = host.path();
    let session = Session::open(&config, device).unwrap();
    session.ping().unwrap();
    host.kill();
    // Refused by the daemon's stand-in: no patience is spent.
    assert!(session.ping().is_err());
    assert_eq!(session.check(), session.ping());
}
