//! Links to other daemons, over which sessions move. Within a host a link is a socket from
//! worker to daemon. To another host, a thread relays between TLS and a socket.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::handshake::Guest;
use crate::listener::Peer;
use crate::reception::PeerIdentity;
use crate::slots::Slots;
use paragpu_communicator_secure::Credentials;
use paragpu_communicator_stream::handshake::send_frame;
use paragpu_communicator_stream::relay::{Broken, relay, relay_known};
use paragpu_communicator_stream::sockets::{connect_any, connect_at_once};
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::handshake::{ARRIVE, Arrive};
use parking_lot::Mutex;

/// Timeout for each address of a host.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of links to other hosts.
const MAX_LINKS: usize = 256;
/// Maximum number of links that have shown no certificate yet.
const STRANGERS: usize = 64;

/// The destination of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A daemon of this host, by its socket for guests.
    Socket(PathBuf),
    /// A daemon of another host.
    Host {
        /// Its name or address, as in its certificate.
        name: String,
        /// The port of its `migration.listen`.
        port: u16,
    },
}

impl Destination {
    /// Reads `unix:///PATH` or `tcp://HOST:PORT`.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(url: &str) -> Result<Self, String> {
        let advice = || {
            format!(
                "{url} is not a destination: use unix:///PATH, the guests' socket of another \
                 paragpud of this host, or tcp://HOST:PORT, another host's migration.listen"
            )
        };
        if let Some(path) = url.strip_prefix("unix://") {
            return path
                .starts_with('/')
                .then(|| Self::Socket(path.into()))
                .ok_or_else(advice);
        }
        let (name, port) = url
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'))
            .ok_or_else(advice)?;
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        let name = bare.unwrap_or(name);
        match port.parse() {
            Ok(port @ 1..) if !name.is_empty() => Ok(Self::Host {
                name: name.to_owned(),
                port,
            }),
            _ => Err(advice()),
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "unix://{}", path.display()),
            Self::Host { name, port } if name.contains(':') => {
                write!(formatter, "tcp://[{name}]:{port}")
            }
            Self::Host { name, port } => write!(formatter, "tcp://{name}:{port}"),
        }
    }
}

/// Links that have shown no certificate yet: any machine may open them.
#[derive(Debug, Default)]
struct Unauthenticated {
    slots: Slots<PeerIdentity>,
    links: BTreeMap<u64, TcpStream>,
    next: u64,
}

impl Unauthenticated {
    /// Adds a link from this address. If there are too many, the machine with the most
    /// loses its oldest.
    fn enter(&mut self, from: SocketAddr, tcp: TcpStream) -> u64 {
        let key = self.next;
        self.next += 1;
        let source = PeerIdentity::of(&Peer::Remote(from));
        self.links.insert(key, tcp);
        if let Some(loser) = self.slots.enter(source, key, STRANGERS)
            && let Some(tcp) = self.links.remove(&loser)
        {
            // Its thread ends.
            let _ = tcp.shutdown(Shutdown::Both);
        }
        key
    }

    fn leave(&mut self, key: u64) {
        self.links.remove(&key);
        self.slots.leave(key);
    }
}

/// One of the links that are counted, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The links to other hosts.
#[derive(Debug, Default)]
pub struct Links {
    count: Arc<AtomicUsize>,
    /// Threads of links that have shown no certificate.
    unknown: Arc<AtomicUsize>,
    unauthenticated: Arc<Mutex<Unauthenticated>>,
}

impl Links {
    /// Opens a link to `place` without waiting. Failures of a link to another host
    /// are reported over the link, as a refusal.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(&self, place: &Destination, tls: Option<&Credentials>) -> Result<OwnedFd, String> {
        match place {
            // A daemon with a full backlog counts as missing.
            Destination::Socket(path) => connect_at_once(path)
                .map_err(|error| format!("no paragpud answers at {place}: {error}")),
            Destination::Host { name, port } => {
                let Some(tls) = tls else {
                    return Err(format!(
                        "migration to {place} requires TLS: set migration.ca, migration.certificate \
                         and migration.key in this host's host.toml"
                    ));
                };
                let tls = tls.client(name)?;
                let (name, port, place) = (name.clone(), *port, place.to_string());
                let count = Counted::new(&self.count);
                self.spawn(count, MAX_LINKS, move |far, _count| {
                    let mut received = false;
                    let carried = (name.as_str(), port)
                        .to_socket_addrs()
                        .and_then(|addresses| connect_any(addresses, PATIENCE))
                        .map_err(Broken::from)
                        .and_then(|tcp| relay(tls, &tcp, far.as_fd(), &mut received));
                    if let Err(error) = carried {
                        tracing::info!(place, %error, "a link to another host is lost");
                        if !received {
                            refuse(far, &why(&place, &error));
                        }
                    }
                })
            }
        }
    }

    /// Accepts a link that another host opened. It carries nothing before that host has
    /// presented a certificate.
    ///
    /// # Errors
    /// One sentence.
    pub fn accept(
        &self,
        tcp: OwnedFd,
        from: SocketAddr,
        tls: &Credentials,
    ) -> Result<OwnedFd, String> {
        let tls = tls.server()?;
        let tcp = TcpStream::from(tcp);
        let own = tcp.try_clone();
        let own = own.map_err(|error| format!("cannot open a link: {error}"))?;
        let key = self.unauthenticated.lock().enter(from, own);
        let (unauthenticated, known) = (Arc::clone(&self.unauthenticated), Arc::clone(&self.count));
        let count = Counted::new(&self.unknown);
        let spawned = self.spawn(count, 2 * STRANGERS, move |far, count| {
            let mut count = count;
            let mut introduced = || {
                unauthenticated.lock().leave(key);
                count = Counted::new(&known);
            };
            let relayed = relay_known(tls, &tcp, far.as_fd(), &mut false, &mut introduced);
            if let Err(error) = relayed {
                tracing::info!(%from, %error, "a link of another host is lost");
            }
            unauthenticated.lock().leave(key);
        });
        if spawned.is_err() {
            self.unauthenticated.lock().leave(key);
        }
        spawned
    }

    /// Starts a thread that runs `serve`, if no more than `most` are counted with it.
    /// Returns the other end of its socket.
    fn spawn(
        &self,
        count: Counted,
        most: usize,
        serve: impl FnOnce(UnixStream, Counted) + Send + 'static,
    ) -> Result<OwnedFd, String> {
        if count.0.load(Ordering::Relaxed) > most {
            return Err(format!(
                "this host has {most} links to other hosts already: try again when one is over"
            ));
        }
        let failed = |error: std::io::Error| format!("cannot open a link: {error}");
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let thread = std::thread::Builder::new().name("link".into());
        let spawned = thread.spawn(move || serve(far, count));
        spawned.map(|_| near.into()).map_err(failed)
    }
}

/// Announces a session to the destination's daemon, before its worker gets the link: that
/// daemon believes what the first frame says about the session. Does not wait: an empty
/// socket has room for it.
///
/// # Errors
/// One sentence.
pub fn announce(link: &OwnedFd, arrive: &Arrive<'_>, place: &Destination) -> Result<(), String> {
    let payload = encode_all(arrive);
    send_frame(link, ARRIVE, 0, 0, &payload, Some(Instant::now()))
        .map_err(|error| format!("no paragpud answers at {place}: {error}"))
}

/// Reports to the worker at the other end why there is no link.
fn refuse(far: UnixStream, reason: &str) {
    let Ok(socket) = far.try_clone() else { return };
    let peer = Peer::Local {
        uid: 0,
        owner: 0,
        pid: 0,
    };
    Guest::new(socket.into(), peer).refuse(reason);
    // Closing a socket with unread bytes discards sent bytes.
    let _ = far.set_nonblocking(false);
    let _ = far.set_read_timeout(Some(PATIENCE));
    let _ = std::io::copy(&mut &far, &mut std::io::sink());
}

fn why(place: &str, error: &Broken) -> String {
    match error {
        Broken::Tls(error) => format!(
            "this host and the one at {place} do not trust each other ({error}): both need a \
             certificate of an authority in the other's migration.ca, and the destination's must \
             name it as --to does"
        ),
        other => format!(
            "no paragpud answers at {place} ({other}): is it running there with migration.listen \
             set, and no firewall between?"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use paragpu_protocol::codec::{Text, decode_all};
    use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
    use paragpu_protocol::handshake::{ANY_DEVICE, MAGIC, VERSION};

    use super::*;

    #[test]
    fn a_session_is_announced_before_its_worker_gets_the_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guests");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let place = Destination::Socket(path);
        let link = Links::default().open(&place, None).unwrap();
        let arrive = Arrive {
            magic: MAGIC,
            version: VERSION,
            vm: Text("alpha"),
            device: 1,
            token: [7; 16],
            guest_pid: 5,
            communicator: Text("tcp"),
            follows: Text(""),
            wanted: ANY_DEVICE,
            expires: 9,
        };
        announce(&link, &arrive, &place).unwrap();
        let mut worker = UnixStream::from(link);
        worker.write_all(b"a worker's own frame").unwrap();
        drop(worker);
        let mut bytes = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut bytes)
            .unwrap();
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
        let header = FrameHeader::from_bytes(header).unwrap();
        assert_eq!(header.kind, ARRIVE);
        let (announced, rest) = rest.split_at(header.payload_len());
        assert_eq!(decode_all::<Arrive<'_>>(announced).unwrap(), arrive);
        assert_eq!(rest, b"a worker's own frame");
    }

    #[test]
    fn places_are_urls() {
        let host = |name: &str, port| Destination::Host {
            name: name.into(),
            port,
        };
        for (url, place) in [
            (
                "unix:///run/p.sock",
                Destination::Socket("/run/p.sock".into()),
            ),
            ("tcp://gpu2.example:7475", host("gpu2.example", 7475)),
            ("tcp://[::1]:1", host("::1", 1)),
            ("tcp://10.0.0.2:65535", host("10.0.0.2", 65535)),
        ] {
            assert_eq!(Destination::parse(url).unwrap(), place);
            assert_eq!(place.to_string(), url);
        }
        for bad in [
            "",
            "/run/p.sock",
            "unix://p",
            "tcp://:1",
            "tcp://a",
            "tcp://a:0",
            "ssh://a:1",
        ] {
            assert!(Destination::parse(bad).is_err(), "{bad}");
        }
    }
}
