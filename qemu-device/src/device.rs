//! One instance of a device, from a hypervisor's connection to its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};

use crate::Error;
use crate::channel::{Channel, Phase, Shared, Target};
use crate::eventfd::EventFd;
use crate::guard::Guard;
use crate::ivshmem::{Descriptors, Hypervisor};
use crate::layout::Layout;
use crate::rings::duplicate;
use crate::settings::Protocol;
use crate::throttle::Throttle;
use crate::vfio_user::{self, guest_memory::GuestMemory};
use crate::window::Window;

/// How soon a channel is offered again to a daemon that was busy.
const OFFER_INTERVAL: Duration = Duration::from_millis(20);

/// The owner of a polled descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// The signal to terminate.
    Stop,
    /// The socket at which hypervisors connect.
    Listener,
    /// The hypervisor's connection.
    Hypervisor,
    /// The doorbell of the control peer.
    Control,
    /// A channel's doorbell.
    Doorbell(usize),
    /// The connection of the process that serves a channel.
    Server(usize),
}

/// The device of a running VM. Memory and eventfds are created afresh for each VM, so that a
/// worker of an earlier VM has no access to a later one.
#[derive(Debug)]
pub struct Device {
    hypervisor: Link,
    shared: Shared,
    control: EventFd,
    channels: Vec<Channel>,
    throttle: Throttle,
}

/// A hypervisor's connection.
#[derive(Debug)]
enum Link {
    Ivshmem(Hypervisor),
    VfioUser(vfio_user::Client),
}

impl Device {
    /// Creates a device for a hypervisor that has connected.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(
        socket: UnixStream,
        protocol: Protocol,
        (layout, generation): (Layout, u32),
        guard: Option<&Arc<Guard>>,
    ) -> Result<Self, Error> {
        let window = Window::new(layout, generation)?;
        let interrupt = EventFd::new()?;
        // Before the hypervisor is served, which may give another interrupt.
        if let Some(guard) = guard {
            guard.hold(window.as_fd(), layout, &interrupt);
        }
        let control = EventFd::new()?;
        let channels = (0..layout.channel_count)
            .map(|number| Channel::new(&window, number))
            .collect::<Result<Vec<_>, _>>()?;
        let mut guest_memory = None;
        let hypervisor = match protocol {
            Protocol::Ivshmem => Link::Ivshmem(Hypervisor::new(socket, layout.channel_count)),
            Protocol::VfioUser => {
                let memory = Arc::new(Mutex::new(GuestMemory::default()));
                guest_memory = Some(Arc::clone(&memory));
                let ends = vfio_user::server::DeviceEnds {
                    window: duplicate(window.as_fd())?,
                    layout,
                    channels: channels
                        .iter()
                        .map(|channel| channel.doorbell().duplicate())
                        .collect::<Result<_, _>>()?,
                    control: control.duplicate()?,
                    memory,
                    guard: guard.cloned(),
                };
                let interrupt = interrupt.duplicate()?;
                Link::VfioUser(vfio_user::Client::serve(socket, ends, interrupt)?)
            }
        };
        Ok(Self {
            hypervisor,
            control,
            channels,
            shared: Shared {
                window,
                interrupt,
                guest_memory,
            },
            throttle: Throttle::new(Instant::now()),
        })
    }

    /// Adds to `list` all descriptors that this device waits for.
    pub fn polled<'a>(&'a self, now: Instant, list: &mut Vec<(Polled, PollFd<'a>)>) {
        let hypervisor = match &self.hypervisor {
            Link::Ivshmem(hypervisor) if hypervisor.wants_to_send() => {
                PollFd::new(hypervisor, PollFlags::IN | PollFlags::OUT)
            }
            Link::Ivshmem(hypervisor) => PollFd::new(hypervisor, PollFlags::IN),
            Link::VfioUser(client) => PollFd::new(client, PollFlags::IN),
        };
        list.push((Polled::Hypervisor, hypervisor));
        let paused = self.throttle.pause(now).is_some();
        if !paused {
            list.push((Polled::Control, PollFd::new(&self.control, PollFlags::IN)));
        }
        for (index, channel) in self.channels.iter().enumerate() {
            match channel.phase() {
                Phase::Greeting if !paused => list.push((
                    Polled::Doorbell(index),
                    PollFd::new(channel.doorbell(), PollFlags::IN),
                )),
                Phase::Serving(connection) | Phase::Ending(connection) => list.push((
                    Polled::Server(index),
                    PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN),
                )),
                _ => {}
            }
        }
    }

    /// Maximum time to wait for them; `None` for no limit.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let offering = self
            .channels
            .iter()
            .any(|channel| matches!(channel.phase(), Phase::Offering { .. }))
            .then_some(OFFER_INTERVAL);
        let paused = self.throttle.pause(now);
        match (offering, paused) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Handles one descriptor that is ready.
    ///
    /// Returns whether the hypervisor is still there.
    pub fn handle(&mut self, source: Polled, target: Target<'_>, now: Instant) -> bool {
        match source {
            Polled::Stop | Polled::Listener => {}
            Polled::Hypervisor => return self.serve_hypervisor(),
            Polled::Control => {
                let began = self.wake_up(now);
                self.control.clear();
                for channel in &mut self.channels {
                    channel.guest_changed(&self.shared, target, now);
                }
                self.throttle.spend(began.elapsed());
            }
            Polled::Doorbell(index) => {
                let began = self.wake_up(now);
                if let Some(channel) = self.channels.get_mut(index) {
                    channel.forward_hello(&self.shared, target, now);
                }
                self.throttle.spend(began.elapsed());
            }
            Polled::Server(index) => {
                if let Some(channel) = self.channels.get_mut(index) {
                    channel.host_spoke(&self.shared);
                }
            }
        }
        true
    }

    /// Counts a wake-up by the guest. Returns when its handling begins.
    fn wake_up(&mut self, now: Instant) -> Instant {
        self.throttle.count(now);
        Instant::now()
    }

    fn serve_hypervisor(&mut self) -> bool {
        let Self {
            hypervisor,
            shared,
            control,
            channels,
            ..
        } = self;
        let ends = DeviceEnds {
            shared,
            control,
            channels,
        };
        match hypervisor {
            Link::Ivshmem(hypervisor) => hypervisor.send(&ends).is_ok() && hypervisor.is_there(),
            Link::VfioUser(client) => client.is_there(),
        }
    }

    /// Retries to offer the channels that a busy daemon could not take.
    pub fn offer_again(&mut self, target: Target<'_>, now: Instant) {
        for channel in &mut self.channels {
            channel.offer(&self.shared, target, now);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for channel in &mut self.channels {
            channel.abandon(&self.shared);
        }
    }
}

struct DeviceEnds<'a> {
    shared: &'a Shared,
    control: &'a EventFd,
    channels: &'a [Channel],
}

impl Descriptors for DeviceEnds<'_> {
    fn memory(&self) -> BorrowedFd<'_> {
        self.shared.window.as_fd()
    }
    fn channel(&self, channel: u16) -> Option<BorrowedFd<'_>> {
        let channel = self.channels.get(usize::from(channel))?;
        Some(channel.doorbell().as_fd())
    }
    fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
    fn interrupt(&self) -> BorrowedFd<'_> {
        self.shared.interrupt.as_fd()
    }
}
