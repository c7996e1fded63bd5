//! Makes shadows parts of a window that the session gets when it moves to a host that
//! shares memory with it, for the first time or again. Then nothing is copied around launches and
//! waits any more.
//!
//! A thread does this after the move, while others may be anywhere in a call, for one
//! shadow after the other:
//!
//! 1. The program's pages are replaced by pages of the window ([`crate::sys::moved_pages`]).
//!    For the host it is a shadow as before.
//! 2. The host replaces its copy by the same pages, at the device's address, which stays. It
//!    does that when the device is idle, and adds what the device changed. The shadow is
//!    locked meanwhile: a thread that fetched older changes would write them over newer ones.
//! 3. Threads that find the shadow from now on find shared memory, those that found it before
//!    have nothing to send or to fetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paragpu_communicator::Window;
use paragpu_protocol::handle::{ShadowAddress, WindowOffset};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowDestroy, ShadowJoin};
use parking_lot::Mutex;

use super::{Backing, HostMemory, ShadowPlace, free_in};
use crate::shadow::Region;
use crate::sys::moved_pages::MovedPages;
use crate::sys::process;

/// Pause before shadows are tried again for which the device was busy.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of times that they are tried.
const TIMES: u32 = 60;

/// The state of a shadow that joins the window.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// The pages that replaced the program's, with their offset in the window.
    moved: Mutex<Option<(u64, MovedPages)>>,
    /// Whether the host uses the same pages.
    joined: AtomicBool,
}

/// What became of a shadow.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It joined the window, or cannot.
    Settled,
    /// The device is busy.
    Busy,
}

impl Joining {
    /// Of registered memory whose pages are at `offset` of a window that the session leaves.
    pub(super) fn of(offset: u64, pages: MovedPages) -> Self {
        Self {
            moved: Mutex::new(Some((offset, pages))),
            joined: AtomicBool::new(false),
        }
    }
}

impl ShadowPlace {
    /// Whether program and device share the memory.
    pub(super) fn is_joined(&self) -> bool {
        self.joining.joined.load(Ordering::Acquire)
    }

    /// Records that the session leaves the window that it shares.
    pub(super) fn part(&self) {
        self.joining.joined.store(false, Ordering::Release);
    }

    /// Whether it lies in a window that the session has left.
    fn is_left(&self) -> bool {
        self.space.is_none()
    }
}

impl HostMemory {
    /// Adopts the window of a new connection, and makes shadows parts of it.
    pub(super) fn adopt_window(self: Arc<Self>, window: Arc<Window>) {
        let Some(current) = self.window.adopt(window) else {
            return;
        };
        *self.free.lock() = Some(free_in(current));
        let departures = self.window.departures();
        let (own, link) = (Arc::downgrade(&self), Arc::downgrade(&self.link));
        process::spawn("paragpu-join", move || {
            let host = || {
                link.upgrade().filter(|link| link.check().is_ok())?;
                own.upgrade()
                    .filter(|host| host.window.departures() == departures)
            };
            open(host);
            join_all(host);
        });
    }

    /// Has words and slots of the current window used, if no copy uses those of an earlier one.
    /// Returns false if one does.
    fn open_window(&self) -> bool {
        for earlier in self.window.earlier() {
            let Some(staging) = earlier.staging() else {
                continue;
            };
            if !staging.is_unused() {
                return false;
            }
            if let Some(region) = staging.take_shadow() {
                self.shadows.remove(&region);
                let (base, length) = region.on_wire();
                let address = ShadowAddress(base);
                // If that fails, the session is over.
                let _ = self.link.call(&ShadowDestroy { address });
                self.give_back(base - self.window.base(), length);
            }
        }
        self.window.open();
        true
    }

    /// The shadows of memory that the program pinned.
    fn apart(&self) -> Vec<(Arc<Region>, Arc<ShadowPlace>)> {
        let pinned = self.pinned.read();
        let shadows = pinned.values().filter_map(|pinned| match &pinned.backing {
            Backing::Shadow(region, place) if !place.is_joined() => {
                Some((Arc::clone(region), Arc::clone(place)))
            }
            _ => None,
        });
        shadows.collect()
    }

    /// Tries to make a shadow a part of the window.
    fn join(&self, region: &Arc<Region>, place: &ShadowPlace) -> Outcome {
        let departures = self.window.departures();
        let mut moved = place.joining.moved.lock();
        let mut state = region.hold();
        if Region::is_gone(&state) {
            return Outcome::Settled;
        }
        let is_there = |(offset, _): &(u64, MovedPages)| self.window.shares(*offset);
        if !moved.as_ref().is_some_and(is_there) {
            // Its pages are the program's, or those of a window that the session has left.
            let former = match &*moved {
                Some((_, pages)) => Some(pages.window()),
                None => place.is_left().then_some(place.base),
            };
            let Some(next) = self.move_shadow(region, former) else {
                return Outcome::Settled;
            };
            *moved = Some(next);
        }
        let Some((offset, _)) = &*moved else {
            return Outcome::Settled;
        };
        let joined = self.link.call(&ShadowJoin {
            address: ShadowAddress(place.base),
            offset: WindowOffset(*offset),
        });
        match joined {
            Ok(()) => {}
            Err(Status::NOT_READY) => return Outcome::Busy,
            Err(_) => return Outcome::Settled,
        }
        // Leaving the window holds this lock until it has marked it as left.
        let _pinned = self.pinned.read();
        if self.window.departures() != departures {
            // During the call, and without this shadow: the new host has zeros there.
            region.show();
            region.agree_on_zeros(&mut state, self.streams.progress().posted());
            return Outcome::Settled;
        }
        place.joining.joined.store(true, Ordering::Release);
        self.shadows.share(region, &mut state);
        Outcome::Settled
    }

    /// Replaces the program's pages of a shadow by pages of the window. `None` if that is
    /// impossible.
    fn move_shadow(&self, region: &Region, former: Option<u64>) -> Option<(u64, MovedPages)> {
        let (base, length) = region.on_wire();
        let program = region.in_program().0 - (region.device() - base);
        let (offset, second) = self.take_second(length)?;
        let pages = second.replace(program, self.window.base() + offset, former);
        if pages.is_none() {
            self.give_back(offset, length);
        }
        Some((offset, pages?))
    }

    /// Returns the part of the window that a shadow had, which neither device nor program use
    /// any more. Registered memory becomes private again.
    pub(super) fn part_place(&self, region: &Region, place: &ShadowPlace) {
        let Some((offset, pages)) = place.joining.moved.lock().take() else {
            if place.is_left() {
                self.give_back(place.base - self.window.base(), place.length);
            }
            return;
        };
        if region.in_program().0 == region.device() {
            // The library's own, which it unmaps next, or does not use any more.
            pages.abandon();
        } else if !pages.give_back() {
            return;
        }
        self.give_back(offset, region.on_wire().1);
    }
}

/// Has words and slots of the window of `host` used once nobody uses earlier ones.
fn open(host: impl Fn() -> Option<Arc<HostMemory>>) {
    while let Some(host) = host() {
        let is_open = host.open_window();
        drop(host);
        if is_open {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Makes the shadows of `host` parts of its window, if the device is idle from time to time.
fn join_all(host: impl Fn() -> Option<Arc<HostMemory>>) {
    for _ in 0..TIMES {
        let Some(host) = host() else {
            return;
        };
        // A busy device delays the program once each time, not for each shadow.
        let mut apart = host.apart().into_iter();
        let is_busy = apart.any(|(region, place)| host.join(&region, &place) == Outcome::Busy);
        drop(apart);
        drop(host);
        if !is_busy {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
