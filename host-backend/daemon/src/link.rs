//! Links to other daemons, over which sessions move. Within a host a link is a socket from
//! worker to daemon. To another host, a thread relays between TLS and a socket.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::handshake::Guest;
use crate::listener::Peer;
use paragpu_communicator_secure::Credentials;
use paragpu_communicator_stream::relay::{Broken, relay};

/// Timeout for each address of a host.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of links to other hosts.
const MAX_LINKS: usize = 256;

/// The destination of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A daemon of this host, by its socket for guests.
    Socket(PathBuf),
    /// A daemon of another host.
    Host {
        /// Its name or address, which its certificate names.
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

/// The links to other hosts.
#[derive(Debug, Default)]
pub struct Links {
    count: Arc<AtomicUsize>,
}

impl Links {
    /// Opens a link to `place` without waiting. Failures of a link to another host
    /// are reported over the link, as a refusal.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(&self, place: &Destination, tls: Option<&Credentials>) -> Result<OwnedFd, String> {
        match place {
            Destination::Socket(path) => connect_unix(path)
                .map_err(|error| format!("no paragpud answers at {place}: {error}")),
            Destination::Host { name, port } => {
                let Some(tls) = tls else {
                    return Err(format!(
                        "sessions travel to {place} only over TLS: set migration.ca, \
                         migration.certificate and migration.key in this host's host.toml"
                    ));
                };
                let tls = tls.client(name)?;
                let (name, port, place) = (name.clone(), *port, place.to_string());
                self.spawn(move |far| {
                    let mut heard = false;
                    let carried = connect_tcp(&name, port)
                        .map_err(Broken::from)
                        .and_then(|tcp| relay(tls, &tcp, far.as_fd(), &mut heard));
                    if let Err(error) = carried {
                        tracing::info!(place, %error, "a link to another host is lost");
                        if !heard {
                            refuse(far, &why(&place, &error));
                        }
                    }
                })
            }
        }
    }

    /// Accepts a link that another host opened. It carries nothing before that host
    /// has shown a certificate.
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
        self.spawn(move |far| {
            if let Err(error) = relay(tls, &tcp, far.as_fd(), &mut false) {
                tracing::info!(%from, %error, "a link of another host is lost");
            }
        })
    }

    /// Starts a thread that runs `serve`. Returns the other end of its socket.
    fn spawn(&self, serve: impl FnOnce(UnixStream) + Send + 'static) -> Result<OwnedFd, String> {
        if self.count.load(Ordering::Relaxed) >= MAX_LINKS {
            return Err(format!(
                "this host already has {MAX_LINKS} links to other hosts: try again when one has ended"
            ));
        }
        let failed = |error: std::io::Error| format!("no link can be made: {error}");
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let count = Arc::clone(&self.count);
        count.fetch_add(1, Ordering::Relaxed);
        let spawned = std::thread::Builder::new()
            .name("link".into())
            .spawn(move || {
                serve(far);
                count.fetch_sub(1, Ordering::Relaxed);
            });
        match spawned {
            Ok(_) => Ok(near.into()),
            Err(error) => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                Err(failed(error))
            }
        }
    }
}

/// Tells the worker at the other end why there is no link.
fn refuse(far: UnixStream, reason: &str) {
    let Ok(socket) = far.try_clone() else { return };
    let peer = Peer::Local { uid: 0, pid: 0 };
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

/// Connects without waiting: a daemon with a full backlog counts as none.
fn connect_unix(path: &std::path::Path) -> std::io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn connect_tcp(name: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in (name, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

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
