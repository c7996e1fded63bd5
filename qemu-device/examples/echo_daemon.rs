//! A daemon for the VM test. It takes channels from `paragpu-qemu-device` and serves each
//! as the device number in its hello requests.
//!
//! usage: `echo_daemon SOCKET`

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use paragpu_communicator::{Error, Wait};
use paragpu_communicator_ring::pci::{HostChannel, attach_host};
use paragpu_communicator_ring::shm::Options;
use paragpu_protocol::codec::{Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN, REPLY};
use paragpu_protocol::handshake::{ATTACH, ATTACH_FDS, Attach, Hello, Refusal, VERSION};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Sends a welcome, then answers each frame with its own payload.
const ECHO: u32 = 0;
/// Exits at once.
const LEAVE: u32 = 1;
/// Sends a refusal over the socket, as a daemon without a free worker does.
const REFUSE: u32 = 2;
/// Sends nothing until the guest is gone.
const HOLD: u32 = 3;

fn main() {
    let path = std::env::args().nth(1).expect("usage: echo_daemon SOCKET");
    let listener = UnixListener::bind(path).expect("bind");
    for stream in listener.incoming() {
        let stream = stream.expect("accept");
        thread::spawn(move || serve(stream));
    }
}

fn receive(stream: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACH_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("recvmsg");
    bytes.truncate(got.bytes);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    (bytes, descriptors)
}

fn serve(stream: UnixStream) {
    let (bytes, mut descriptors) = receive(&stream);
    // Further descriptors are for copies to and from the VM's memory.
    descriptors.truncate(3);
    let (header, payload) = bytes.split_first_chunk::<HEADER_LEN>().expect("a frame");
    let header = FrameHeader::from_bytes(header).expect("a header");
    assert_eq!(header.kind, ATTACH);
    let attach: Attach<'_> = decode_all(payload).expect("an attach");
    let hello: Hello = decode_all(attach.hello.0).expect("a hello");
    let [memory, doorbell, interrupt] =
        <[OwnedFd; 3]>::try_from(descriptors).expect("three descriptors");
    let mode = hello.device;
    if mode == LEAVE {
        return;
    }
    if mode == REFUSE {
        let payload = encode_all(&Refusal {
            version: VERSION,
            reason: Text("the test daemon refuses"),
        });
        let header = FrameHeader::new(Control::Refusal.kind(), 0, 0, payload.len()).unwrap();
        let bytes = [&header.to_bytes()[..], &payload].concat();
        rustix::io::write(&stream, &bytes).expect("write");
        return;
    }
    let host = HostChannel {
        memory,
        doorbell,
        interrupt,
        liveness: Some(OwnedFd::from(stream)),
        channel: attach.channel,
        offset: attach.channel_offset,
        size: attach.channel_size,
    };
    let mut connection = match attach_host(host, Options::default()) {
        Ok(connection) => connection,
        // The test also fills channels with invalid data.
        Err(error) => {
            eprintln!("echo_daemon: channel {}: {error}", attach.channel);
            return;
        }
    };
    if mode == ECHO {
        let kind = Control::Welcome.kind();
        match connection.sender.send(kind, 0, Some(0), &[]) {
            // The test kills guests at any time.
            Ok(_) | Err(Error::Closed) => {}
            Err(error) => panic!("welcome: {error}"),
        }
    }
    loop {
        match connection.receiver.receive(Wait::Forever) {
            Ok(Some(frame)) if mode == ECHO => {
                let header = frame.header;
                let (kind, sequence) = (header.kind | REPLY, Some(header.sequence));
                let sent = connection
                    .sender
                    .send(kind, header.slot, sequence, &[frame.payload]);
                if sent.is_err() {
                    return;
                }
            }
            Ok(_) => assert!(mode == ECHO || mode == HOLD),
            Err(Error::Closed) => return,
            Err(error) => {
                eprintln!("echo_daemon: channel {}: {error}", attach.channel);
                return;
            }
        }
    }
}
