//! The way from a VM to its lease: a socket of the VM's host that leads to the lease's
//! host, wherever that is. The VM needs neither network nor key.
//!
//! ```text
//!  VM                         VM's host                        GPU host
//!  program ── vsock ──▶ door: TLS under the lease's key ──────▶ paragpud
//! ```

use std::io::Error as IoError;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Credentials;
use paragpu_communicator_stream::handshake::{receive_exact_frame, send_frame};
use paragpu_communicator_stream::relay::relay;
use paragpu_communicator_stream::sockets;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{Refusal, VERSION};

use crate::Error;

/// Most connections of a VM at once. Each has a thread.
const MOST: usize = 128;
/// How long each address of the lease's host may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a program whose lease is over may take to say hello.
const GREETING: Duration = Duration::from_secs(2);
/// Longest hello of a program.
const HELLO: usize = 4096;
/// Pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a VM's programs come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A unix socket, to which a hypervisor maps a port of the VM's vsock.
    Unix(PathBuf),
    /// A port of this host's vsock, for the VM with this context identifier alone.
    Vsock {
        /// The VM's.
        cid: u32,
        /// The port.
        port: u32,
    },
}

/// Where the lease is.
#[derive(Debug)]
enum Way {
    /// It is there.
    Open {
        address: String,
        credentials: Credentials,
    },
    /// It is not there yet, or over.
    Closed(String),
}

#[derive(Debug)]
struct Shared {
    way: Way,
    /// The connections to lease hosts, with their numbers and addresses.
    open: Vec<(u64, String, TcpStream)>,
    /// Connections so far.
    count: u64,
    /// Those that threads carry.
    carried: usize,
}

/// A listening door. It closes with this value.
#[derive(Debug)]
pub struct Door {
    shared: Arc<Mutex<Shared>>,
    socket: Option<PathBuf>,
}

impl Door {
    /// Listens; nobody comes in yet.
    ///
    /// # Errors
    /// [`Error::Door`].
    pub fn open(entry: &Entry) -> Result<Self, Error> {
        let failed = |error: paragpu_communicator::Error| Error::Door(Box::new(error));
        let shared = Arc::new(Mutex::new(Shared {
            way: Way::Closed("there is no lease yet".into()),
            open: Vec::new(),
            count: 0,
            carried: 0,
        }));
        let own = Arc::clone(&shared);
        let socket = match entry {
            Entry::Unix(path) => {
                // The hypervisor's group may connect, if the directory lets it.
                let listener = sockets::listen_unix(path, 0o660).map_err(failed)?;
                serve(own, move || Ok(Some(listener.accept()?.0.into())));
                Some(path.clone())
            }
            Entry::Vsock { cid, port } => {
                let (listener, cid) = (sockets::listen_vsock(*port).map_err(failed)?, *cid);
                serve(own, move || {
                    let (stream, peer) = listener.accept()?;
                    Ok((peer.cid() == cid).then(|| stream.into()))
                });
                None
            }
        };
        Ok(Self { shared, socket })
    }

    /// The lease is there. Connections to other hosts end: their programs come again.
    pub fn lead_to(&self, address: &str, credentials: Credentials) {
        let mut shared = lock(&self.shared);
        shared.way = Way::Open {
            address: address.to_owned(),
            credentials,
        };
        for (_, other, connection) in &shared.open {
            if other != address {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }

    /// Whoever comes from now on is led there, under the same certificate; connections
    /// stay.
    pub(crate) fn turn_to(&self, there: &str) {
        if let Way::Open { address, .. } = &mut lock(&self.shared).way {
            there.clone_into(address);
        }
    }

    /// The lease is over: programs that come are told why. The others hear it from their
    /// host.
    pub(crate) fn close(&self, why: &str) {
        lock(&self.shared).way = Way::Closed(format!("the lease is over: {why}"));
    }

    /// Ends the connections, whose host is lost or which nobody carries any more.
    pub(crate) fn cut(&self) {
        for (_, _, connection) in lock(&self.shared).open.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close("its holder ended");
        self.cut();
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a thread that failed left is as good as before.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes connections in as long as this process lives.
fn serve(
    shared: Arc<Mutex<Shared>>,
    mut accept: impl FnMut() -> Result<Option<OwnedFd>, IoError> + Send + 'static,
) {
    std::thread::spawn(move || {
        loop {
            match accept() {
                Ok(Some(guest)) => take_in(&shared, guest),
                // Another VM's.
                Ok(None) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
}

fn take_in(shared: &Arc<Mutex<Shared>>, guest: OwnedFd) {
    {
        let mut all = lock(shared);
        if all.carried >= MOST {
            return;
        }
        all.carried += 1;
    }
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        carry(&shared, &guest);
        lock(&shared).carried -= 1;
    });
}

/// Carries one connection to its end.
fn carry(shared: &Mutex<Shared>, guest: &OwnedFd) {
    let way = match &lock(shared).way {
        Way::Open {
            address,
            credentials,
        } => Ok((address.clone(), credentials.clone())),
        Way::Closed(why) => Err(why.clone()),
    };
    let (address, credentials) = match way {
        Ok(way) => way,
        Err(why) => return refuse(guest, &why),
    };
    // A program that finds its connection closed comes again: its host may be lost, and
    // the lease soon elsewhere.
    let name = machine(&address);
    let Ok(tls) = credentials.client(name) else {
        return refuse(guest, &format!("{name} is no host's name"));
    };
    let tcp = match sockets::connect_tcp(&address, PATIENCE) {
        Ok(tcp) => tcp,
        Err(error) => {
            eprintln!("paragpu: a program of the VM does not reach {address}: {error}");
            return;
        }
    };
    let Ok(own) = tcp.try_clone() else { return };
    let number = {
        let mut all = lock(shared);
        all.count += 1;
        let number = all.count;
        all.open.push((number, address.clone(), own));
        number
    };
    if let Err(error) = relay(tls, &tcp, guest.as_fd(), &mut false) {
        eprintln!("paragpu: a connection of the VM to {address} broke: {error}");
    }
    lock(shared).open.retain(|(other, _, _)| *other != number);
}

/// The machine of an address, as its certificate names it.
fn machine(address: &str) -> &str {
    let machine = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let inner = machine
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(machine)
}

/// Tells a program why it gets no session.
fn refuse(guest: &OwnedFd, why: &str) {
    let deadline = Some(Instant::now() + GREETING);
    // One that closes before it has read loses what it was sent.
    if receive_exact_frame(guest, HELLO, deadline).is_ok() {
        let refusal = encode_all(&Refusal {
            version: VERSION,
            reason: Text(why),
        });
        let _ = send_frame(guest, Control::Refusal.kind(), 0, 0, &refusal, deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use paragpu_communicator_secure::Wear;
    use paragpu_communicator_secure::testing::credentials;
    use paragpu_protocol::codec::decode_all;

    use super::*;

    #[test]
    fn names_are_those_of_certificates() {
        let names = ["gpu1:7474", "10.0.0.2:1", "[fd00::1]:7474"].map(machine);
        assert_eq!(names, ["gpu1", "10.0.0.2", "fd00::1"]);
    }

    #[test]
    fn programs_come_to_where_the_lease_is_and_hear_that_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("door");
        let door = Door::open(&Entry::Unix(path.clone())).unwrap();
        let (guest, host) = credentials(Wear::Lasting);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        door.lead_to(&address, guest.clone());

        let mut program = UnixStream::connect(&path).unwrap();
        program.write_all(b"hello").unwrap();
        let (far, _) = listener.accept().unwrap();
        let (near, mut end) = UnixStream::pair().unwrap();
        let tls = host.server().unwrap();
        // The door is a guest to this host: the relay of hosts refuses it, after bytes that
        // it must not pass on.
        let refused = relay(tls, &far, near.as_fd(), &mut false);
        assert!(refused.is_err(), "{refused:?}");
        drop((near, far));
        let mut nothing = Vec::new();
        end.read_to_end(&mut nothing).unwrap();
        program.read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());

        door.close("gpu1 is lost");
        let late = UnixStream::connect(&path).unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        send_frame(&late, Control::Hello.kind(), 0, 0, b"", deadline).unwrap();
        let (header, payload) = receive_exact_frame(&late, 4096, deadline).unwrap();
        assert_eq!(header.kind, Control::Refusal.kind());
        let refusal: Refusal<'_> = decode_all(&payload).unwrap();
        assert_eq!(refusal.reason.0, "the lease is over: gpu1 is lost");
        drop(door);
        assert!(!path.exists());
    }
}
