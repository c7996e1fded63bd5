//! Connections over unix, TCP and TCP under TLS beside the bare sockets: the
//! round trip and bulk data.
//!
//! `cargo bench -p paragpu-communicator-stream`

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error, Polling, Spin, Wait};
use paragpu_communicator_secure::rustls::{Connection as Tls, StreamOwned};
use paragpu_communicator_secure::{KeyLifetime, testing};
use paragpu_communicator_stream::{Options, over, over_secured};

const ROUNDS: u32 = 4000;
const FRAMES: usize = 2048;
const SIZE: usize = 256 << 10;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Unix,
    Tcp,
    Tls,
}

fn sockets(kind: Kind) -> (OwnedFd, OwnedFd) {
    match kind {
        Kind::Unix => {
            let (here, there) = UnixStream::pair().expect("socket pair");
            (here.into(), there.into())
        }
        Kind::Tcp | Kind::Tls => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let here =
                TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
            let (there, _) = listener.accept().expect("accept");
            here.set_nodelay(true).expect("nodelay");
            there.set_nodelay(true).expect("nodelay");
            (here.into(), there.into())
        }
    }
}

fn pair(kind: Kind, polling: Polling) -> (Connection, Connection) {
    let (here, there) = sockets(kind);
    let options = Options {
        polling,
        ..Options::default()
    };
    if let Kind::Tls = kind {
        let (near, far) = testing::secured(&here, &there, KeyLifetime::Replaceable);
        let near = over_secured(here, options, near);
        let far = over_secured(there, options, far);
        return (near.expect("connection"), far.expect("connection"));
    }
    let open = |socket| over(socket, options).expect("connection");
    (open(here), open(there))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn repeat(mut once: impl FnMut() -> f64) -> f64 {
    median((0..9).map(|_| once()).collect())
}

/// Reads exactly, polling for `spin` before it blocks.
fn read_exact(file: &mut std::fs::File, socket: &OwnedFd, buffer: &mut [u8], spin: Duration) {
    use rustix::net::{RecvFlags, recv};
    let mut read = 0;
    while read < buffer.len() {
        let mut polling = Spin::new(spin, None);
        loop {
            match recv(socket, &mut buffer[read..], RecvFlags::DONTWAIT) {
                Ok((_, count)) => {
                    read += count;
                    break;
                }
                Err(_) if polling.again() => {}
                Err(_) => {
                    let count = file.read(&mut buffer[read..]).expect("read");
                    read += count;
                    break;
                }
            }
        }
    }
}

/// Nanoseconds for one bare round trip of 80 bytes.
fn bare_ping_pong(kind: Kind, spin: Duration) -> f64 {
    let (here, there) = sockets(kind);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut file = std::fs::File::from(there.try_clone().expect("clone"));
            let mut buffer = [0; 80];
            for _ in 0..ROUNDS * 9 {
                read_exact(&mut file, &there, &mut buffer, spin);
                file.write_all(&buffer).expect("write");
            }
        });
        let mut file = std::fs::File::from(here.try_clone().expect("clone"));
        let mut buffer = [0; 80];
        repeat(|| {
            let began = Instant::now();
            for _ in 0..ROUNDS {
                file.write_all(&buffer).expect("write");
                read_exact(&mut file, &here, &mut buffer, spin);
            }
            began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        })
    })
}

/// Nanoseconds for one round trip of a 64-byte call and reply.
fn ping_pong(kind: Kind, spin: Duration) -> f64 {
    let (mut guest, mut host) = pair(kind, Polling { spin });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            loop {
                match host.receiver.receive(Wait::Forever) {
                    Ok(Some(frame)) => {
                        let (kind, slot) = (frame.header.kind, frame.header.slot);
                        let sequence = Some(frame.header.sequence);
                        let sent = host.sender.send(kind, slot, sequence, &[frame.payload]);
                        if sent.and_then(|_| host.sender.flush()).is_err() {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(Error::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let cost = repeat(|| {
            let began = Instant::now();
            for _ in 0..ROUNDS {
                guest.sender.send(1, 1, None, &[&[5; 64]]).expect("send");
                guest.sender.flush().expect("flush");
                let reply = guest.receiver.receive(Wait::Forever).expect("receive");
                black_box(reply.expect("a reply").payload);
            }
            began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        });
        drop(guest);
        cost
    })
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

/// A socket under rustls.
fn bare_tls(end: Result<Tls, String>, socket: OwnedFd) -> Box<dyn ReadWrite> {
    let socket = TcpStream::from(socket);
    match end.expect("an end of TLS") {
        Tls::Client(client) => Box::new(StreamOwned::new(client, socket)),
        Tls::Server(server) => Box::new(StreamOwned::new(server, socket)),
    }
}

/// GB/s of a bare TLS socket, as [`bare_bulk`].
fn bare_tls_bulk() -> f64 {
    let (here, there) = sockets(Kind::Tls);
    let (near, far) = testing::credentials(KeyLifetime::Replaceable);
    let mut writer = bare_tls(near.client("localhost"), here);
    let mut reader = bare_tls(far.server(), there);
    let source = vec![1_u8; 64 << 20];
    let mut target = vec![1_u8; 64 << 20];
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // The handshake is not timed.
            let mut first = [0];
            reader.read_exact(&mut first).expect("read");
            let began = Instant::now();
            for index in 0..FRAMES {
                let at = (index * SIZE) % target.len();
                reader.read_exact(&mut target[at..at + SIZE]).expect("read");
            }
            black_box(&target);
            began.elapsed()
        });
        writer.write_all(&[0]).expect("write");
        for index in 0..FRAMES {
            let at = (index * SIZE) % source.len();
            writer.write_all(&source[at..at + SIZE]).expect("write");
        }
        writer.flush().expect("flush");
        let took = reader.join().expect("reader");
        (FRAMES * SIZE) as f64 / took.as_secs_f64() / 1e9
    })
}

/// GB/s of a bare socket, written and read in pieces of the same size, into memory for the
/// whole transfer.
fn bare_bulk(kind: Kind) -> f64 {
    if let Kind::Tls = kind {
        return bare_tls_bulk();
    }
    let (here, there) = sockets(kind);
    let source = vec![1_u8; 64 << 20];
    let mut target = vec![1_u8; 64 << 20];
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut file = std::fs::File::from(there);
            for index in 0..FRAMES {
                let at = (index * SIZE) % target.len();
                file.read_exact(&mut target[at..at + SIZE]).expect("read");
            }
            black_box(&target);
        });
        let mut file = std::fs::File::from(here);
        let began = Instant::now();
        for index in 0..FRAMES {
            let at = (index * SIZE) % source.len();
            file.write_all(&source[at..at + SIZE]).expect("write");
        }
        reader.join().expect("reader");
        (FRAMES * SIZE) as f64 / began.elapsed().as_secs_f64() / 1e9
    })
}

/// GB/s of frames of the largest size, copied to their destination.
fn bulk(kind: Kind) -> f64 {
    let (guest, mut host) = pair(kind, Polling::default());
    let source = vec![1_u8; 64 << 20];
    let mut target = vec![1_u8; 64 << 20];
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for index in 0..FRAMES {
                let frame = host.receiver.receive(Wait::Forever).expect("receive");
                let at = (index * SIZE) % target.len();
                target[at..at + SIZE].copy_from_slice(frame.expect("a frame").payload);
            }
            black_box(&target);
        });
        let began = Instant::now();
        for index in 0..FRAMES {
            let at = (index * SIZE) % source.len();
            let sent = guest.sender.send(1, 0, None, &[&source[at..at + SIZE]]);
            sent.expect("send");
        }
        reader.join().expect("reader");
        (FRAMES * SIZE) as f64 / began.elapsed().as_secs_f64() / 1e9
    })
}

/// Nanoseconds for one posted frame.
fn post(kind: Kind) -> f64 {
    let (guest, mut host) = pair(kind, Polling::default());
    std::thread::scope(|scope| {
        scope.spawn(move || while let Ok(Some(_)) = host.receiver.receive(Wait::Forever) {});
        let cost = repeat(|| {
            let began = Instant::now();
            for _ in 0..2000 {
                guest.sender.send(1, 0, None, &[&[7; 100]]).expect("send");
            }
            let cost = began.elapsed().as_nanos() as f64 / 2000.0;
            guest.sender.flush().expect("flush");
            std::thread::sleep(Duration::from_millis(1));
            cost
        });
        guest.sender.close();
        cost
    })
}

fn main() {
    for kind in [Kind::Unix, Kind::Tcp, Kind::Tls] {
        println!("{kind:?}");
        println!("  post 100 bytes        {:9.1} ns", post(kind));
        for spin in [Duration::ZERO, Polling::default().spin] {
            let bare = bare_ping_pong(kind, spin);
            let ours = ping_pong(kind, spin);
            println!(
                "  ping-pong, spin {spin:?}: bare {bare:9.1} ns, ours {ours:9.1} ns, ratio {:.2}",
                ours / bare
            );
        }
        // Alternating, because the load of the machine varies.
        let pairs: Vec<_> = (0..9).map(|_| (bare_bulk(kind), bulk(kind))).collect();
        let bare = median(pairs.iter().map(|pair| pair.0).collect());
        let ours = median(pairs.iter().map(|pair| pair.1).collect());
        let ratio = median(pairs.iter().map(|pair| pair.1 / pair.0).collect());
        println!(
            "  bulk: bare {bare:.2} GB/s, ours {ours:.2} GB/s, ratio {:.2}",
            ratio
        );
    }
}
