//! A TCP path between guest and host that can be lost. Neither end is told: all that arrives
//! is dropped, and nothing is acknowledged.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use paragpu_communicator::conformance::drop_packets;

use super::host::Host;

/// Passes connections on to the host.
pub struct Path {
    address: String,
    /// Both sockets of each connection.
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Path {
    pub fn start(host: &Host) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sockets = Arc::<Mutex<Vec<_>>>::default();
        let (to, open) = (host.address(), Arc::clone(&sockets));
        std::thread::spawn(move || {
            for guest in listener.incoming() {
                let (guest, host) = (guest.unwrap(), TcpStream::connect(&to).unwrap());
                for (from, to) in [(&guest, &host), (&host, &guest)] {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || pass_on(from, to));
                }
                open.lock().unwrap().extend([guest, host]);
            }
        });
        Self { address, sockets }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Loses the path of all connections. New ones take another.
    pub fn lose(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            drop_packets(&socket);
            // Closing it would tell its peer.
            std::mem::forget(socket);
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
