//! Whether a host that is silent is lost.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long a host may take to accept a connection.
const PROBE: Duration = Duration::from_millis(500);

/// The outcome of a connection to a host's daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A daemon accepts the connection.
    There,
    /// All addresses of the machine refuse the connection.
    Gone,
    /// There was no answer.
    Silent,
}

impl Presence {
    /// Tries each address of `address` once, until one accepts.
    pub(crate) fn of(address: &str) -> Self {
        let mut gone = false;
        for (at, address) in address.to_socket_addrs().into_iter().flatten().enumerate() {
            match TcpStream::connect_timeout(&address, PROBE) {
                Ok(_) => return Self::There,
                Err(error) => {
                    gone = (at == 0 || gone) && error.kind() == ErrorKind::ConnectionRefused;
                }
            }
        }
        if gone { Self::Gone } else { Self::Silent }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::OwnedFd;

    use rustix::net::{self, AddressFamily, SocketType};

    use super::*;

    /// A port on which nothing listens, nor can while this socket exists.
    fn unheard() -> (OwnedFd, SocketAddr) {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = net::getsockname(&socket).unwrap().try_into().unwrap();
        (socket, address)
    }

    #[test]
    fn a_host_is_gone_only_where_its_machine_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(Presence::of(&address), Presence::There);
        let (_socket, address) = unheard();
        assert_eq!(Presence::of(&address.to_string()), Presence::Gone);
        assert_eq!(Presence::of("no port"), Presence::Silent);
    }
}
