//! A TCP path between guest and host that can be lost. Neither end is told: all that arrives
//! is dropped, and nothing is acknowledged.
#![allow(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};

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

/// Makes the kernel drop all packets for a socket before it acknowledges them.
fn drop_packets(socket: &TcpStream) {
    let mut nothing = [libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: nothing.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the program and its one instruction, which live longer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            libc::socklen_t::try_from(size_of_val(&program)).unwrap(),
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
