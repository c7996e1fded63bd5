//! What the source does at moments that a destination sees only by chance.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator_stream as stream;
use paragpu_communicator_stream::handshake::{receive_exact_frame, send_frame};
use paragpu_protocol::codec::{Bytes, Text, decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::ModuleHandle;
use paragpu_protocol::handshake::{ARRIVE, Move};
use paragpu_protocol::table::{Call, ModuleLoad};

use crate::session::Session;
use crate::transfer::orders::Departure;
use crate::transfer::state::{ImagePart, Kind, Scanner, Writer};
use crate::transfer::tests::{PTX, alone, apply, shareable, store};

/// Loads a module of `image`; its hash.
fn load(session: &mut Session, module: u64, image: &[u8]) -> [u8; 32] {
    let hash = store(session, image);
    let call = Call::ModuleLoad(ModuleLoad {
        module: ModuleHandle(module),
        hash,
        options: Bytes(&[]),
    });
    apply(session, &call).unwrap();
    hash
}

/// Images and bytes of them up to a record of another kind, which is returned
/// as well.
fn images(scanner: &mut Scanner<&UnixStream>) -> (Vec<([u8; 32], usize)>, Kind) {
    let mut images = Vec::new();
    loop {
        let (kind, payload) = scanner.record().unwrap();
        if kind != Kind::Image {
            return (images, kind);
        }
        let part: ImagePart<'_> = decode_all(payload).unwrap();
        images.push((part.hash, part.data.0.len()));
    }
}

#[test]
fn an_image_of_a_module_that_is_loaded_meanwhile_is_offered_too() {
    let _alone = alone();
    let mut session = shareable();
    let first = load(&mut session, 1, PTX);
    let (link, destination) = UnixStream::pair().unwrap();
    let (connection, _guest) = UnixStream::pair().unwrap();
    let mut receiver = stream::over(connection, stream::Options::default())
        .unwrap()
        .receiver;
    session.begin_migration(Departure {
        link: link.into(),
        local: true,
        wanted: 0,
        follows: String::new(),
        gates: None,
        precopy: true,
        hand_over: false,
    });
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    let (arrive, _) = receive_exact_frame(&destination, 4096, deadline).unwrap();
    assert_eq!(arrive.kind, ARRIVE);
    let home = encode_all(&Move {
        communicator: Text(""),
        address: Text(""),
    });
    let welcome = Control::Welcome.kind();
    send_frame(&destination, welcome, 0, 0, &home, deadline).unwrap();
    session.go_on_moving(receiver.as_mut()).unwrap();
    let mut scanner = Scanner::new(&destination);
    assert_eq!(scanner.record().unwrap().0, Kind::Head);
    assert_eq!(images(&mut scanner), (vec![(first, 0)], Kind::ImageNames));

    // The destination has the first one, and was not asked about this.
    let other = [PTX, b"// another one\n"].concat();
    let second = load(&mut session, 2, &other);
    let mut writer = Writer::new(&destination);
    writer.put(Kind::Missing, &[]).unwrap();
    writer.put(Kind::Missing, &[&second]).unwrap();
    writer.flush().unwrap();
    session.go_on_moving(receiver.as_mut()).unwrap();
    let (mut asked, kind) = images(&mut scanner);
    asked.sort_unstable();
    let mut both = [(first, 0), (second, 0)];
    both.sort_unstable();
    assert_eq!(
        (asked.as_slice(), kind),
        (both.as_slice(), Kind::ImageNames)
    );
    let sent = vec![(second, other.len())];
    assert_eq!(images(&mut scanner), (sent, Kind::Objects));
}
