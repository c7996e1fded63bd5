//! The connection from a VM to its lease: a socket on the VM's host whose connections are
//! relayed to the lease's host, wherever that is. The VM needs neither network nor key.
//!
//! ```text
//!  VM                         VM's host                        GPU host
//!  program ── vsock ──▶ proxy: TLS under the lease's key ──────▶ paragpud
//! ```

use std::io::Error as IoError;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Credentials;
use paragpu_communicator_stream::handshake::{receive_exact_frame, send_frame};
use paragpu_communicator_stream::relay::relay;
use paragpu_communicator_stream::sockets;
use paragpu_control::terminal::plain;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{Refusal, VERSION};
use parking_lot::Mutex;

use crate::Error;

/// Maximum number of concurrent connections of a VM. Each has a thread.
const MAX_CONNECTIONS: usize = 128;
/// How long each address of the lease's host may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a program whose lease is over may take to send its hello.
const GREETING: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a program's hello.
const HELLO: usize = 4096;
/// Pause after a failed accept, such as for too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a VM's programs connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A unix socket, to which a hypervisor maps a port of the VM's vsock.
    Unix(PathBuf),
    /// A port of this host's vsock, only for the VM with this context identifier.
    Vsock {
        /// The context identifier of the VM.
        cid: u32,
        /// The port.
        port: u32,
    },
}

/// Where connections are relayed to.
#[derive(Debug)]
enum Route {
    /// To the host of the lease.
    Open {
        address: String,
        credentials: Credentials,
    },
    /// Nowhere: there is no lease yet, or it is over. The reason for programs.
    Closed(String),
}

#[derive(Debug)]
struct Shared {
    route: Route,
    /// The open connections to hosts, each with a number and an address.
    open: Vec<(u64, String, TcpStream)>,
    /// Number of connections so far.
    count: u64,
    /// Number of connections that threads are relaying.
    carried: usize,
}

/// A listening proxy. Dropping it closes the proxy and its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Mutex<Shared>>,
    socket: Option<PathBuf>,
}

impl Proxy {
    /// Listens. Connections are refused until there is a lease.
    ///
    /// # Errors
    /// [`Error::Proxy`].
    pub fn open(entry: &Entry) -> Result<Self, Error> {
        let failed = |error: paragpu_communicator::Error| Error::Proxy(Box::new(error));
        let shared = Arc::new(Mutex::new(Shared {
            route: Route::Closed("there is no lease yet".into()),
            open: Vec::new(),
            count: 0,
            carried: 0,
        }));
        let own = Arc::clone(&shared);
        let socket = match entry {
            Entry::Unix(path) => {
                // The hypervisor's group may connect, if it may search the directory.
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

    /// Relays new connections to the host of the lease. Ends connections to other hosts,
    /// whose programs then reconnect.
    pub fn route_to(&self, address: &str, credentials: Credentials) {
        let mut shared = self.shared.lock();
        shared.route = Route::Open {
            address: address.to_owned(),
            credentials,
        };
        for (_, other, connection) in &shared.open {
            if other != address {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }

    /// Relays new connections to another host, with the same certificate. Existing
    /// connections stay.
    pub(crate) fn turn_to(&self, there: &str) {
        if let Route::Open { address, .. } = &mut self.shared.lock().route {
            there.clone_into(address);
        }
    }

    /// Refuses new connections, because the lease is over. Connected programs are told by
    /// their host.
    pub(crate) fn close(&self, why: &str) {
        self.shared.lock().route = Route::Closed(format!("the lease is over: {why}"));
    }

    /// Ends all connections, because their host is lost or the proxy closes.
    pub(crate) fn cut(&self) {
        for (_, _, connection) in self.shared.lock().open.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close("its holder ended");
        self.cut();
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Accepts connections as long as this process lives.
fn serve(
    shared: Arc<Mutex<Shared>>,
    mut accept: impl FnMut() -> Result<Option<OwnedFd>, IoError> + Send + 'static,
) {
    std::thread::spawn(move || {
        loop {
            match accept() {
                Ok(Some(guest)) => take_in(&shared, guest),
                // The connection is from another VM.
                Ok(None) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
}

fn take_in(shared: &Arc<Mutex<Shared>>, guest: OwnedFd) {
    {
        let mut all = shared.lock();
        if all.carried >= MAX_CONNECTIONS {
            return;
        }
        all.carried += 1;
    }
    let own = Arc::clone(shared);
    let relay = move || {
        relay_connection(&own, &guest);
        own.lock().carried -= 1;
    };
    // The system may have no threads left; the program then reconnects.
    let thread = std::thread::Builder::new().name("carrier".into());
    if thread.spawn(relay).is_err() {
        shared.lock().carried -= 1;
    }
}

/// Relays one connection until it ends.
fn relay_connection(shared: &Mutex<Shared>, guest: &OwnedFd) {
    let route = match &shared.lock().route {
        Route::Open {
            address,
            credentials,
        } => Ok((address.clone(), credentials.clone())),
        Route::Closed(why) => Err(why.clone()),
    };
    let (address, credentials) = match route {
        Ok(route) => route,
        Err(why) => return refuse(guest, &why),
    };
    // On failure the connection is closed without a refusal, so that the program
    // reconnects: the host may be lost, and the lease soon be elsewhere.
    let name = host_name(&address);
    let Ok(tls) = credentials.client(name) else {
        return refuse(guest, &format!("{name} is not a valid host name"));
    };
    let tcp = match sockets::connect_tcp(&address, PATIENCE) {
        Ok(tcp) => tcp,
        Err(error) => {
            let address = plain(&address);
            eprintln!("paragpu: a program of the VM cannot reach {address}: {error}");
            return;
        }
    };
    let Ok(own) = tcp.try_clone() else { return };
    let number = {
        let mut all = shared.lock();
        all.count += 1;
        let number = all.count;
        all.open.push((number, address.clone(), own));
        number
    };
    if let Err(error) = relay(tls, &tcp, guest.as_fd(), &mut false) {
        let address = plain(&address);
        eprintln!("paragpu: a connection of the VM to {address} failed: {error}");
    }
    shared.lock().open.retain(|(other, _, _)| *other != number);
}

/// The host part of an address, as its certificate names it.
fn host_name(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// Tells a program why it gets no session.
fn refuse(guest: &OwnedFd, why: &str) {
    let deadline = Some(Instant::now() + GREETING);
    // Reads the hello first: closing a socket with unread data would discard the refusal.
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

    use paragpu_communicator_secure::KeyLifetime;
    use paragpu_communicator_secure::testing::credentials;
    use paragpu_protocol::codec::decode_all;

    use super::*;

    #[test]
    fn names_are_those_of_certificates() {
        let names = ["gpu1:7474", "10.0.0.2:1", "[fd00::1]:7474"].map(host_name);
        assert_eq!(names, ["gpu1", "10.0.0.2", "fd00::1"]);
    }

    #[test]
    fn programs_come_to_where_the_lease_is_and_hear_that_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy");
        let proxy = Proxy::open(&Entry::Unix(path.clone())).unwrap();
        let (guest, host) = credentials(KeyLifetime::Lasting);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        proxy.route_to(&address, guest.clone());

        let mut program = UnixStream::connect(&path).unwrap();
        program.write_all(b"hello").unwrap();
        let (far, _) = listener.accept().unwrap();
        let (near, mut end) = UnixStream::pair().unwrap();
        let tls = host.server().unwrap();
        // The other end is a guest for the relay between hosts, which must refuse it before
        // it passes on any bytes.
        let refused = relay(tls, &far, near.as_fd(), &mut false);
        assert!(refused.is_err(), "{refused:?}");
        drop((near, far));
        let mut nothing = Vec::new();
        end.read_to_end(&mut nothing).unwrap();
        program.read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());

        proxy.close("gpu1 is lost");
        let late = UnixStream::connect(&path).unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        send_frame(&late, Control::Hello.kind(), 0, 0, b"", deadline).unwrap();
        let (header, payload) = receive_exact_frame(&late, 4096, deadline).unwrap();
        assert_eq!(header.kind, Control::Refusal.kind());
        let refusal: Refusal<'_> = decode_all(&payload).unwrap();
        assert_eq!(refusal.reason.0, "the lease is over: gpu1 is lost");
        drop(proxy);
        assert!(!path.exists());
    }
}
