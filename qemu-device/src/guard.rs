//! The guard of a device: a second process, which tells the guest when the device process has
//! ended, even by SIGKILL.
//!
//! A hypervisor keeps the window mapped, so without the guard everything looks as before to the
//! guest, and programs wait for an answer that nobody gives. The guard holds the window and the
//! interrupt of the current device, and sleeps until the socket to the device process closes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::Signal;

use crate::Error;
use crate::eventfd::EventFd;
use crate::layout::Layout;
use crate::window::Window;

/// The first argument of a guard's process.
pub const ARGUMENT: &str = "--guard";

/// The device process's end.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
}

impl Guard {
    /// Starts the guard of this process. `None` if that fails, which is logged: the device works
    /// all the same. The VM's name is for lists of processes.
    #[must_use]
    pub fn start(vm: &str) -> Option<Self> {
        let started = || {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let (socket, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
            Command::new(std::env::current_exe()?)
                .args([ARGUMENT, vm])
                .stdin(Stdio::from(other))
                .stdout(Stdio::null())
                .spawn()?;
            std::io::Result::Ok(Self { socket })
        };
        let warn = |error: &std::io::Error| {
            tracing::warn!(%error, "no guard: should this process be killed, the VM's programs wait");
        };
        started().inspect_err(warn).ok()
    }

    /// Lets it guard this device instead of an earlier one, or this one with another interrupt,
    /// which must reach the guest without this process.
    pub fn hold(&self, window: BorrowedFd<'_>, layout: Layout, interrupt: &EventFd) {
        let Layout {
            window_size,
            channel_count,
            channel_offset,
            channel_size,
            list_offset,
        } = layout;
        let words = [
            window_size,
            channel_count.into(),
            channel_offset,
            channel_size,
            list_offset,
        ];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.send(&bytes, &[window, interrupt.as_fd()]);
    }

    /// Lets it guard nothing: the hypervisor has disconnected.
    pub fn drop_device(&self) {
        self.send(&[0], &[]);
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
            tracing::warn!(%error, "the guard of the device is gone");
        }
    }
}

/// The guard's process. Its standard input is the socket to the device process.
///
/// # Errors
/// [`Error::System`], [`Error::Signals`].
pub fn run() -> Result<(), Error> {
    // They are for the device process. The guard ends right after that.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal.as_raw(), ignored)
            .map_err(|source| Error::Signals { source })?;
    }
    let mut device = None;
    loop {
        match receive() {
            Ok(Some(next)) => device = next,
            Ok(None) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("receive from the device process")(errno)),
        }
    }
    match device {
        Some((window, interrupt)) => window.leave(&interrupt),
        None => Ok(()),
    }
}

/// A device that the guard holds, if there is one.
type Held = Option<(Window, EventFd)>;

/// What the guard holds from now on; `None` once the device process has ended.
fn receive() -> Result<Option<Held>, Errno> {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let stdin = std::io::stdin();
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let length = recvmsg(&stdin, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if length == 0 {
        return Ok(None);
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.flatten();
    let (Some(window), Some(interrupt)) = (descriptors.next(), descriptors.next()) else {
        return Ok(Some(None));
    };
    let words = bytes.as_chunks::<8>().0.iter();
    let mut words = words.map(|word| u64::from_le_bytes(*word));
    let mut word = || words.next().ok_or(Errno::INVAL);
    let layout = Layout {
        window_size: word()?,
        channel_count: u16::try_from(word()?).map_err(|_| Errno::INVAL)?,
        channel_offset: word()?,
        channel_size: word()?,
        list_offset: word()?,
    };
    let interrupt = EventFd::adopt(interrupt)?;
    Ok(Some(Some((Window::received(window, layout), interrupt))))
}
