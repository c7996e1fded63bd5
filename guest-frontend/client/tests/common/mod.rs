//! The worker with the software GPU, and a session with it. A relay between
//! them counts the calls, and breaks the connection where a test asks for it.

#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_client::Session;
use paragpu_client::sys::memory::HostRows;
use paragpu_communicator_stream::handshake::{receive_exact_frame, send_frame};
use paragpu_communicator_stream::{Options, over};
use paragpu_control::account::{Account, Book, Share};
use paragpu_control::socket::{Control, Inbox};
use paragpu_control::spawn::{Software, Spawn};
use paragpu_control::worker::{FromWorker, Guest, Terms, ToWorker};
use paragpu_protocol::call::info;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::frame::{Control as Frame, FrameHeader, MAX_PAYLOAD};
use paragpu_protocol::handshake::{Transport, Welcome};
use parking_lot::Mutex;

/// `kernel` adds 1 to the byte at 2000 of its parameter and writes it behind
/// that byte; `write` writes 1, 2 and 3. Neither does anything at address 0.
pub const PTX: &[u8] = b"
.version 8.0
.target sm_75
.address_size 64
.visible .global .align 8 .b8 variable[64];
.visible .entry kernel(.param .u64 address, .param .u32 unused)
.maxntid 512, 1, 1
{
    .reg .b64 %a;
    .reg .b32 %v;
    .reg .pred %p;
    ld.param.u64 %a, [address];
    setp.eq.u64 %p, %a, 0;
    @%p bra DONE;
    ld.global.u8 %v, [%a+2000];
    add.u32 %v, %v, 1;
    st.global.u8 [%a+2001], %v;
DONE:
    ret;
}
.visible .entry write(.param .u64 address, .param .u32 unused)
{
    .reg .b64 %a;
    .reg .b32 %v;
    ld.param.u64 %a, [address];
    mov.u32 %v, 1;
    st.global.u8 [%a], %v;
    mov.u32 %v, 2;
    st.global.u8 [%a+1], %v;
    mov.u32 %v, 3;
    st.global.u8 [%a+2], %v;
    ret;
}
";

/// The parameters of both kernels.
pub fn parameters(address: u64) -> Vec<u8> {
    [address.to_le_bytes().as_slice(), &[0; 4]].concat()
}

pub fn read_back(session: &Session, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    // SAFETY: all of `bytes`; the copy is waited for.
    let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), length) };
    session
        .copies()
        .from_device(place, address, session.legacy(), true)
        .unwrap();
    bytes
}

/// What the relay saw, and what it breaks.
#[derive(Default)]
struct Relay {
    calls: Mutex<HashMap<&'static str, u64>>,
    synchronous: AtomicU64,
    /// Position of the call at which the connection ends; 0 for never.
    ends_at: AtomicU64,
    /// A byte more than was asked for comes with all data.
    overlong: AtomicBool,
}

impl Relay {
    /// Counts a guest's frame; whether it may pass.
    fn admits(&self, header: &FrameHeader) -> bool {
        let Some(call) = info(header.kind) else {
            return true;
        };
        let end = self.ends_at.load(Ordering::Acquire);
        if end != 0 && header.sequence >= end {
            return false;
        }
        *self.calls.lock().entry(call.name).or_default() += 1;
        if header.slot != 0 {
            self.synchronous.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Does to a frame of the host what the test asks for.
    fn distort(&self, header: &FrameHeader, payload: &mut Vec<u8>) {
        if header.kind == Frame::Data.kind() && self.overlong.load(Ordering::Acquire) {
            payload.push(0xff);
        }
    }
}

/// Carries the frames of one direction until it ends or one may not pass; then
/// both directions end.
fn forward(
    from: &UnixStream,
    to: &UnixStream,
    mut pass: impl FnMut(&FrameHeader, &mut Vec<u8>) -> bool,
) {
    while let Ok((header, mut payload)) = receive_exact_frame(from, MAX_PAYLOAD, None) {
        if !pass(&header, &mut payload) {
            break;
        }
        let FrameHeader {
            kind,
            slot,
            sequence,
            ..
        } = header;
        if send_frame(to, kind, slot, sequence, &payload, None).is_err() {
            break;
        }
    }
    // Either may be closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

pub struct Worker {
    relay: Arc<Relay>,
    process: Child,
    _control: Control,
}

/// Where cargo puts the worker's program.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("paragpu-worker")
}

impl Worker {
    /// A worker and a session with it, on device `ordinal`: one for each test
    /// of a process, because a session's addresses are fixed. `None`, said
    /// aloud, where the worker is not built.
    pub fn start(ordinal: u32) -> Option<(Self, Arc<Session>)> {
        Self::start_with(ordinal, 0)
    }

    /// The same of a session whose VM may have so much of the host's memory; 0 for as
    /// much as VMs have.
    pub fn start_with(ordinal: u32, host_memory: u64) -> Option<(Self, Arc<Session>)> {
        let program = program();
        if !program.exists() {
            paragpu_corpora::skip(&format!("{} is not built", program.display()));
            return None;
        }
        let spawn = Spawn {
            program,
            device: "software".into(),
            index: 0,
            ordinal,
            image_cache: None,
            image_cache_bytes: 1 << 20,
            calls: "deny".into(),
            latency: false,
            apart: false,
            log: "error".into(),
            software: Software {
                memory: 256 << 20,
                ..Software::default()
            },
        };
        let (process, control) = spawn.start().unwrap();
        let mut inbox = Inbox::default();
        loop {
            control.receive(&mut inbox, true).unwrap();
            if let FromWorker::Ready { .. } = inbox.message().unwrap() {
                break;
            }
        }
        let (guest, to_guest) = UnixStream::pair().unwrap();
        let (to_host, host) = UnixStream::pair().unwrap();
        if host_memory > 0 {
            let account = Account::new().unwrap();
            account.clear(0);
            account.limit_to(Book::Host, host_memory);
            let share = Share::new(Arc::new(account), 0);
            let (descriptor, slot) = share.slots().next().unwrap();
            let quota = ToWorker::Quota { slot, gpu: None };
            control.send(&quota, &[descriptor]).unwrap();
        }
        let assign = ToWorker::Assign {
            terms: Terms {
                // Captures concern the sessions of their streams.
                session: u64::from(ordinal) + 1,
                token: [7; 16],
                ordinal,
                device_count: ordinal + 1,
                device_memory: 0,
                window: 0,
                reconnect: 0,
                vm: "test".into(),
            },
            guest: Guest {
                transport: Transport::Stream,
                received: 0,
                pid: 0,
                windows: (paragpu_protocol::handshake::NO_WINDOW, 0),
                channel: None,
                secured: None,
            },
        };
        control.send(&assign, &[host.as_fd()]).unwrap();
        drop(host);
        let soon = Some(Instant::now() + Duration::from_secs(60));
        let (_, welcome) = receive_exact_frame(&to_host, MAX_PAYLOAD, soon).unwrap();
        let welcome: Welcome = decode_all(&welcome).unwrap();

        let relay = Arc::new(Relay::default());
        let (seen, from, to) = (
            Arc::clone(&relay),
            to_guest.try_clone().unwrap(),
            to_host.try_clone().unwrap(),
        );
        std::thread::spawn(move || forward(&from, &to, |header, _| seen.admits(header)));
        let seen = Arc::clone(&relay);
        std::thread::spawn(move || {
            forward(&to_host, &to_guest, |header, payload| {
                seen.distort(header, payload);
                true
            });
        });
        let connection = over(guest, Options::default()).unwrap();
        let session =
            Session::new(connection, welcome, ordinal, Duration::from_micros(20)).unwrap();
        let worker = Self {
            relay,
            process,
            _control: control,
        };
        Some((worker, session))
    }

    /// How often a call has crossed.
    pub fn count(&self, call: &str) -> u64 {
        self.relay.calls.lock().get(call).copied().unwrap_or(0)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.relay.calls.lock().values().sum()
    }

    /// Calls so far that somebody waited for.
    pub fn synchronous(&self) -> u64 {
        self.relay.synchronous.load(Ordering::Acquire)
    }

    /// The connection ends at the call of this position.
    pub fn end_at(&self, position: u64) {
        self.relay.ends_at.store(position, Ordering::Release);
    }

    /// From now on a byte more than was asked for comes with all data.
    pub fn send_too_much(&self) {
        self.relay.overlong.store(true, Ordering::Release);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
