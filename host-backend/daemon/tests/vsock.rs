//! Guests whose vsock connections arrive at a unix socket of their VM, and the host's own
//! vsock, if it has one.

mod common;

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use common::{Daemon, frame, read_frame, refusal, send_hello};
use paragpu_protocol::codec::{Bytes, Text, encode_all};
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::{ATTACH, Attach, Hello, MAGIC, Transport, VERSION};
use vsock::{VMADDR_CID_ANY, VsockListener};

/// A daemon with the sockets of the VMs alpha and beta.
fn daemon(extra: &[&str]) -> Daemon {
    let directory = tempfile::tempdir().unwrap();
    let alpha = directory.path().join("alpha.vsock_7014");
    let beta = directory.path().join("v.sock_7014");
    let arguments = [
        "--vsock-unix".to_owned(),
        alpha.display().to_string(),
        "--vsock-unix".to_owned(),
        format!("beta={}", beta.display()),
    ];
    let arguments: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .chain(extra.iter().copied())
        .collect();
    Daemon::start_in(directory, &arguments)
}

#[test]
fn a_guest_is_listed_as_its_vm() {
    let daemon = daemon(&["--set", "limits.per_vm=1"]);
    let hello = Hello::new(Transport::Stream, 0, 7);
    let begin = |socket: &str| {
        let stream = UnixStream::connect(daemon.path(socket)).unwrap();
        send_hello(&stream, &hello);
        stream
    };
    let alpha = begin("alpha.vsock_7014");
    assert_eq!(read_frame(&alpha).unwrap().0, Frame::Welcome.kind());
    let beta = begin("v.sock_7014");
    assert_eq!(read_frame(&beta).unwrap().0, Frame::Welcome.kind());
    let mut listed: Vec<_> = daemon
        .sessions()
        .into_iter()
        .map(|session| (session.vm, session.communicator))
        .collect();
    listed.sort();
    let vsock = |vm: &str| (vm.to_owned(), "vsock".to_owned());
    assert_eq!(listed, [vsock("alpha"), vsock("beta")]);
    assert!(refusal(&begin("alpha.vsock_7014")).contains("alpha already has 1 session"));
    drop((alpha, beta));
    daemon.until_quiet(1);
}

#[test]
fn a_vm_is_offered_neither_shared_memory_nor_channels() {
    let daemon = daemon(&[]);
    let connect = || UnixStream::connect(daemon.path("alpha.vsock_7014")).unwrap();
    let stream = connect();
    send_hello(&stream, &Hello::new(Transport::Shm, 0, 7));
    assert!(refusal(&stream).contains("unix socket"));
    let attach = encode_all(&Attach {
        magic: MAGIC,
        version: VERSION,
        vm: Text("beta"),
        channel: 0,
        channel_offset: 0,
        channel_size: 0,
        list_offset: 0,
        hello: Bytes(&encode_all(&Hello::new(Transport::Pci, 0, 7))),
    });
    let mut stream = connect();
    stream.write_all(&frame(ATTACH, &attach)).unwrap();
    assert!(refusal(&stream).contains("socket for them"));
    assert!(daemon.sessions().is_empty());
}

#[test]
fn a_vm_whose_socket_is_taken_keeps_no_other_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("file.vsock_1"), "").unwrap();
    // A process that accepts nothing, with as many connections as may wait for it.
    let taken = UnixListener::bind(path("full.vsock_1")).unwrap();
    rustix::net::listen(&taken, 0).unwrap();
    let _waits = UnixStream::connect(path("full.vsock_1")).unwrap();
    let arguments = ["file", "full", "free"].map(|vm| {
        let path = path(&format!("{vm}.vsock_1"));
        format!("--vsock-unix={}", path.display())
    });
    let daemon = Daemon::start(&arguments.each_ref().map(String::as_str));
    let guest = UnixStream::connect(path("free.vsock_1")).unwrap();
    send_hello(&guest, &Hello::new(Transport::Stream, 0, 7));
    assert_eq!(read_frame(&guest).unwrap().0, Frame::Welcome.kind());
    let log = daemon.log();
    assert!(log.contains("exists and is not a socket"), "{log}");
    assert_eq!(log.matches("cannot listen on a VM's socket").count(), 2);
}

#[test]
fn a_reload_follows_the_sockets_of_vms() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("host.toml");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (alpha, beta) = (path("alpha.vsock_1"), path("beta.vsock_1"));
    let write = |unix: &str, sessions: u32| {
        std::fs::write(
            &file,
            format!("[vsock]\nunix = {unix}\n[limits]\nsessions = {sessions}\n"),
        )
        .unwrap();
    };
    write(&format!("['{alpha}']"), 10);
    let config = file.to_str().unwrap().to_owned();
    let daemon = Daemon::start(&["--config", &config]);
    let guest = UnixStream::connect(&alpha).unwrap();
    send_hello(&guest, &Hello::new(Transport::Stream, 0, 7));
    assert_eq!(read_frame(&guest).unwrap().0, Frame::Welcome.kind());

    write(&format!("['{beta}']"), 11);
    daemon.signal(rustix::process::Signal::HUP);
    daemon.until("reloaded", |stats| stats.session_limit == 11);
    assert!(!std::fs::exists(&alpha).unwrap());
    UnixStream::connect(&beta).unwrap();
    assert_eq!(daemon.sessions()[0].vm, "alpha", "the session continues");

    // A socket that cannot be listened on does not affect the others.
    std::fs::write(path("file"), "").unwrap();
    write(&format!("['{}', '{alpha}', '{beta}']", path("file")), 12);
    daemon.signal(rustix::process::Signal::HUP);
    daemon.until("reloaded", |stats| stats.session_limit == 12);
    UnixStream::connect(&alpha).unwrap();
    UnixStream::connect(&beta).unwrap();
    assert!(daemon.log().contains("exists and is not a socket"));
}

/// The error of a daemon that cannot start.
fn failure(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_paragpud"))
        .args(["--device", "software", "--config", "/dev/null"])
        .arg("--socket")
        .arg(directory.path().join("guests"))
        .arg("--control")
        .arg(directory.path().join("control"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn two_vms_of_one_name_are_refused() {
    let said = failure(&["--vsock-unix", "/a/v.sock_1", "--vsock-unix", "/b/v.sock_1"]);
    assert!(said.contains("names two VMs \"v\""), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_port_in_use_is_refused() {
    // The kernel chooses a port.
    let Ok(taken) = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, u32::MAX) else {
        let said = failure(&["--vsock", "7014"]);
        assert!(said.contains("this kernel has no vsock"), "{said}");
        return;
    };
    let port = taken.local_addr().unwrap().port();
    let said = failure(&["--vsock", &port.to_string()]);
    assert!(
        said.contains(&format!(
            "cannot listen at vsock port {port}: Address already in use"
        )),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
