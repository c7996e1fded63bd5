//! Files that one side passes to the other.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use super::{Factory, expect_frame};
use crate::{Connection, Error, Sender};

/// The read end of a pipe that contains a number.
fn file(number: u8) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[number]).unwrap();
    reader.into()
}

/// The number in a file.
fn number_in(file: OwnedFd) -> u8 {
    let mut number = [0];
    File::from(file).read_exact(&mut number).unwrap();
    number[0]
}

/// Files are taken by number, in increasing order, or the communicator refuses to pass
/// files. Frames are not affected.
pub fn files_are_taken_by_their_number(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect();
    passes(&*guest.sender, &*host.sender);
    passes(&*host.sender, &*guest.sender);
    exchange(&guest, &mut host);
    exchange(&host, &mut guest);
}

fn passes(from: &dyn Sender, to: &dyn Sender) {
    assert!(to.take_file(1).unwrap().is_none(), "none was passed");
    match from.pass_file(1, file(1).as_fd()) {
        Ok(()) => {}
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::Unsupported => {
            assert!(to.take_file(1).unwrap().is_none());
            return;
        }
        Err(error) => panic!("{error}"),
    }
    from.pass_file(2, file(2).as_fd()).unwrap();
    from.pass_file(5, file(5).as_fd()).unwrap();
    assert_eq!(number_in(to.take_file(1).unwrap().unwrap()), 1);
    let fifth = to.take_file(5).unwrap().unwrap();
    assert_eq!(number_in(fifth), 5, "the second is closed");
    assert!(to.take_file(6).unwrap().is_none());
}

fn exchange(from: &Connection, to: &mut Connection) {
    from.sender.send(7, 0, None, &[b"frame"]).unwrap();
    from.sender.flush().unwrap();
    let (header, payload) = expect_frame(&mut *to.receiver);
    assert_eq!((header.kind, payload.as_slice()), (7, b"frame".as_slice()));
}
