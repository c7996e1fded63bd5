//! Files that the two processes of `shm` pass to each other outside the frames.
//!
//! They pass over the unix socket by whose end each side detects the other's death. A
//! message consists of eight bytes, the file's number, and one descriptor. The call that
//! needs the file names the number. The socket is a stream, but the kernel never merges two
//! messages that carry descriptors, so one read returns one message.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use paragpu_communicator::Error;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const NUMBER: usize = size_of::<u64>();

/// [`pass_file`](paragpu_communicator::Sender::pass_file) over a socket.
pub(crate) fn pass(socket: BorrowedFd<'_>, number: u64, file: BorrowedFd<'_>) -> Result<(), Error> {
    let number = number.to_le_bytes();
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // The buffer has space for one descriptor.
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        return match sendmsg(socket, &[IoSlice::new(&number)], &mut ancillary, flags) {
            Ok(NUMBER) => Ok(()),
            Ok(sent) => Err(Error::protocol(format!(
                "the socket took {sent} bytes of a file's number"
            ))),
            Err(Errno::INTR) => continue,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(Error::Closed),
            Err(errno) => Err(Error::io("cannot pass a file", errno)),
        };
    }
}

/// [`take_file`](paragpu_communicator::Sender::take_file) from a socket.
pub(crate) fn take(socket: BorrowedFd<'_>, number: u64) -> Result<Option<OwnedFd>, Error> {
    loop {
        let mut bytes = [0; NUMBER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let read = match recvmsg(socket, slices, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(Error::io("cannot take a file", errno)),
        };
        let file = ancillary.drain().find_map(|message| match message {
            // The kernel closes descriptors that do not fit.
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = match (read, file) {
            (0, None) => return Err(Error::Closed),
            (NUMBER, Some(file)) => file,
            (read, file) => {
                return Err(Error::protocol(format!(
                    "a message of {read} bytes {} a file",
                    if file.is_some() { "with" } else { "without" }
                )));
            }
        };
        match u64::from_le_bytes(bytes).cmp(&number) {
            // A file whose call was never sent: dropped, and so closed.
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => return Ok(Some(file)),
            std::cmp::Ordering::Greater => {
                return Err(Error::protocol("a file was passed out of order"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{MemfdFlags, fstat, memfd_create};

    use super::*;

    fn file() -> File {
        memfd_create("passed", MemfdFlags::CLOEXEC).unwrap().into()
    }

    fn inode(file: impl std::os::fd::AsFd) -> u64 {
        fstat(file).unwrap().st_ino
    }

    #[test]
    fn a_file_is_taken_by_its_number() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(
            take(theirs.as_fd(), 1).unwrap().is_none(),
            "none was passed"
        );
        let files = [file(), file(), file()];
        for (number, file) in (1..).zip(&files) {
            pass(ours.as_fd(), number, file.as_fd()).unwrap();
        }
        let second = take(theirs.as_fd(), 2).unwrap().unwrap();
        assert_eq!(inode(&second), inode(&files[1]), "the first is closed");
        assert!(matches!(take(theirs.as_fd(), 2), Err(Error::Protocol(_))));
    }

    #[test]
    fn anything_else_is_an_error() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[0; NUMBER]).unwrap();
        assert!(matches!(take(theirs.as_fd(), 0), Err(Error::Protocol(_))));
        ours.write_all(&[0; 3]).unwrap();
        assert!(matches!(take(theirs.as_fd(), 0), Err(Error::Protocol(_))));
        drop(ours);
        assert!(matches!(take(theirs.as_fd(), 0), Err(Error::Closed)));
        assert!(matches!(
            pass(theirs.as_fd(), 0, file().as_fd()),
            Err(Error::Closed)
        ));
    }

    #[test]
    fn a_full_socket_does_not_block() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = file();
        let passed = (1..100_000)
            .take_while(|number| pass(ours.as_fd(), *number, file.as_fd()).is_ok())
            .count();
        assert!((1..99_999).contains(&passed), "{passed}");
        let last = passed as u64;
        assert!(take(theirs.as_fd(), last).unwrap().is_some());
        assert!(take(theirs.as_fd(), last + 1).unwrap().is_none());
    }
}
