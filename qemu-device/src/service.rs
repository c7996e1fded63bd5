//! The event loop of the process. It blocks only in poll.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::Error;
use crate::channel::Target;
use crate::device::{Device, Polled};
use crate::guard::Guard;
use crate::listener::Listener;
use crate::settings::Settings;

/// How long a hypervisor that connects waits for the previous connection to end: one that
/// unplugs the device and plugs it in again may connect before it closes the old
/// connection.
const SUCCESSION: Duration = Duration::from_secs(1);

/// Serves the device of one VM at a time, one VM after the other, until a
/// signal asks it to end.
///
/// # Errors
/// If it cannot start, or a system call fails that must not fail. Nothing that the
/// hypervisor, the guest or the daemon do is an error.
pub fn run(settings: &Settings) -> Result<(), Error> {
    raise_descriptor_limit();
    let listener = Listener::bind(&settings.socket, settings.socket_mode)?;
    let mut service = Service {
        settings,
        guard: Guard::start(&settings.vm).map(Arc::new),
        listener,
        stop: stop_signal()?,
        device: None,
        successor: None,
        generation: first_generation(),
    };
    tracing::info!(
        vm = settings.vm,
        socket = %settings.socket.display(),
        channels = settings.layout.channel_count,
        "ready for the hypervisor"
    );
    // Fails without a service manager.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    while service.step()? {}
    tracing::info!(vm = settings.vm, "terminated by a signal");
    Ok(())
}

struct Service<'a> {
    settings: &'a Settings,
    guard: Option<Arc<Guard>>,
    listener: Listener,
    /// Readable once the process must end.
    stop: UnixStream,
    device: Option<Device>,
    /// A hypervisor that connected while there is a device, and until when it may wait.
    successor: Option<(UnixStream, Instant)>,
    generation: u32,
}

impl Service<'_> {
    /// Returns whether the process continues.
    fn step(&mut self) -> Result<bool, Error> {
        let ready = self.wait()?;
        let target = Target {
            vm: &self.settings.vm,
            daemon: &self.settings.daemon,
        };
        let now = Instant::now();
        for source in ready {
            match source {
                Polled::Stop => return Ok(false),
                Polled::Listener => {
                    self.accept(now);
                    continue;
                }
                _ => {}
            }
            let Some(device) = &mut self.device else {
                continue;
            };
            if !device.handle(source, target, now) {
                tracing::info!(vm = self.settings.vm, "the hypervisor has disconnected");
                self.device = None;
                self.drop_guarded();
            }
        }
        if let Some(device) = &mut self.device {
            device.offer_again(target, now);
        }
        match self.successor.take() {
            Some((socket, _)) if self.device.is_none() => self.begin(socket)?,
            Some((_, until)) if until <= now => self.turn_away(),
            waiting => self.successor = waiting,
        }
        Ok(true)
    }

    fn wait(&self) -> Result<Vec<Polled>, Error> {
        let now = Instant::now();
        let mut list = vec![
            (Polled::Stop, PollFd::new(&self.stop, PollFlags::IN)),
            (Polled::Listener, PollFd::new(&self.listener, PollFlags::IN)),
        ];
        let mut patience = None;
        if let Some(device) = &self.device {
            device.polled(now, &mut list);
            patience = device.patience(now);
        }
        if let Some((_, until)) = &self.successor {
            let left = until.saturating_duration_since(now);
            patience = Some(patience.map_or(left, |patience| patience.min(left)));
        }
        let (sources, mut descriptors): (Vec<_>, Vec<_>) = list.into_iter().unzip();
        match poll(&mut descriptors, patience.map(timeout).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(Error::system("wait")(error)),
        }
        Ok(sources
            .into_iter()
            .zip(&descriptors)
            .filter(|(_, descriptor)| !descriptor.revents().is_empty())
            .map(|(source, _)| source)
            .collect())
    }

    fn accept(&mut self, now: Instant) {
        let Some(socket) = self.listener.accept() else {
            return;
        };
        if self.successor.is_some() {
            self.turn_away();
        } else {
            self.successor = Some((socket, now + SUCCESSION));
        }
    }

    fn turn_away(&self) {
        tracing::warn!(
            vm = self.settings.vm,
            "a second hypervisor was turned away: the first still uses the device"
        );
    }

    /// Creates a device for a hypervisor that has connected.
    fn begin(&mut self, socket: UnixStream) -> Result<(), Error> {
        tracing::info!(vm = self.settings.vm, "a hypervisor connected");
        self.generation = self.generation.wrapping_add(1);
        let mut device = Device::new(
            socket,
            self.settings.protocol,
            (self.settings.layout, self.generation),
            self.guard.as_ref(),
        )?;
        let target = Target {
            vm: &self.settings.vm,
            daemon: &self.settings.daemon,
        };
        if device.handle(Polled::Hypervisor, target, Instant::now()) {
            self.device = Some(device);
        } else {
            drop(device);
            self.drop_guarded();
        }
        Ok(())
    }

    /// There is no device any more.
    fn drop_guarded(&self) {
        self.guard.iter().for_each(|guard| guard.drop_device());
    }
}

fn timeout(patience: Duration) -> Timespec {
    // Rounded up, so that the loop does not spin shortly before a deadline.
    Timespec::try_from(patience + Duration::from_micros(100)).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    })
}

/// A number that an earlier process is unlikely to have used for its last devices.
fn first_generation() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map(|time| time.as_secs()).unwrap_or_default();
    u32::try_from(seconds & 0x00ff_ffff).unwrap_or_default() << 8
}

/// A socket that becomes readable on a signal to terminate.
fn stop_signal() -> Result<UnixStream, Error> {
    let failed = |source| Error::Signals { source };
    let (read, write) = UnixStream::pair().map_err(failed)?;
    for signal in [Signal::TERM, Signal::INT] {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal.as_raw(), write).map_err(failed)?;
    }
    Ok(read)
}

/// Raises the limit to the maximum: a channel needs two descriptors, and more while it is
/// refused.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors cannot be raised");
    }
}
