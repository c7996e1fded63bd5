//! Stands between guest and host and cuts their connections: streams after a
//! random number of bytes of either direction, which loses what was under way;
//! the sign of life of shared memory at random moments.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use paragpu_config::Communicator;

use crate::host::Host;
use crate::load::Random;

pub struct Cutter {
    shared: Arc<Shared>,
    directory: tempfile::TempDir,
    address: String,
}

struct Shared {
    cutting: AtomicBool,
    cuts: AtomicU64,
    connections: AtomicU64,
    seed: u64,
    moments: bool,
    upstream: PathBuf,
}

/// Either kind of socket.
trait Socket: Read + Write + Send + 'static {
    fn again(&self) -> Self;
    fn cut(&self);
}

impl Socket for UnixStream {
    fn again(&self) -> Self {
        self.try_clone().unwrap()
    }
    fn cut(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Socket for TcpStream {
    fn again(&self) -> Self {
        self.try_clone().unwrap()
    }
    fn cut(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Cutter {
    pub fn start(host: &Host, seed: u64, communicator: Communicator) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(directory.path().join("guests")).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            cutting: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            seed,
            moments: communicator == Communicator::Shm,
            upstream: host.path(),
        });
        if shared.moments {
            let of = Arc::clone(&shared);
            host.watch(Box::new(move |socket| of.cut_later(socket.into())));
        }
        let of = Arc::clone(&shared);
        std::thread::spawn(move || {
            for guest in unix.incoming() {
                of.serve(guest.unwrap());
            }
        });
        let of = Arc::clone(&shared);
        std::thread::spawn(move || {
            for guest in tcp.incoming() {
                let guest = guest.unwrap();
                guest.set_nodelay(true).unwrap();
                of.serve(guest);
            }
        });
        Self {
            shared,
            directory,
            address,
        }
    }

    pub fn path(&self) -> PathBuf {
        if self.shared.moments {
            // Descriptors do not pass through: straight to the host.
            return self.shared.upstream.clone();
        }
        self.directory.path().join("guests")
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn begin(&self) {
        self.shared.cutting.store(true, Ordering::SeqCst);
    }

    pub fn end(&self) {
        self.shared.cutting.store(false, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve<S: Socket>(self: &Arc<Self>, guest: S) {
        let index = self.connections.fetch_add(1, Ordering::SeqCst);
        let mut random = Random(
            self.seed
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(index * 77 + 1),
        );
        let Ok(host) = UnixStream::connect(&self.upstream) else {
            guest.cut();
            return;
        };
        // Bytes until the cut, either direction; the first connection stands
        // until the cutting begins.
        let scale = [128, 4096, 1 << 16, 1 << 20][random.below(4) as usize];
        let budget = Arc::new(AtomicI64::new(random.below(scale) as i64));
        for (mut from, mut to) in [
            (
                Pipe::Guest(guest.again()),
                Pipe::Host(host.try_clone().unwrap()),
            ),
            (
                Pipe::Host(host.try_clone().unwrap()),
                Pipe::Guest(guest.again()),
            ),
        ] {
            let (shared, budget) = (Arc::clone(self), Arc::clone(&budget));
            std::thread::spawn(move || shared.pump(&mut from, &mut to, &budget));
        }
    }

    fn pump<S: Socket>(&self, from: &mut Pipe<S>, to: &mut Pipe<S>, budget: &AtomicI64) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut pass = count;
            let mut over = false;
            if self.cutting.load(Ordering::SeqCst) {
                let left = budget.fetch_sub(count as i64, Ordering::SeqCst);
                if left < count as i64 {
                    pass = left.max(0) as usize;
                    over = true;
                    // Only one of the directions counts the cut.
                    if left >= 0 {
                        self.cuts.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
            if to.write_all(&buffer[..pass]).is_err() || over {
                break;
            }
        }
        from.cut();
        to.cut();
    }

    /// Cuts the sign of life of a guest of shared memory a little later.
    fn cut_later(self: &Arc<Self>, socket: UnixStream) {
        let index = self.connections.fetch_add(1, Ordering::SeqCst);
        let mut random = Random(self.seed.wrapping_add(index * 31 + 7));
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            while !shared.cutting.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            if shared.cutting.load(Ordering::SeqCst) {
                Socket::cut(&socket);
                shared.cuts.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

enum Pipe<S> {
    Guest(S),
    Host(UnixStream),
}

impl<S: Socket> Pipe<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Guest(socket) => socket.read(buffer),
            Self::Host(socket) => socket.read(buffer),
        }
    }
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Guest(socket) => socket.write_all(bytes),
            Self::Host(socket) => socket.write_all(bytes),
        }
    }
    fn cut(&self) {
        match self {
            Self::Guest(socket) => socket.cut(),
            Self::Host(socket) => Socket::cut(socket),
        }
    }
}
