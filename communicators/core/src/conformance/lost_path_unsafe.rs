//! Loses the path of a TCP connection without telling either end.
#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

/// Makes the kernel drop all packets for a socket before it acknowledges them.
pub fn drop_packets(socket: &TcpStream) {
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
